"""What PyTorch's profiler and Triton's Proton report of a candidate: which kernels or operators a
call runs, which take the time, and how much of it goes into copies and casts. And `collect_all`:
every collector that a device has, in turn.

On a GPU the rows are kernels and their device time. On a CPU they are the operators that the
candidate calls, and the number that the dispatcher sees stands for the launches. Proton writes its
tree in Hatchet's form and has times, no counters. Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from optimizer.evaluation.collectors import ncu, perf
from optimizer.evaluation.collectors.job import Collected, Job, Metric, failed, refused
from optimizer.evaluation.collectors.probe import DeviceKind, tool

TORCH: Final = "torch_profiler"
PROTON: Final = "proton"
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


def collect_torch_profile(job: Job) -> Collected:
    """Run the candidate under PyTorch's profiler."""
    known = tool(TORCH)
    if not known.available:
        return refused(TORCH, known.reason)
    job = job.calling(CALLS)
    done = job.run(job.command(TORCH), SECONDS)
    if not done.ok:
        return failed(TORCH, done)
    profile = json.loads(job.result(TORCH).read_text(encoding="utf-8"))
    return parse_torch_profile(profile, job.device, done.seconds)


def parse_torch_profile(
    profile: Mapping[str, Any], device: DeviceKind, seconds: float = 0.0
) -> Collected:
    """Summarise what the driver saw: {calls, wall_us, events: [{name, device, ...}], operators}."""
    calls = profile["calls"]
    rows = _busy_rows(profile["events"], device)
    total = sum(row["us"] for row in rows)
    if not rows or total <= 0:
        return refused(TORCH, "the profiler saw no operator of the candidate", seconds)
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
        "kernel_launches": _launches(profile, rows, device),
        "copies_pct": round(sum(k["pct"] for k in kernels if MOVES.search(k["name"])), 2),
    }
    return Collected(TORCH, metrics, kernels, seconds=seconds)


def _busy_rows(events: Sequence[Mapping[str, Any]], device: DeviceKind) -> list[dict[str, Any]]:
    """Kernels on a GPU, outermost operators on a CPU."""
    field = "device_us" if device == "cuda" else "cpu_us"
    return [
        {"name": event["name"], "calls": event["calls"], "us": event[field]}
        for event in events
        if event["device"] == device and event[field] > 0 and not IDLE.search(event["name"])
    ]


def _launches(
    profile: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], device: DeviceKind
) -> float:
    """Of one call."""
    if device == "cuda":
        return sum(float(row["calls"]) for row in rows) / float(profile["calls"])
    names = {name.replace(".", "::"): count for name, count in profile["operators"].items()}
    return float(sum(count for name, count in names.items() if not IDLE.search(name)))


def collect_proton(job: Job) -> Collected:
    """Run the candidate under Proton; on a GPU only."""
    known = tool(PROTON)
    if not known.available:
        return refused(PROTON, known.reason)
    if job.device != "cuda":
        return refused(PROTON, "Proton times kernels of a GPU, and there is none")
    job = job.calling(CALLS)
    done = job.run(job.command(PROTON), SECONDS)
    if not done.ok:
        return failed(PROTON, done)
    profile = json.loads(job.result(PROTON).read_text(encoding="utf-8"))
    return parse_proton(profile["tree"], profile["calls"], done.seconds)


def parse_proton(tree: Sequence[Mapping[str, Any]], calls: int, seconds: float = 0.0) -> Collected:
    """Summarise Hatchet's literal form, [{frame: {name}, metrics, children}, ...], of so many
    calls."""
    totals: dict[str, list[float]] = {}
    for name, count, time_ns in _leaves(tree):
        row = totals.setdefault(name, [0.0, 0.0])
        row[0] += count
        row[1] += time_ns
    total = sum(time_ns for _, time_ns in totals.values())
    if not total:
        return refused(PROTON, "Proton saw no kernel", seconds)
    kernels = [
        {
            "name": name,
            "calls": count / calls,
            "us": time_ns / 1e3 / calls,
            "pct": round(100 * time_ns / total, 2),
        }
        for name, (count, time_ns) in sorted(totals.items(), key=lambda item: -item[1][1])
    ]
    launches = sum(count for count, _ in totals.values()) / calls
    return Collected(PROTON, {"num_launches": launches}, kernels, seconds=seconds)


def _leaves(nodes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float, float]]:
    """Name, launches and nanoseconds of every frame that has a time of its own."""
    for node in nodes:
        if "frame" not in node:
            continue  # the last entry describes devices
        metrics = node.get("metrics", {})
        if "time (ns)" in metrics and not node.get("children"):
            yield node["frame"]["name"], float(metrics.get("count", 0)), float(metrics["time (ns)"])
        yield from _leaves(node.get("children", ()))


def collect_all(job: Job) -> list[Collected]:
    """Reports of counters, then of times by kernel; of Proton only where ncu reported no times. A
    collector that fails costs its figures, never the evaluation."""
    if job.device == "cpu":
        return [perf.collect(job), collect_torch_profile(job)]
    reports = [ncu.collect(job), collect_torch_profile(job)]
    if not any(collected.kernels for collected in reports):
        reports.append(collect_proton(job))
    return reports


def refusals(reports: Sequence[Collected]) -> dict[str, str]:
    """Collector to the reason why it reported nothing."""
    return {c.collector: c.not_measured for c in reports if c.not_measured}
