"""Arms compared by the candidates that they took."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks.search.replay.arms import (
    DESCENT,
    KNOWLEDGE,
    RANDOM,
    Replayed,
)
from benchmarks.search.replay.reporting import Comparison, arms_table
from benchmarks.search.replay.statistics import counts, ratio, ratios, summary
from kb.errors import InvalidRequest


def runs(arm: str, took: Mapping[str, list[int]], reached: bool = True) -> list[Replayed]:
    return [
        Replayed(problem, arm, "best-first", seed, candidates, reached, "")
        for problem, values in took.items()
        for seed, candidates in enumerate(values)
    ]


def test_ratios_are_geometric_means_over_problems() -> None:
    fast = counts(runs("fast", {"a": [2, 2], "b": [4, 4]}))
    slow = counts(runs("slow", {"a": [8, 8], "b": [4, 4]}))
    assert ratios(fast, slow) == {"a": pytest.approx(0.25), "b": pytest.approx(1.0)}
    found = ratio(fast, slow, seed=1)
    assert found.value == pytest.approx(0.5)
    assert (found.low, found.high) == (pytest.approx(0.25), pytest.approx(1.0))
    assert (found.n, found.worse) == (2, 0)
    assert ratio(slow, fast, seed=1).worse == 1
    assert ratio(fast, fast, seed=1).value == 1.0


def test_the_interval_covers_what_seeds_alone_differ_in() -> None:
    one = counts(runs("one", {"a": [1, 4, 1, 4]}))
    other = counts(runs("other", {"a": [2, 2, 2, 2]}))
    found = ratio(one, other, seed=1)
    assert found.value == pytest.approx(1.0)
    assert found.low == pytest.approx(0.5) and found.high == pytest.approx(2.0)
    assert ratio(one, other, seed=1) == found


def test_arms_of_other_problems_are_not_compared() -> None:
    one = counts(runs("one", {"a": [1, 2]}))
    for took in ({"b": [1, 2]}, {"a": [1]}):
        with pytest.raises(InvalidRequest, match="same problems and seeds"):
            ratio(one, counts(runs("other", took)), seed=1)


def test_a_summary_counts_what_did_not_get_there() -> None:
    found = summary(runs("one", {"a": [2, 8]}) + runs("one", {"b": [9]}, reached=False))
    assert found.candidates == pytest.approx(6.0)
    assert (found.median, found.runs, found.failures) == (8, 3, 1)


def test_the_base_is_the_best_arm_that_knows_nothing() -> None:
    compared = Comparison(
        [
            *runs(DESCENT.name, {"a": [4, 4]}),
            *runs(RANDOM.name, {"a": [6, 6]}),
            *runs(KNOWLEDGE.name, {"a": [2, 2]}),
        ],
        seed=1,
    )
    base = compared.best_of([RANDOM, DESCENT])
    assert base == (DESCENT.name, "best-first")
    told = arms_table(compared, base)
    assert "| knowledge | best-first | 2.0 | 2 | 0.50 [0.50, 0.50] n=1 | 0 of 1 | 2 | 0 |" in told
    assert "1 (it is the base)" in told
