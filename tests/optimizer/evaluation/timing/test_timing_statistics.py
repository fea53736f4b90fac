"""Ratios of intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from optimizer.evaluation.records import Interval
from optimizer.evaluation.timing.measure import _ratio
from optimizer.evaluation.timing.policy import BETWEEN, PLACES_NS, TimingPolicy
from optimizer.evaluation.timing.statistics import independent_ratio


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
