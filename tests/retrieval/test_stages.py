"""Times of answer stages add up and are counted where an observer is present."""

from __future__ import annotations

import time
from collections import defaultdict

import pytest

from retrieval.stages import stage, watching


@stage("inner")
def inner(seconds: float) -> str:
    time.sleep(seconds)
    return "done"


@stage("outer")
def outer() -> str:
    inner(0.02)
    return inner(0.03)


@stage("failing")
def failing() -> None:
    inner(0.0)
    raise LookupError


def test_nested_stage_counts_its_own_time() -> None:
    seconds: dict[str, list[float]] = defaultdict(list)
    started = time.perf_counter()
    with watching(lambda name, took: seconds[name].append(took)):
        assert outer() == "done"
    whole = time.perf_counter() - started
    assert [len(seconds[name]) for name in ("inner", "outer")] == [2, 1]
    assert sum(seconds["inner"]) >= 0.05 and sum(seconds["outer"]) >= 0
    assert sum(seconds["inner"]) + sum(seconds["outer"]) <= whole


def test_stages_are_counted_only_when_observed_also_on_errors() -> None:
    assert outer() == "done"
    names: list[str] = []
    with watching(lambda name, took: names.append(name)):
        with pytest.raises(LookupError):
            failing()
        inner(0.0)
    assert names == ["inner", "failing", "inner"]
    inner(0.0)
    assert len(names) == 3
