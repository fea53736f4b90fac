"""Figures from figures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from optimizer.evaluation.loaded_kernel import TimedBlock
from optimizer.evaluation.records import Interval
from optimizer.evaluation.timing import measure as blocks
from optimizer.evaluation.timing.measure import BETWEEN, PLACES_NS, TimingPolicy
from optimizer.evaluation.timing.statistics import independent_ratio


def test_errors_of_independent_figures_add_as_squares() -> None:
    """3 and 4 per cent of a log unit are 5; a side that is wider than the other stays wider."""
    upper = Interval(2.0, 2.0 * math.exp(-0.03), 2.0 * math.exp(0.06), 20)
    lower = Interval(1.25, 1.25 * math.exp(-0.08), 1.25 * math.exp(0.04), 8)
    interval = independent_ratio(upper, lower)
    assert interval is not None and interval.n == 8
    assert interval.value == pytest.approx(1.6)
    assert math.log(interval.value / interval.low) == pytest.approx(0.05)
    assert math.log(interval.high / interval.value) == pytest.approx(0.10)


@pytest.mark.parametrize("bounds", [(0.0, math.inf), (0.0, 2.0), (1.0, math.inf)])
def test_of_an_unbounded_figure_there_is_no_ratio(bounds: tuple[float, float]) -> None:
    known, unbounded = Interval(2.0, 1.9, 2.1, 20), Interval(1.5, *bounds, 1)
    assert independent_ratio(known, unbounded) is None
    assert independent_ratio(unbounded, known) is None


@pytest.mark.parametrize("call_us, least, most", [(5.0, 0.11, 0.14), (30.0, 0.012, 0.02)])
def test_an_interval_of_short_calls_knows_that_their_arrays_lie_elsewhere(
    call_us: float, least: float, most: float
) -> None:
    """Within one pair of processes nothing of it is seen."""
    policy = TimingPolicy(between=BETWEEN["cuda"], places_ns=PLACES_NS["cuda"], quiet=1.0)
    half = _half_width(call_us, policy)
    assert least < half < most
    plain = _half_width(call_us, replace(policy, places_ns=0.0))
    assert plain < half


def _half_width(call_us: float, policy: TimingPolicy) -> float:
    calls = 10
    times = (int(call_us * 1e3),) * calls
    block = TimedBlock(
        times=times,
        walls=times,
        spans=((calls, sum(times), 0),),
        refresh_ns=0,
        touch_ns=0,
        total_ns=sum(times),
        wall_ns=sum(times),
        waited_ns=0,
        delayed_ns=0,
        busy_ns=0,
        threads=(1, 1),
        patched=False,
    )
    interval = blocks._ratio([(block, block)] * 6, policy, 0.0)
    return math.log(interval.high)
