"""Triton's Proton: a tree in Hatchet's literal form, [{frame: {name}, metrics, children}, ...],
with times of kernels and no counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from retrieval.profiles.profile import Kernel, Metric, Profile, choice_note, number, total_times

KIND = "proton"
_TIME = "time (ns)"


def read(decoded: object) -> Profile | None:
    """The time of one launch of the leading kernel; None if the JSON is not such a tree."""
    if isinstance(decoded, Mapping):
        decoded = decoded.get("tree", [decoded])
    if not isinstance(decoded, list) or not any(map(_is_node, decoded)):
        return None
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
