"""Block lengths, and timing on a busy machine, with synthetic blocks."""

from __future__ import annotations

import math
import os
import statistics
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from optimizer.evaluation.evaluator import with_size
from optimizer.evaluation.isolation.runner_process import RunnerProcess
from optimizer.evaluation.loaded_kernel import LoadedKernel, TimedBlock
from optimizer.evaluation.records import CaseTiming, Interval
from optimizer.evaluation.roofline import CaseWork
from optimizer.evaluation.runner.defences import Defences
from optimizer.evaluation.settings import BETWEEN, PLACES_NS, TimingPolicy
from optimizer.evaluation.timing.measure import (
    BUSY_FROM_THE_START,
    TimedSide,
    TimingResult,
    _ratio,
    _with_rough,
    measure,
)
from optimizer.evaluation.timing.statistics import independent_ratio
from tests.optimizer.evaluation.timing.timed_blocks import timed_block

POLICY = TimingPolicy(block_ms=30.0, narrow=0.0, between=0.018, threads=0, quiet=0.05, walls=2.0)
CALL_NS = 300_000
SLOW_CALLS = 10_000  # so that calibration is one block of each side


class BusySide(TimedSide):
    """Synthetic blocks. Those of the `disturbed` pairs waited for half of their time."""

    disturbed: frozenset[int] = frozenset()
    others_share: float | None = None  # CPU time of other work, if known
    slower: float = 1.0  # factor of the candidate's calls in disturbed pairs
    blocks: int = 0

    def run(self, seed: int, calls: int, seconds: float, secret: int = 0) -> TimedBlock:
        pair = self.blocks - 1  # the first block calibrates
        self.blocks += 1
        each = CALL_NS * SLOW_CALLS if pair < 0 else CALL_NS
        if self.name == "candidate" and pair in self.disturbed:
            each = round(self.slower * each)
        times = (each,) * calls
        waited = sum(times) // 2 if pair in self.disturbed else 0
        return timed_block(
            times,
            spans=((calls, sum(times), waited),),
            total_ns=sum(times),
            wall_ns=sum(times),
            waited_ns=waited,
            others_ns=None if self.others_share is None else self.others_share * sum(times),
        )


def measured(
    disturbed: set[int], others: float | None = None, slower: float = 1.0
) -> tuple[TimingResult, int]:
    """The result, and the number of pairs."""
    runner = SimpleNamespace(pid=os.getpid(), children=list, settings=SimpleNamespace(device="cpu"))
    sides = []
    for name in ("baseline", "candidate"):
        kernel = cast(LoadedKernel, SimpleNamespace(outputs=()))
        side = BusySide(name, cast(RunnerProcess, runner), kernel, trusted=name == "baseline")
        side.disturbed, side.others_share = frozenset(disturbed), others
        side.slower = slower
        sides.append(side)
    result = measure(
        "main",
        baseline=sides[0],
        candidate=sides[1],
        policy=POLICY,
        compare=lambda ours, theirs: None,
        compare_samples=lambda ours, theirs: None,
        seed=1,
        defences=Defences(),
    )
    return result, sides[0].blocks - 1


@pytest.mark.parametrize(
    "disturbed, pairs",
    [
        (set(range(24)), BUSY_FROM_THE_START),
        ({*range(24)} - {3}, 20),  # with the 19th disturbed pair, at most five can be quiet
        ({*range(24)} - {0, 1, 2, 3, 4}, 24),
    ],
)
def test_timing_ends_once_it_is_impossible(disturbed: set[int], pairs: int) -> None:
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
        (0.1, "repeat"),  # more than allowed in a quiet block
        (0.5, "repeat"),
        (None, "repeat"),
    ],
)
def test_threads_waiting_for_each_other_are_not_other_work(
    others: float | None, state: str
) -> None:
    """Every block of both sides waits for half of its time."""
    timing = measured(set(range(24)), others)[0].timing
    assert timing.state == state
    if timing.speedup is not None:
        assert timing.speedup.low < 1.0 < timing.speedup.high


@pytest.mark.parametrize("waiting, speedup", [({1, 3, 5}, 1.0), ({*range(24)} - {1, 3, 5}, 0.5)])
def test_few_waiting_pairs_are_dropped_and_many_count(waiting: set[int], speedup: float) -> None:
    """Two threads that share a processor for a while are not a property of the kernel."""
    timing = measured(waiting, others=0.0, slower=2.0)[0].timing
    assert timing.state == "measured" and timing.speedup is not None
    assert timing.speedup.value == pytest.approx(speedup, rel=0.1)


def test_fastest_call_is_the_rough_time() -> None:
    timing = measured(set(range(24)))[0].timing
    assert timing.rough_us == timing.rough_baseline_us == CALL_NS / 1e3
    assert timing.candidate_us is None and timing.baseline_us is None
    assert measured(set())[0].timing.rough_us is None


def test_disagreeing_blocks_give_no_figure() -> None:
    """Half of the pairs, in which threads wait for each other, take ten times as long."""
    timing = measured({*range(0, 24, 2), 1}, others=0.0, slower=10.0)[0].timing
    assert timing.state == "repeat" and timing.speedup is None
    assert "the blocks disagree about the speed-up, from 0.1x to 1x" in timing.reason


def test_rough_time_needs_agreement_of_both_halves() -> None:
    quick = _with_rough(CaseTiming("main", "repeat"), [_blocks(90, 30), _blocks(88, 31)])
    assert (quick.rough_baseline_us, quick.rough_us) == (0.088, 0.03)
    for pairs in ([_blocks(90, 30)], [_blocks(90, 30), _blocks(90, 3000)], []):
        timing = _with_rough(CaseTiming("main", "repeat"), pairs)
        assert timing.rough_us is None and timing.rough_baseline_us is None


