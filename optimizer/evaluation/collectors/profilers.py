"""What PyTorch's profiler and Triton's Proton report of a candidate: which kernels or operators a
call runs, which take the time, and how much of it goes into copies and casts. And `collect_all`:
every collector that a device has, in turn.

`retrieval.profiles` reads what they report. Proton has times, no counters. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from optimizer.evaluation.collectors import ncu, perf
from optimizer.evaluation.collectors.job import Collected, Job, Metric, failed, refused
from optimizer.evaluation.collectors.probe import DeviceKind, tool
from retrieval.profiles.profile import time_shares
from retrieval.profiles.proton import kernel_times
from retrieval.profiles.torch_profile import read_events

TORCH: Final = "torch_profiler"
PROTON: Final = "proton"
SECONDS = 120.0
CALLS = 5


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
    metrics, kernels = read_events(profile, device)
    if not kernels:
        return refused(TORCH, "the profiler saw no operator of the candidate", seconds)
    rows = time_shares(kernels, profile["calls"])
    return Collected(TORCH, metrics, rows, seconds=seconds)


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
    """Summarise Proton's tree of so many calls."""
    kernels = kernel_times(tree)
    if not any(kernel.us for kernel in kernels):
        return refused(PROTON, "Proton saw no kernel", seconds)
    metrics: dict[str, Metric] = {"num_launches": sum(k.calls for k in kernels) / calls}
    return Collected(PROTON, metrics, time_shares(kernels, calls), seconds=seconds)


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
