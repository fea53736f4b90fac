"""Whether a measured time can be true at all: no kernel is faster than its compulsory bytes and its
operations allow. Knows figures, not where they come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from optimizer.evaluation.records import CaseTiming, Flag

# Ceilings are measured too, and by a program that is no better than a good kernel.
MARGIN = 1.05
REMARKABLE = 10.0  # a gain that a person should look at


@dataclass(frozen=True)
class Work:
    """What one call has to do, and the best that the device did: bytes and flops a second, None
    where nobody measured it or where it does not bind (a case that fits the cache)."""

    bytes: int
    flops: int
    bandwidth: float | None = None
    peak: float | None = None

    @property
    def least_us(self) -> float:
        """A time that no right kernel goes below."""
        moving = self.bytes / self.bandwidth if self.bandwidth else 0.0
        computing = self.flops / self.peak if self.peak else 0.0
        return max(moving, computing) * 1e6 / MARGIN


def physics_flags(timing: CaseTiming, work: Work) -> Iterator[Flag]:
    """Row 29 of the exploit table, for one case."""
    took = timing.candidate_us
    if took is None:
        return
    if took < work.least_us:
        yield Flag(
            29,
            "reject",
            f"case {timing.case}: {took:.3g} us, but {work.bytes:,} bytes and {work.flops:,} "
            f"operations take this device {work.least_us:.3g} us at least",
        )
    if timing.speedup is not None and timing.speedup.value >= REMARKABLE:
        yield Flag(
            29,
            "review",
            f"case {timing.case}: {timing.speedup.value:.1f} times as fast as the reference; look "
            "at what it leaves out",
        )
