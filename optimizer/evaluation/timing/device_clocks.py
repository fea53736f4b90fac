"""What the clocks of a GPU say beside the time of a call: how long the device stays busy when the
stream of the call is done."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from optimizer.evaluation.timed_block import Block

# From where on what the device does after a call counts as the candidate's: a share of a call, and
# more. By events on the device, and by the clock of the host, for which a process has to wake up.
IDLE_SHARE, IDLE_NS = 0.02, 4_000  # joining a stream of its own costs 1 to 3 us
WALL_SHARE, WALL_NS = 0.05, 25_000


def late_ns(blocks: Sequence[Block]) -> float:
    """How long the device stays busy, typically, after the stream of the call is done. Work on
    another stream is there in most calls, not in all: some wait for what the one before left."""
    if all(block.idles for block in blocks):
        return statistics.median(ns for block in blocks for ns in block.idles)
    return _wall_late_ns(blocks)


def _wall_late_ns(blocks: Sequence[Block]) -> float:
    return statistics.median(
        wall - took for block in blocks for wall, took in zip(block.walls, block.times, strict=True)
    )


def charged_late_ns(pairs: Sequence[tuple[Block, Block]]) -> float:
    """Nanoseconds a call for which the device goes on with the candidate's work after its call,
    beside the reference's, where they are more than chance. They count as its time: a stream that
    nobody waits for, or an end that is recorded too early, gains nothing. Where the device does not
    say so, the clock of the host must.

    The least over all pairs: a delay is in one of them, hidden work in each.
    """
    if not pairs or all(block.walls == block.times for pair in pairs for block in pair):
        return 0.0
    own = statistics.median(ours.mean_ns for _, ours in pairs)
    late = min(late_ns([ours]) - late_ns([theirs]) for theirs, ours in pairs)
    if late > IDLE_SHARE * own + IDLE_NS and all(b.idles for pair in pairs for b in pair):
        return late
    wall = min(_wall_late_ns([ours]) - _wall_late_ns([theirs]) for theirs, ours in pairs)
    return wall if wall > WALL_SHARE * own + WALL_NS else 0.0
