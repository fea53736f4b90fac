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
class Profile:
    """The contents of a profile. `kind` is the profiler's name. `metrics` are those of `kernel`,
    the kernel that takes most of the time (empty if the profiler names none), by the profiler's
    names; a value is text with its unit if metrics.toml cannot determine the unit from the name.
    `kernels` are by descending time. `lines` are rows of `kernel` in the order of addresses, whose
    samples are counted in `unit`.
    """

    kind: str
    kernel: str = ""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    kernels: tuple[Kernel, ...] = ()
    notes: tuple[str, ...] = ()
    lines: tuple[LineRow, ...] = ()
    unit: str = "samples"


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
    that the profiler prints, else the share of the time of all kernels.
    """
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


_ELEMENTWISE = re.compile(
    r"elementwise|triton_poi_|aten::(?:add|sub|mul|div|copy|relu|gelu|silu|sigmoid|tanh|where|exp)_?$"
    r"|(?<![a-z])(?:saxpy|axpy|FillFunctor)"
)


def elementwise_pct(kernels: Sequence[Kernel]) -> float:
    """The share of elementwise kernels, by name, in the time of all."""
    rows = time_shares(kernels)
    return round(sum(float(r["pct"]) for r in rows if _ELEMENTWISE.search(r["name"])), 2)


# Rows of a table of times by what they do, from their names: functions of CUDA, HIP, Level Zero,
# OpenCL and Vulkan, and commands of a device. The host waits for the device in some functions.
_COPY = re.compile(
    r"mem_?(?:cpy|copy|set)|memory ?(?:copy|fill)|(?:host|device)_?to_?(?:device|host)"
    r"|\b[hd]2[hd]\b|[HD]to[HD]\b|enqueue(?:read|write|copy|fill)|copy_?buffer|appendmemory",
    re.IGNORECASE,
)
_BARRIER = re.compile(r"barrier|wait_?(?:on|for)?_?event|fence|semaphore", re.IGNORECASE)
_BUILD = re.compile(
    r"(?:module|program|pipelines?)_?(?:create|build|load|compile|link)|create(?:compute)?pipelines?"
    r"|clBuild|clCompile|clLink|nvrtcCompile|hiprtcCompile|moduleload|jit_?compil|\bcompil",
    re.IGNORECASE,
)
_PRODUCT = re.compile(
    r"gemm|mat_?mul|dot_general|cublas|convolution|(?<![a-z])(?:mm|bmm|addmm|conv[123]d)(?![a-z])",
    re.IGNORECASE,
)
_OF_HOST = re.compile(
    r"^(?:ze|cl|vk|hsa_|cuda|cu|hip|nvrtc)[A-Z_]\w*(?:Create|Sync|Alloc|Free|Execute|Launch|Enqueue"
    r"|Wait|Init|Submit|Build|Load|Finish|Get|Destroy)\w*"
)


def program_metrics(rows: Sequence[Kernel]) -> dict[str, Metric]:
    """Shares of copies, barriers, builds and matrix products in the time of all rows, and the runs
    and the time of one run of the leading row that is none of them. Barriers are those of a device:
    the host waits in its functions for work, which is no loss.
    """
    of_host = any(_OF_HOST.match(row.name) for row in rows)
    groups = {"copies_pct": _COPY, "builds_pct": _BUILD, "products_pct": _PRODUCT}
    if not of_host:
        groups["barriers_pct"] = _BARRIER
    shares = {row["name"]: float(row["pct"]) for row in time_shares(rows)}
    metrics: dict[str, Metric] = {}
    for name, pattern in groups.items():
        if share := sum(pct for row, pct in shares.items() if pattern.search(row)):
            metrics[name] = round(min(share, 100.0), 2)
    others = (_COPY, _BARRIER, _BUILD)
    work = [row for row in rows if not any(p.search(row.name) for p in others)]
    if work and not of_host and work[0].calls:
        metrics["kernel_runs"] = work[0].calls
        if work[0].us:
            metrics["duration_us"] = work[0].us / work[0].calls
    return metrics


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
