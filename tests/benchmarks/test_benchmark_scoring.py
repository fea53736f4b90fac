"""The scorer is the script; paired intervals are over its rows."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.retrieval.scoring import Scorer, bootstrap, gold_of, read_jsonl, write_answers
from kb.errors import InvalidRequest
from tests.benchmarks.conftest import Small

HIT = [{"text": "it holds 96 KiB", "hardware": ["zeta-1"]}]
MISS = [{"text": "nothing of it", "hardware": ["omega-2"]}]


def test_requests_equal_those_of_script(small: Small) -> None:
    requests = Scorer(small.scorer, small.gold).requests()
    assert list(requests) == ["g1", "g2", "g3"]
    assert requests["g3"]["signal"] == "memory_bound"


def test_scores_follow_rows_and_kinds(small: Small) -> None:
    scorer = Scorer(small.scorer, small.gold)
    good, bad = scorer.scores({"g1": HIT}), scorer.scores({"g1": MISS})
    assert good.kinds == ("question", "error", "signal")
    assert good.mean("ndcg@10", "question") == 1.0
    assert good.mean("ndcg@10", "error") == 0.0  # unanswered
    assert bad.mean("foreign@10", "question") == 1.0
    difference = good.minus(bad, "ndcg@10")
    assert difference.mean == pytest.approx(1 / 3)
    assert difference.low <= difference.mean <= difference.high


def test_table_is_the_output_of_script(small: Small) -> None:
    scorer = Scorer(small.scorer, small.gold)
    write_answers(small.answers, {"g1": HIT, "g2": MISS, "g3": MISS})
    assert scorer.table(small.answers).strip() == "rows 3 ndcg@10 0.333"


def test_failing_script_is_quoted(small: Small) -> None:
    scorer = Scorer(small.scorer, small.gold)
    write_answers(small.answers, {"g1": HIT})
    with pytest.raises(InvalidRequest, match="KeyError"):
        scorer.table(small.answers)


def test_gold_rows_by_hardware(small: Small) -> None:
    target = small.gold.with_name("part.jsonl")
    assert gold_of(small.gold, frozenset(), target) == small.gold
    assert read_jsonl(gold_of(small.gold, {"omega-2"}, target)) == []
    with pytest.raises(InvalidRequest, match="no rows"):
        Scorer(small.scorer, target)


def test_interval_is_deterministic_and_contains_its_mean() -> None:
    values = np.random.default_rng(3).normal(0.5, 1, 400)
    first, again = bootstrap(values), bootstrap(values)
    assert first == again
    assert first.low < first.mean < first.high
    # The standard error is .05, so the interval is about .2 wide.
    assert 0.15 < first.high - first.low < 0.25
    assert bootstrap(np.full(9, 0.25)).low == 0.25
