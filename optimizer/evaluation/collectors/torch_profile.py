"""What PyTorch's profiler says of a candidate: how many operators or kernels a call runs, which
take the time, and how much of it goes into copies and casts.

On a GPU the rows are kernels and their device time. On a CPU they are the operators that the
candidate calls, and the number that the dispatcher sees stands for the launches. Standard library
only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from optimizer.evaluation.collectors.job import Collected, Job, Metric, failed, refused
from optimizer.evaluation.collectors.probe import DeviceKind, tool

NAME: Final = "torch_profiler"
SECONDS = 120.0
CALLS = 5
MOVES = re.compile(
    r"copy|memcpy|contiguous|aten::_?to\b|_to_copy|direct_copy|cat\b|CatArray|transpose_",
    re.IGNORECASE,
)
# Allocations and views that do nothing, and the profiler's own rows.
IDLE = re.compile(
    r"^aten::(?:empty\w*|as_strided|view|_?unsafe_view|reshape|resize_|t|expand|select|slice|detach\w*"
    r"|transpose|unsqueeze|squeeze|permute|item|_local_scalar_dense|lift_fresh|result_type)$"
    r"|^Profiler|^\[memory\]|^cuda[A-Z]|^cu[A-Z]|^hip[A-Z]|^Activity Buffer|^Runtime"
)


def collect(job: Job) -> Collected:
    """Run the candidate under the profiler."""
    known = tool(NAME)
    if not known.available:
        return refused(NAME, known.reason)
    job = job.calling(CALLS)
    done = job.run(job.command(NAME), SECONDS)
    if not done.ok:
        return failed(NAME, done)
    told = json.loads(job.result(NAME).read_text(encoding="utf-8"))
    return parse(told, job.device, done.seconds)


def parse(told: Mapping[str, Any], device: DeviceKind, seconds: float = 0.0) -> Collected:
    """From what the driver saw: {calls, wall_us, events: [{name, device, ...}], operators}."""
    calls = told["calls"]
    rows = _rows(told["events"], device)
    total = sum(row["us"] for row in rows)
    if not rows or total <= 0:
        return refused(NAME, "the profiler saw no operator of the candidate", seconds)
    kernels = [
        {
            "name": row["name"],
            "calls": row["calls"] / calls,
            "us": row["us"] / calls,
            "pct": round(100 * row["us"] / total, 2),
        }
        for row in sorted(rows, key=lambda row: -row["us"])
    ]
    metrics: dict[str, Metric] = {
        "kernel_launches": _launches(told, rows, device),
        "copies_pct": round(sum(k["pct"] for k in kernels if MOVES.search(k["name"])), 2),
    }
    return Collected(NAME, metrics, kernels, seconds=seconds)


def _rows(events: Sequence[Mapping[str, Any]], device: DeviceKind) -> list[dict[str, Any]]:
    """Kernels on a GPU, outermost operators on a CPU."""
    field = "device_us" if device == "cuda" else "cpu_us"
    return [
        {"name": event["name"], "calls": event["calls"], "us": event[field]}
        for event in events
        if event["device"] == device and event[field] > 0 and not IDLE.search(event["name"])
    ]


def _launches(
    told: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], device: DeviceKind
) -> float:
    """Of one call."""
    if device == "cuda":
        return sum(float(row["calls"]) for row in rows) / float(told["calls"])
    names = {name.replace(".", "::"): count for name, count in told["operators"].items()}
    return float(sum(count for name, count in names.items() if not IDLE.search(name)))
