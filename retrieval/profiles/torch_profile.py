"""PyTorch's profiler: an exported trace, and the events that the optimizer's own driver writes.

On a GPU the rows are kernels and their device time. On a CPU they are operators, and dispatched
operators count as launches. A table or a trace covers an unknown number of calls, so it yields
shares and the time of one launch, but not launches per call.

In a trace, {traceEvents: [{ph, cat, name, ts, dur, args}]}, times are in microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from retrieval.profiles.profile import (
    Kernel,
    Metric,
    Profile,
    choice_note,
    number,
    time_shares,
    total_times,
)
from retrieval.profiles.program import MOVES, of_program

KIND = "torch_profiler"
# Allocations and views without work, and the profiler's own rows.
IDLE = re.compile(
    r"^aten::(?:empty\w*|as_strided|view|_?unsafe_view|reshape|resize_|t|expand|select|slice|detach\w*"
    r"|transpose|unsqueeze|squeeze|permute|item|_local_scalar_dense|lift_fresh|result_type)$"
    r"|^Profiler|^\[memory\]|^cuda[A-Z]|^cu[A-Z]|^hip[A-Z]|^Activity Buffer|^Runtime"
)
Device = Literal["cuda", "cpu"]
_ON_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"))
_ON_HOST = frozenset(("cpu_op", "operator", "node"))
_ARGUMENTS = {
    "registers per thread": "registers_per_thread",
    "shared memory": "shared_memory_per_block_bytes",
}


# -- events of the driver


def read_events(
    profile: Mapping[str, Any], device: Device
) -> tuple[dict[str, Metric], tuple[Kernel, ...]]:
    """Metrics and kernels of {calls, events: [{name, device, calls, cpu_us, device_us}],
    operators}; no kernels if nothing ran."""
    field = "device_us" if device == "cuda" else "cpu_us"
    kernels = total_times(
        [
            Kernel(event["name"], event["calls"], event[field])
            for event in profile["events"]
            if event["device"] == device and event[field] > 0 and not IDLE.search(event["name"])
        ]
    )
    if not kernels:
        return {}, ()
    launches = _launches(profile, kernels, device)
    return {"kernel_launches": launches, "copies_pct": _copies(kernels)}, kernels


def _launches(profile: Mapping[str, Any], kernels: Sequence[Kernel], device: Device) -> float:
    """Launches per call."""
    if device == "cuda":
        launches = sum(float(kernel.calls) for kernel in kernels)
        return launches / float(profile["calls"])
    names = {name.replace(".", "::"): count for name, count in profile["operators"].items()}
    return float(sum(count for name, count in names.items() if not IDLE.search(name)))


def _copies(kernels: Sequence[Kernel]) -> float:
    shares = {row["name"]: float(row["pct"]) for row in time_shares(kernels)}
    return round(sum(share for name, share in shares.items() if MOVES.search(name)), 2)


# -- JSON


def read_json(decoded: object) -> Profile | None:
    """An exported trace, or the driver's events; None for any other JSON."""
    if isinstance(decoded, list):  # of ONNX Runtime
        rows = [row for row in decoded if isinstance(row, Mapping) and {"ph", "cat"} <= row.keys()]
        return _trace(rows) if rows else None
    if not isinstance(decoded, Mapping):
        return None
    if isinstance(decoded.get("traceEvents"), list):
        return _trace([row for row in decoded["traceEvents"] if isinstance(row, Mapping)])
    if {"calls", "events", "operators"} <= decoded.keys():
        try:
            metrics, kernels = read_events(decoded, "cuda")
            if not kernels:
                metrics, kernels = read_events(decoded, "cpu")
        except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError):
            return Profile(KIND)  # of another program
        name = kernels[0].name if kernels else ""
        return Profile(KIND, name, metrics, kernels, choice_note(kernels))
    return None


def _trace(events: Sequence[Mapping[str, Any]]) -> Profile:
    whole = [event for event in events if event.get("ph") == "X" and number(event.get("dur"))]
    on_device = [e for e in whole if str(e.get("cat", "")).lower() in _ON_DEVICE]
    shown = on_device or list(_outermost(whole))
    profile = _profile(
        [Kernel(str(event.get("name", "")), 1, number(event["dur"]) or 0.0) for event in shown],
        bool(on_device),
        sum(number(event["dur"]) or 0.0 for event in on_device),
        _span(whole),
    )
    arguments = [event.get("args") for event in on_device if event.get("name") == profile.kernel]
    resources: dict[str, Metric] = {}
    for known in arguments:
        for name, metric in _ARGUMENTS.items():
            value = number(known.get(name)) if isinstance(known, Mapping) else None
            if value is not None:
                resources.setdefault(metric, value)
    metrics = {**profile.metrics, **resources} if profile.metrics else {}
    return Profile(KIND, profile.kernel, metrics, profile.kernels, profile.notes)


def _outermost(events: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Host operators that are not nested in another one on their thread."""
    ends: dict[tuple[str, str], float] = {}
    hosted = [e for e in events if str(e.get("cat", "")).lower() in _ON_HOST]
    for event in sorted(hosted, key=lambda e: (number(e.get("ts")) or 0.0, -float(e["dur"]))):
        thread = str(event.get("pid")), str(event.get("tid"))
        start = number(event.get("ts")) or 0.0
        if start >= ends.get(thread, start):
            ends[thread] = start + (number(event["dur"]) or 0.0)
            if not IDLE.search(str(event.get("name", ""))):
                yield event


def _span(events: Sequence[Mapping[str, Any]]) -> float:
    """Microseconds from the first start to the last end; 0 for events without a start."""
    timed = [e for e in events if str(e.get("cat", "")).lower() in _ON_DEVICE | _ON_HOST]
    starts = [start for e in timed if (start := number(e.get("ts"))) is not None]
    ends = [
        start + (number(e["dur"]) or 0.0)
        for e in timed
        if (start := number(e.get("ts"))) is not None
    ]
    return max(ends) - min(starts) if starts else 0.0


def _profile(
    runs: Sequence[Kernel], on_device: bool, device_us: float = 0.0, whole_us: float = 0.0
) -> Profile:
    """The profile of kernels that took `device_us` of the `whole_us` that were recorded. A host
    that does not wait may have a shorter time than its kernels; that says nothing about the device.
    """
    kernels = total_times(runs)
    if not kernels:
        return Profile(KIND)
    metrics: dict[str, Metric] = {"copies_pct": _copies(kernels)}
    if on_device and 0 < device_us < whole_us:
        metrics["gpu_busy_pct"] = round(100 * device_us / whole_us, 2)
    profile = of_program(KIND, kernels, (), metrics)
    return profile if on_device else replace(profile, metrics=metrics)
