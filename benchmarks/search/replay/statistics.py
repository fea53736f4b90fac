"""How arms compare: ratios of candidates, with intervals over problems and seeds.

A ratio is the geometric mean over problems of (geometric mean over seeds of one arm's candidates /
that of the other's). Its interval is the percentile one of a cluster bootstrap: problems are drawn
with replacement, then seeds within each drawn problem (Davison and Hinkley, Bootstrap Methods and
their Application, 1997, section 3.8). Seeds are paired across arms.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.search.replay.arms import Replayed
from kb.errors import InvalidRequest

RESAMPLES = 2_000
LEVEL = 0.95
Counts = Mapping[str, Sequence[float]]  # problem -> candidates by seed


@dataclass(frozen=True)
class Ratio:
    """Below 1: the arm needs fewer candidates than what it is compared to. n: problems. worse:
    those in which it needs more."""

    value: float
    low: float
    high: float
    n: int
    worse: int

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}] n={self.n}"


@dataclass(frozen=True)
class Summary:
    """candidates: geometric mean over problems of the geometric mean over seeds. failures: runs
    that were cut off or had nothing left before the share was reached."""

    candidates: float
    median: float
    runs: int
    failures: int


def counts(rows: Iterable[Replayed]) -> dict[str, list[float]]:
    """Candidates by problem, in the order of the seeds."""
    values: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda row: row.seed):
        values.setdefault(row.problem, []).append(float(row.candidates))
    return values


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(fmean(math.log(value) for value in values))


def summary(rows: Sequence[Replayed]) -> Summary:
    by_problem = counts(rows)
    return Summary(
        geometric_mean(geometric_mean(values) for values in by_problem.values()),
        median(row.candidates for row in rows),
        len(rows),
        sum(not row.reached for row in rows),
    )


def ratios(arm: Counts, other: Counts) -> dict[str, float]:
    """By problem."""
    return {p: geometric_mean(arm[p]) / geometric_mean(other[p]) for p in _paired(arm, other)}


def ratio(arm: Counts, other: Counts, seed: int, resamples: int = RESAMPLES) -> Ratio:
    """The arm against the other, with its interval."""
    logs = {
        problem: [math.log(a / b) for a, b in zip(arm[problem], other[problem], strict=True)]
        for problem in _paired(arm, other)
    }
    problems = sorted(logs)
    chance = random.Random(seed)
    means = sorted(_resampled(logs, problems, chance) for _ in range(resamples))
    tail = (1 - LEVEL) / 2
    by_problem = [fmean(logs[problem]) for problem in problems]
    return Ratio(
        math.exp(fmean(by_problem)),
        math.exp(means[int(tail * (resamples - 1))]),
        math.exp(means[math.ceil((1 - tail) * (resamples - 1))]),
        len(problems),
        sum(mean > 0 for mean in by_problem),
    )


def _resampled(
    logs: Mapping[str, Sequence[float]], problems: Sequence[str], chance: random.Random
) -> float:
    drawn = chance.choices(problems, k=len(problems))
    return fmean(fmean(chance.choices(logs[name], k=len(logs[name]))) for name in drawn)


def _paired(arm: Counts, other: Counts) -> list[str]:
    """The problems of both. Raises InvalidRequest where problems or seeds differ."""
    if arm.keys() != other.keys() or any(len(arm[p]) != len(other[p]) for p in arm):
        raise InvalidRequest(
            "the two arms have not the same problems and seeds",
            hint="Replay both over the same table with the same seeds.",
        )
    return list(arm)
