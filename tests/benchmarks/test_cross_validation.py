"""Choosing on some chips and scoring on others."""

from __future__ import annotations

import numpy as np

from benchmarks.retrieval.ablation import FULL
from benchmarks.retrieval.cross_validation import candidates, validate
from retrieval.search.ranking import WEIGHTS

HARDWARE = ["a", "a", "b", "b", "c", "c"]


def test_what_suits_one_chip_alone_is_no_better_on_those_left_out() -> None:
    full = np.full(6, 0.5)
    tuned = np.array([1.0, 1.0, 0.3, 0.3, 0.3, 0.3])
    seen = validate(HARDWARE, {FULL: full, "tuned": tuned}, left_out=1)
    assert seen.splits == 3 and seen.chosen == {"tuned": 2, FULL: 1}
    assert seen.full_score == 0.5 and seen.train_score > 0.5 > seen.chosen_score


def test_what_is_better_everywhere_is_chosen_and_stays_better() -> None:
    better = validate(HARDWARE, {FULL: np.full(6, 0.5), "better": np.full(6, 0.6)}, left_out=2)
    assert better.chosen == {"better": 3}
    assert round(better.chosen_score - better.full_score, 6) == 0.1


def test_of_equals_the_constants_as_they_are_stay() -> None:
    assert validate(HARDWARE, {"other": np.ones(6), FULL: np.ones(6)}, 1).chosen == {FULL: 3}


def test_each_candidate_changes_one_constant() -> None:
    names = [v.name for v in candidates()]
    assert len(set(names)) == len(names) and names[0] == FULL
    for variant in candidates()[1:]:
        changed = [n for n in vars(WEIGHTS) if getattr(variant.weights, n) != getattr(WEIGHTS, n)]
        assert len(changed) == 1
