"""Figures from figures."""

from __future__ import annotations

import math

import pytest

from optimizer.evaluation.records import Interval
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
