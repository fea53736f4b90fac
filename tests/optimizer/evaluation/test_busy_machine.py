"""Timing where other work keeps the processors busy: it ends once no figure can come of it."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from optimizer.evaluation.attempt import with_size
from optimizer.evaluation.isolation.runner_process import RunnerProcess
from optimizer.evaluation.loaded_kernel import LoadedKernel
from optimizer.evaluation.roofline import Work
from optimizer.evaluation.timed_block import Block
from optimizer.evaluation.timing.blocks import (
    BUSY_FROM_THE_START,
    Measured,
    Side,
    TimingPolicy,
    measure,
)

POLICY = TimingPolicy(block_ms=30.0, narrow=0.0, between=0.018, threads=0, quiet=0.05)
CALL_NS = 300_000
SLOW_CALLS = 10_000  # so that calibration is one block of each side


class MadeUp(Side):
    """A side whose blocks are made up. Those of the pairs that `disturbed` names waited."""

    disturbed: frozenset[int] = frozenset()
    blocks: int = 0

    def run(self, seed: int, calls: int, seconds: float, secret: int = 0) -> Block:
        pair = self.blocks - 1  # the first block calibrates
        self.blocks += 1
        each = CALL_NS * SLOW_CALLS if pair < 0 else CALL_NS
        times = (each,) * calls
        waited = sum(times) // 2 if pair in self.disturbed else 0
        return Block(
            times=times,
            walls=times,
            spans=((calls, sum(times), waited),),
            refresh_ns=0,
            touch_ns=0,
            total_ns=sum(times),
            wall_ns=sum(times),
            waited_ns=waited,
            delayed_ns=0,
            busy_ns=0,
            threads=(1, 1),
            patched=False,
        )


def measured(disturbed: set[int]) -> tuple[Measured, int]:
    """The result, and how many pairs there were."""
    runner = SimpleNamespace(pid=os.getpid(), children=list, settings=SimpleNamespace(device="cpu"))
    sides = []
    for name in ("baseline", "candidate"):
        kernel = cast(LoadedKernel, SimpleNamespace(outputs=()))
        side = MadeUp(name, cast(RunnerProcess, runner), kernel, trusted=name == "baseline")
        side.disturbed = frozenset(disturbed)
        sides.append(side)
    result = measure(
        "main",
        baseline=sides[0],
        candidate=sides[1],
        policy=POLICY,
        compare=lambda ours, theirs: None,
        looks=lambda ours, theirs: None,
        seed=1,
        on=lambda *rows: True,
    )
    return result, sides[0].blocks - 1


@pytest.mark.parametrize(
    "disturbed, pairs",
    [
        (set(range(24)), BUSY_FROM_THE_START),
        ({*range(24)} - {3}, 20),  # the 19th that is disturbed: five more can be quiet at most
        ({*range(24)} - {0, 1, 2, 3, 4}, 24),
    ],
)
def test_it_ends_once_no_figure_can_come_of_it(disturbed: set[int], pairs: int) -> None:
    result, made = measured(disturbed)
    assert made == pairs
    assert result.timing.state == "repeat" and result.timing.speedup is None
    noisy = len(disturbed & set(range(pairs)))
    assert f"busy in {noisy} of {pairs} pairs of blocks" in result.timing.reason


def test_what_the_fastest_call_took_is_kept_as_rough_where_there_is_no_figure() -> None:
    timing = measured(set(range(24)))[0].timing
    assert timing.rough_us == timing.rough_baseline_us == CALL_NS / 1e3
    assert timing.candidate_us is None and timing.baseline_us is None
    assert measured(set())[0].timing.rough_us is None


def test_a_machine_that_calms_down_in_time_gives_a_figure() -> None:
    result, made = measured({*range(24)} - {9, *range(19, 24)})
    assert (result.timing.state, made) == ("measured", 24)
    assert result.timing.speedup is not None
    assert result.timing.speedup.value == pytest.approx(1.0)


def test_a_case_that_is_too_small_to_time_says_so_first() -> None:
    busy = measured(set(range(24)))[0].timing
    small = with_size(busy, Work("softmax", "float32", 200_000, 100_596))
    assert small.reason.startswith("300,596 bytes, and no operation that is counted, are too")
    slow = replace(busy, rough_baseline_us=17_000.0)  # a call shows work that nobody counts
    assert with_size(slow, Work("softmax", "float32", 200_000, 100_596)) == slow
    assert small.reason.endswith(busy.reason) and small.state == "repeat"
    assert with_size(busy, Work("softmax", "float32", 1 << 20, 1 << 20)) == busy
