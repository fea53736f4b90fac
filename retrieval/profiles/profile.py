"""A profile as data: the metrics of one kernel, and the times of all kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retrieval.profiles.lines import LineRow

Metric = float | str  # a number, or text with a number and its unit


@dataclass(frozen=True)
class Kernel:
    """A kernel or operator: the number of calls, its total time in microseconds, and the share of
    the whole in per cent that the profiler prints; 0 for a time or a share that the profile lacks.
    """

    name: str
    calls: float
    us: float
    pct: float = 0.0


@dataclass(frozen=True)
class Advised:
    """A signal that a profiler's own rule names, the sentence, its line (from 1), and the gain or
    share in per cent that it states; 0 without one."""

    signal: str
    sentence: str
    line: int
    pct: float


@dataclass(frozen=True)
class Profile:
    """The contents of a profile. `kind` is the profiler's name. `metrics` are those of `kernel`,
    the kernel that takes most of the time (empty if the profiler names none), by the profiler's
    names; a value is text with its unit if metrics.toml cannot determine the unit from the name.
    `kernels` and the `functions` of the host are by descending time. `lines` are rows of `kernel`
    in the order of addresses, whose samples are counted in `unit`."""

    kind: str
    kernel: str = ""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    kernels: tuple[Kernel, ...] = ()
    notes: tuple[str, ...] = ()
    lines: tuple[LineRow, ...] = ()
    unit: str = "samples"
    functions: tuple[Kernel, ...] = ()


def total_times(runs: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """One entry for each name, the longest first; equal times are in the order of the profile."""
    totals: dict[str, Kernel] = {}
    for run in runs:
        sofar = totals.get(run.name, Kernel(run.name, 0, 0.0))
        totals[run.name] = Kernel(
            run.name, sofar.calls + run.calls, sofar.us + run.us, sofar.pct + run.pct
        )
    return tuple(sorted(totals.values(), key=lambda kernel: (-kernel.us, -kernel.pct)))


def time_shares(kernels: Sequence[Kernel], calls: float = 1) -> list[dict[str, Any]]:
    """Rows {name, calls, us, pct} of one call, for a profile of `calls` calls; `pct` is the share
    that the profiler prints, else the share of the time of all kernels."""
    total = sum(kernel.us for kernel in kernels) or 1.0
    printed = any(kernel.pct for kernel in kernels)
    return [
        {
            "name": kernel.name,
            "calls": kernel.calls if calls == 1 else kernel.calls / calls,
            "us": kernel.us / calls,
            "pct": round(kernel.pct if printed else 100 * kernel.us / total, 2),
        }
        for kernel in kernels
    ]


def choice_note(kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """A note on which of several kernels the metrics describe; empty for a single one."""
    if len(kernels) < 2:
        return ()
    if not any(kernel.us or kernel.pct for kernel in kernels):
        return (
            f"the profile has no times: the metrics are of its first kernel, {kernels[0].name}",
        )
    share = time_shares(kernels)[0]["pct"]
    return (f"the metrics are of {kernels[0].name}, {share} % of the time of all kernels",)


def number(text: object) -> float | None:
    """A finite number in profiler output, such as "1,234.5"; None for other text."""
    if isinstance(text, bool) or not isinstance(text, int | float | str):
        return None
    try:
        value = float(text.replace(",", "") if isinstance(text, str) else text)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


_PREFIX = re.compile(
    r"^\s*(?:\[(?:\d[\d/ .-]*[:/][\d/: .-]+|[IWEVDF]|INFO|DEBUG)\]\s?)+"
    r"|^\d{4}-\d\d-\d\d[ T][\d:.]+:? (?:[IWEF] \S+\] ?)?|^\[[\d:.]+\] \S+:\d+: "
    r"|^(?:\d\d/\d\d/\d{4} [\d:]+ [AP]M +)?(?:INFO|DEBUG)\b:?(?: +\d+ \[\w+\]:)?[ ]*"
    r"|^(?:==|--)\d+(?:==|--) ?|^stats: "
)


_DEVIATION = re.compile(
    r"\(\s{0,4}(?:\+-|\+/-|\u00b1)\s{0,6}[\d.,]{1,12}\s?%\s{0,4}\)"
    r"|(?<=[\dA-Za-z])\s{0,3}(?:\+-|\+/-|\u00b1)\s{0,4}[\d.,]{1,15}(?: ?%)?"
)


def without_deviations(text: str) -> str:
    """A text without the deviations of repeated runs ("+- 0.2", "( +- 0.5% )")."""
    return _DEVIATION.sub("", text)


def without_prefix(line: str) -> str:
    """A line without the time, the level and the place that a logger or a tool puts before it."""
    return _PREFIX.sub("", line)
