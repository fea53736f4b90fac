"""What the comparison of clocks says of blocks that were made up."""

from __future__ import annotations

import random

import pytest

from optimizer.evaluation.loaded_kernel import Block
from optimizer.evaluation.records import Flag
from optimizer.evaluation.timing.blocks import _integrity

CALLS = 20
FLUSH_NS = 60_000  # the device is still busy with it when a call begins


def block(time_ns: int, wall_ns: int, seed: int, skipped: float = 0.0) -> Block:
    """skipped: share of calls in which all the work is seen by the clock of the call."""
    chance = random.Random(seed)
    times, walls = [], []
    for _ in range(CALLS):
        seen = wall_ns if chance.random() < skipped else time_ns
        times.append(seen + chance.randrange(500))
        walls.append(wall_ns + FLUSH_NS + chance.randrange(500))
    total = sum(walls)
    return Block(
        times=tuple(times),
        walls=tuple(walls),
        spans=((CALLS, sum(times), 0),),
        refresh_ns=0,
        touch_ns=0,
        total_ns=total,
        wall_ns=total + 1_000_000,
        waited_ns=0,
        delayed_ns=0,
        busy_ns=0,
        threads=(1, 1),
        patched=False,
    )


def flags(candidate: tuple[int, int], skipped: float = 0.0) -> list[Flag]:
    theirs = [block(300_000, 300_000, seed) for seed in range(4)]
    ours = [block(*candidate, seed + 100, skipped) for seed in range(4)]
    return list(_integrity(theirs, ours, lambda *rows: True))


@pytest.mark.parametrize("took", [20_000, 100_000, 300_000, 900_000])
def test_an_honest_kernel_is_not_flagged_whatever_it_takes(took: int) -> None:
    assert flags((took, took)) == []


@pytest.mark.parametrize("skipped", [0.0, 0.3])
def test_work_on_another_stream_is_seen_though_not_in_every_call(skipped: float) -> None:
    """In some blocks every call waits for what the call before left behind."""
    (flag,) = flags((20_000, 300_000), skipped)
    assert (flag.defence, flag.severity) == (1, "reject")
    assert "outside the timed call" in flag.message
