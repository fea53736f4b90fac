"""Timing where other work keeps the processors busy: it ends once no figure can come of it."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from optimizer.evaluation.evaluator import with_size
from optimizer.evaluation.isolation.runner_process import RunnerProcess
from optimizer.evaluation.loaded_kernel import LoadedKernel, TimedBlock
from optimizer.evaluation.roofline import CaseWork
from optimizer.evaluation.timing.measure import (
    BUSY_FROM_THE_START,
    TimedSide,
    TimingPolicy,
    TimingResult,
    measure,
)

POLICY = TimingPolicy(block_ms=30.0, narrow=0.0, between=0.018, threads=0, quiet=0.05, walls=2.0)
CALL_NS = 300_000
SLOW_CALLS = 10_000  # so that calibration is one block of each side


class MadeUp(TimedSide):
    """A side whose blocks are made up. Those of the pairs that `disturbed` names waited."""

    disturbed: frozenset[int] = frozenset()
    others_share: float | None = None  # of a processor that other work had, as far as is known
    slower: float = 1.0  # the candidate's calls of those pairs
    blocks: int = 0

    def run(self, seed: int, calls: int, seconds: float, secret: int = 0) -> TimedBlock:
        pair = self.blocks - 1  # the first block calibrates
        self.blocks += 1
        each = CALL_NS * SLOW_CALLS if pair < 0 else CALL_NS
        if self.name == "candidate" and pair in self.disturbed:
            each = round(self.slower * each)
        times = (each,) * calls
        waited = sum(times) // 2 if pair in self.disturbed else 0
        return TimedBlock(
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
            others_ns=None if self.others_share is None else self.others_share * sum(times),
        )


def measured(
    disturbed: set[int], others: float | None = None, slower: float = 1.0
) -> tuple[TimingResult, int]:
    """The result, and how many pairs there were."""
    runner = SimpleNamespace(pid=os.getpid(), children=list, settings=SimpleNamespace(device="cpu"))
    sides = []
    for name in ("baseline", "candidate"):
        kernel = cast(LoadedKernel, SimpleNamespace(outputs=()))
        side = MadeUp(name, cast(RunnerProcess, runner), kernel, trusted=name == "baseline")
        side.disturbed, side.others_share = frozenset(disturbed), others
        side.slower = slower
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


@pytest.mark.parametrize(
    "others, state",
    [
        (0.0, "measured"),
        (0.03, "measured"),
        (0.1, "repeat"),  # of a processor: more than its share of a quiet block
        (0.5, "repeat"),
        (None, "repeat"),
    ],
)
def test_threads_that_wait_for_each_other_are_no_other_work(
    others: float | None, state: str
) -> None:
    """Every block of both sides waits for half of its time."""
    timing = measured(set(range(24)), others)[0].timing
    assert timing.state == state
    if timing.speedup is not None:
        assert timing.speedup.low < 1.0 < timing.speedup.high


@pytest.mark.parametrize("waiting, speedup", [({1, 3, 5}, 1.0), ({*range(24)} - {1, 3, 5}, 0.5)])
def test_a_few_pairs_that_wait_by_themselves_are_left_out_and_many_count(
    waiting: set[int], speedup: float
) -> None:
    """Two threads that share a processor for a while say nothing about a kernel."""
    timing = measured(waiting, others=0.0, slower=2.0)[0].timing
    assert timing.state == "measured" and timing.speedup is not None
    assert timing.speedup.value == pytest.approx(speedup, rel=0.1)


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
    small = with_size(busy, CaseWork("softmax", "float32", 200_000, 100_596))
    assert small.reason.startswith("300,596 bytes, and no operation that is counted, are too")
    slow = replace(busy, rough_baseline_us=17_000.0)  # a call shows work that nobody counts
    assert with_size(slow, CaseWork("softmax", "float32", 200_000, 100_596)) == slow
    assert small.reason.endswith(busy.reason) and small.state == "repeat"
    assert with_size(busy, CaseWork("softmax", "float32", 1 << 20, 1 << 20)) == busy
