"""Everything that can be collected of one candidate on one device, in an order that keeps the most
telling first. A collector that fails costs its figures, never the evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence

from optimizer.evaluation.collectors import ncu, perf, proton, torch_profile
from optimizer.evaluation.collectors.job import Collected, Job


def collect_all(job: Job) -> list[Collected]:
    """Counters, then times by kernel; Proton only where ncu told no times."""
    if job.device == "cpu":
        return [perf.collect(job), torch_profile.collect(job)]
    found = [ncu.collect(job), torch_profile.collect(job)]
    if not any(collected.kernels for collected in found):
        found.append(proton.collect(job))
    return found


def refusals(found: Sequence[Collected]) -> dict[str, str]:
    """Collector -> why it told nothing."""
    return {c.collector: c.not_measured for c in found if c.not_measured}