def _blocks(baseline: int, candidate: int) -> tuple[TimedBlock, TimedBlock]:
    sides = (SimpleNamespace(times=(2 * ns, ns)) for ns in (baseline, candidate))
    return cast("tuple[TimedBlock, TimedBlock]", tuple(sides))


def test_machine_that_becomes_idle_in_time_gives_time() -> None:
    result, made = measured({*range(24)} - {9, *range(19, 24)})
    assert (result.timing.state, made) == ("measured", 24)
    assert result.timing.speedup is not None
    assert result.timing.speedup.value == pytest.approx(1.0)


def test_case_too_small_to_time_is_reported_after_a_busy_machine() -> None:
    busy = measured(set(range(24)))[0].timing
    small = with_size(busy, CaseWork("softmax", "float32", 200_000, 100_596))
    assert "300,596 bytes, and no operation that is counted, are too" in small.reason
    slow = replace(busy, rough_baseline_us=17_000.0)  # a long call, with uncounted work
    assert with_size(slow, CaseWork("softmax", "float32", 200_000, 100_596)) == slow
    assert small.reason.startswith(busy.reason) and small.state == "repeat"
    assert with_size(busy, CaseWork("softmax", "float32", 1 << 20, 1 << 20)) == busy


# -- block lengths

SHORT_CALL_NS, BETWEEN_NS = 150_000, 450_000


class CostlySide(TimedSide):
    """Synthetic blocks, each with fixed costs of `fixed_ns`."""

    fixed_ns: int = 0
    lengths: list[int]

    def run(self, seed: int, calls: int, seconds: float, secret: int = 0) -> TimedBlock:
        times = (SHORT_CALL_NS,) * calls
        self.lengths.append(calls)
        return timed_block(
            times,
            spans=((calls, sum(times), 0),),
            refresh_ns=BETWEEN_NS // 2 * calls,
            total_ns=(SHORT_CALL_NS + BETWEEN_NS) * calls,
            wall_ns=self.fixed_ns + (SHORT_CALL_NS + BETWEEN_NS) * calls,
        )


@pytest.mark.parametrize("fixed_ns", [0, 3_000_000, 30_000_000])
@pytest.mark.parametrize(
    "walls, calls",
    [
        (2.0, 16 / 0.6),  # limited by wall time: 16 ms, 0.6 per call
        (100.0, 8 / 0.15),  # limited by the time of the calls
    ],
)
def test_fixed_costs_of_a_block_do_not_reduce_its_calls(
    fixed_ns: int, walls: float, calls: float
) -> None:
    runner = SimpleNamespace(pid=os.getpid(), children=list, settings=SimpleNamespace(device="cpu"))
    sides = []
    for name in ("baseline", "candidate"):
        kernel = cast(LoadedKernel, SimpleNamespace(outputs=()))
        side = CostlySide(name, cast(RunnerProcess, runner), kernel, trusted=name == "baseline")
        side.fixed_ns, side.lengths = fixed_ns, []
        sides.append(side)
    policy = TimingPolicy(
        block_ms=8.0, min_pairs=24, narrow=0.0, between=0.018, quiet=100.0, walls=walls
    )
    result = measure(
        "main",
        baseline=sides[0],
        candidate=sides[1],
        policy=policy,
        compare=lambda ours, theirs: None,
        compare_samples=lambda ours, theirs: None,
        seed=1,
        defences=Defences(compare_clocks=False, charge_hidden_work=False, charge_late_work=False),
    )
    assert result.timing.state == "measured"
    pairs = sides[0].lengths[-24:]
    assert statistics.mean(pairs) == pytest.approx(calls, rel=0.15)
    assert 0.55 * calls < min(pairs) and max(pairs) < 1.45 * calls


# -- ratios of intervals


def test_errors_of_independent_times_add_as_squares() -> None:
    """3 and 4 per cent of a log unit add to 5; the wider side stays wider."""
    upper = Interval(2.0, 2.0 * math.exp(-0.03), 2.0 * math.exp(0.06), 20)
    lower = Interval(1.25, 1.25 * math.exp(-0.08), 1.25 * math.exp(0.04), 8)
    interval = independent_ratio(upper, lower)
    assert interval is not None and interval.n == 8
    assert interval.value == pytest.approx(1.6)
    assert math.log(interval.value / interval.low) == pytest.approx(0.05)
    assert math.log(interval.high / interval.value) == pytest.approx(0.10)


@pytest.mark.parametrize("bounds", [(0.0, math.inf), (0.0, 2.0), (1.0, math.inf)])
def test_unbounded_interval_has_no_ratio(bounds: tuple[float, float]) -> None:
    known, unbounded = Interval(2.0, 1.9, 2.1, 20), Interval(1.5, *bounds, 1)
    assert independent_ratio(known, unbounded) is None
    assert independent_ratio(unbounded, known) is None


@pytest.mark.parametrize("call_us, least, most", [(5.0, 0.11, 0.14), (30.0, 0.012, 0.02)])
def test_intervals_of_short_calls_include_effect_of_addresses(
    call_us: float, least: float, most: float
) -> None:
    """One pair of processes does not show it."""
    policy = TimingPolicy(between=BETWEEN["cuda"], places_ns=PLACES_NS["cuda"], quiet=1.0)
    half = _half_width(call_us, policy)
    assert least < half < most
    plain = _half_width(call_us, replace(policy, places_ns=0.0))
    assert plain < half


def _half_width(call_us: float, policy: TimingPolicy) -> float:
    times = [call_us * 1e3] * 6
    return math.log(_ratio(times, times, policy).high)
