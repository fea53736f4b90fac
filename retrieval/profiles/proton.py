"""Triton's Proton: a tree in Hatchet's literal form, [{frame: {name}, metrics, children}, ...],
with times of kernels and no counters; with `mode="pcsampling"`, a kernel's children are its source
lines, "FILE:LINE@FUNCTION", with num_samples and stalled_* for each reason. The tree as
`proton-viewer` prints it is read too: a value before each name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from retrieval.profiles.lines import LineRow, of_leading, stall_name
from retrieval.profiles.profile import Kernel, Metric, Profile, choice_note, number, total_times

KIND = "proton"
_TIME = "time (ns)"


def read(decoded: object) -> Profile | None:
    """The time of one launch of the leading kernel; None if the JSON is not such a tree."""
    if isinstance(decoded, Mapping):
        decoded = decoded.get("tree", [decoded])
    if not isinstance(decoded, list) or not any(map(_is_node, decoded)):
        return None
    kernel, rows = of_leading(_line_tables(decoded))
    if rows:
        return Profile(KIND, kernel, _shares(rows), (Kernel(kernel, 1, 0.0),), (), rows)
    kernels = kernel_times(decoded)
    metrics: dict[str, Metric] = {}
    if kernels and kernels[0].us and kernels[0].calls:
        metrics["duration_us"] = kernels[0].us / kernels[0].calls
    name = kernels[0].name if kernels else ""
    return Profile(KIND, name, metrics, kernels, choice_note(kernels))


def kernel_times(tree: Sequence[Mapping[str, Any]]) -> tuple[Kernel, ...]:
    """The kernels by descending time, each summed over the places that launch it."""
    return total_times(list(_leaves(tree)))


def _is_node(node: object) -> bool:
    return (
        isinstance(node, Mapping)
        and isinstance(node.get("frame"), Mapping)
        and isinstance(node.get("metrics", {}), Mapping)
        and isinstance(node.get("children", []), list)
        and ("metrics" in node or "children" in node)
    )


def _leaves(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Kernel]:
    """Every frame with a time."""
    waiting = list(reversed(nodes))
    while waiting:
        node = waiting.pop()
        if not _is_node(node):
            continue  # the last entry describes devices
        metrics, children = node.get("metrics", {}), node.get("children", [])
        time = number(metrics.get(_TIME))
        if time is not None and not children:
            calls = number(metrics.get("count")) or 0.0
            yield Kernel(str(node["frame"].get("name", "")), calls, time / 1e3)
        waiting += reversed(children)


# -- samples of lines

_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+)@(?P<function>.+)")
_SAMPLES = "num_samples"


def _line_tables(tree: Sequence[Mapping[str, Any]]) -> dict[str, list[LineRow]]:
    """Rows of each kernel whose frames have samples; equal lines are summed by the diagnosis."""
    tables: dict[str, list[LineRow]] = {}
    waiting = [(node, "") for node in reversed(tree)]
    while waiting:
        node, kernel = waiting.pop()
        if not _is_node(node):
            continue
        name, metrics = str(node["frame"].get("name", "")), node.get("metrics", {})
        samples = number(metrics.get(_SAMPLES))
        match = _LINE.fullmatch(name)
        if samples and match:
            stalls = {
                reason: float(count)
                for column, count in metrics.items()
                if (reason := stall_name(column)) and number(count)
            }
            row = LineRow(samples, match["file"], int(match["line"]), stalls=stalls)
            tables.setdefault(kernel or match["function"], []).append(row)
        inside = kernel if match else name
        waiting += [(child, inside) for child in reversed(node.get("children", []))]
    return tables


def _shares(rows: Sequence[LineRow]) -> dict[str, Metric]:
    total = sum(row.samples for row in rows)
    sums: dict[str, float] = {}
    for row in rows:
        for reason, count in row.stalls.items():
            sums[reason] = sums.get(reason, 0.0) + count
    return {
        f"{reason}_stall_share": round(min(1.0, count / total), 4)
        for reason, count in sums.items()
        if reason in ("long_scoreboard", "short_scoreboard", "barrier", "wait", "mio_throttle")
    }


# -- the printed tree

_PRINTED = re.compile(r"^[\s│├└─|]*(?P<value>\d+(?:\.\d+)?)\s+(?P<name>\S.*?)\s*$")
_FIELDS = re.compile(r"\b(?:avg_)?time/(?P<unit>s|ms|us|ns)\b")
_SCALE = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}


def read_text(text: str) -> Profile | None:
    """The leaves of the tree that `proton-viewer -m time/UNIT` prints; None for another text."""
    lines = [_ANSI.sub("", line) for line in text.splitlines()]
    if not any("ROOT" in line for line in lines):
        return None
    found = [(line, match) for line in lines if (match := _PRINTED.match(line))]
    drawn = any("└─" in line or "├─" in line for line in lines)
    if not drawn or len(found) < 2:
        return None
    unit = next((m["unit"] for line in lines if (m := _FIELDS.search(line))), "")
    depths = [match.start("value") for _, match in found]
    leaves = [
        Kernel(match["name"], 1, float(match["value"]) * _SCALE.get(unit, 1e-3))
        for (_, match), depth, following in zip(found, depths, [*depths[1:], 0], strict=True)
        if following <= depth and match["name"] != "ROOT"
    ]
    kernels = total_times(leaves)
    notes = choice_note(kernels)
    if not unit:
        notes = (*notes, "the metric of the tree is unnamed: read as nanoseconds")
    metrics: dict[str, Metric] = {}
    if kernels and kernels[0].us:
        metrics["duration_us"] = kernels[0].us / kernels[0].calls
    elif kernels:  # the times are rounded
        root = next((m for _, m in found if m["name"] == "ROOT"), None)
        kernels = (
            (Kernel("ROOT", 1, float(root["value"]) * _SCALE.get(unit, 1e-3)),) if root else ()
        )
        notes = ("the times of the kernels are rounded to 0: print `-m time/us` or `avg_time/us`",)
    return Profile(KIND, kernels[0].name if kernels else "", metrics, kernels, notes)


_ANSI = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
