"""Figures from pairs of blocks: a ratio with its interval, and means over cases.

Standard library only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from optimizer.evaluation.records import Interval

NORMAL = 1.96
TRIM = 0.1  # share of pairs dropped at each end
# Two-sided 95 % quantiles of Student's t for 1 .. 30 degrees of freedom.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def ratio_interval(
    baseline: Sequence[float], candidate: Sequence[float], between: float
) -> Interval:
    """Baseline over candidate: the trimmed mean of log ratios of the pairs, with its 95 % interval.

    `between` is the standard deviation, in log units, of the ratio of two processes that run the
    same code. They differ by the addresses of their memory, which pairs within the same two
    processes do not show; `python -m benchmarks.evaluation.checks` measures it. Raises ValueError
    or ZeroDivisionError for times that are not positive.
    """
    centre, within = log_ratio(baseline, candidate)
    half = math.hypot(within, NORMAL * between)
    return Interval(
        math.exp(centre), math.exp(centre - half), math.exp(centre + half), len(baseline)
    )


def log_ratio(baseline: Sequence[float], candidate: Sequence[float]) -> tuple[float, float]:
    """The trimmed mean of the pairs' log ratios and the half-width of its 95 % interval.

    The interval is Tukey and McLaughlin's for a trimmed mean (winsorised variance).
    """
    logs = sorted(math.log(b / c) for b, c in zip(baseline, candidate, strict=True))
    n = len(logs)
    cut = int(n * TRIM)
    trimmed = logs[cut : n - cut]
    centre = statistics.fmean(trimmed)
    half = math.inf
    if n >= 2:
        low, high = trimmed[0], trimmed[-1]
        winsorised = [min(max(log, low), high) for log in logs]
        spread = statistics.stdev(winsorised) / ((1 - 2 * cut / n) * math.sqrt(n))
        half = quantile(len(trimmed) - 1) * spread
    return centre, half


def typical(times: Sequence[float]) -> tuple[float, float]:
    """The geometric mean of positive times of one program, and the half-width of its 95 % interval
    in log units, which is 0, for unknown, for a single time."""
    logs = [math.log(time) for time in times]
    centre, half = statistics.fmean(logs), 0.0
    if len(logs) > 1:
        half = quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(centre), half


def quantile(degrees: int) -> float:
    """Student's t at 97.5 %."""
    return _T[min(max(degrees, 1), len(_T)) - 1] if degrees <= len(_T) else NORMAL


def independent_ratio(upper: Interval, lower: Interval) -> Interval | None:
    """upper / lower of two figures from separate sessions; None if a bound of either is 0 or
    infinite, as after one pair of blocks.

    Errors are independent, so their distances from the two values add as squares, on the log scale
    and for each side separately: the interval of a difference by Zou and Donner, Statistics in
    Medicine 27 (2008) 1693-1702.
    """
    if not (bounded(upper) and bounded(lower)):
        return None
    centre = math.log(upper.value) - math.log(lower.value)
    down = math.hypot(math.log(upper.value / upper.low), math.log(lower.high / lower.value))
    up = math.hypot(math.log(upper.high / upper.value), math.log(lower.value / lower.low))
    value, low, high = (math.exp(centre + shift) for shift in (0.0, -down, up))
    return Interval(value, low, high, min(upper.n, lower.n))


def bounded(figure: Interval) -> bool:
    """Whether both bounds are finite and positive; after one pair of blocks they are not."""
    return 0 < figure.low <= figure.value <= figure.high < math.inf


def combined(intervals: Sequence[tuple[Interval, float]]) -> Interval:
    """The weighted geometric mean of (interval, weight) pairs over cases; errors of the cases are
    independent."""
    total = sum(weight for _, weight in intervals)
    centre = sum(weight * math.log(i.value) for i, weight in intervals) / total
    halves = [weight * (math.log(i.high) - math.log(i.low)) / 2 for i, weight in intervals]
    half = math.sqrt(sum(h * h for h in halves)) / total
    n = min(i.n for i, _ in intervals)
    return Interval(math.exp(centre), math.exp(centre - half), math.exp(centre + half), n)
