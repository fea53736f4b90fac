"""What Triton's own profiler says: kernels by name with their launches and time.

Reads the tree that Proton writes in Hatchet's form. Knows nothing of counters: Proton has times.
Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from optimizer.evaluation.collectors.job import Collected, Job, failed, refused
from optimizer.evaluation.collectors.probe import tool

NAME: Final = "proton"
SECONDS = 120.0
CALLS = 5


def collect(job: Job) -> Collected:
    """Run the candidate under Proton; on a GPU only."""
    known = tool(NAME)
    if not known.available:
        return refused(NAME, known.reason)
    if job.device != "cuda":
        return refused(NAME, "Proton times kernels of a GPU, and there is none")
    job = job.calling(CALLS)
    done = job.run(job.command(NAME), SECONDS)
    if not done.ok:
        return failed(NAME, done)
    told = json.loads(job.result(NAME).read_text(encoding="utf-8"))
    return parse(told["tree"], told["calls"], done.seconds)


def parse(tree: Sequence[Mapping[str, Any]], calls: int, seconds: float = 0.0) -> Collected:
    """tree: Hatchet's literal form, [{frame: {name}, metrics, children}, ...]."""
    found: dict[str, list[float]] = {}
    for name, count, time_ns in _leaves(tree):
        row = found.setdefault(name, [0.0, 0.0])
        row[0] += count
        row[1] += time_ns
    total = sum(time_ns for _, time_ns in found.values())
    if not total:
        return refused(NAME, "Proton saw no kernel", seconds)
    kernels = [
        {
            "name": name,
            "calls": count / calls,
            "us": time_ns / 1e3 / calls,
            "pct": round(100 * time_ns / total, 2),
        }
        for name, (count, time_ns) in sorted(found.items(), key=lambda item: -item[1][1])
    ]
    launches = sum(count for count, _ in found.values()) / calls
    return Collected(NAME, {"num_launches": launches}, kernels, seconds=seconds)


def _leaves(nodes: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float, float]]:
    """Name, launches and nanoseconds of every frame that has a time of its own."""
    for node in nodes:
        if "frame" not in node:
            continue  # the last entry describes devices
        metrics = node.get("metrics", {})
        if "time (ns)" in metrics and not node.get("children"):
            yield node["frame"]["name"], float(metrics.get("count", 0)), float(metrics["time (ns)"])
        yield from _leaves(node.get("children", ()))
