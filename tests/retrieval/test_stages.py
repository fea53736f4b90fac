"""Stages of an answer add up, and are counted for whoever watches."""

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


def test_a_stage_within_another_counts_for_itself_alone() -> None:
    seconds: dict[str, list[float]] = defaultdict(list)
    started = time.perf_counter()
    with watching(lambda name, took: seconds[name].append(took)):
        assert outer() == "done"
    whole = time.perf_counter() - started
    assert [len(seconds[name]) for name in ("inner", "outer")] == [2, 1]
    assert sum(seconds["inner"]) >= 0.05 and sum(seconds["outer"]) >= 0
    assert sum(seconds["inner"]) + sum(seconds["outer"]) <= whole


def test_nobody_watching_nothing_is_counted_and_an_error_is_counted_too() -> None:
    assert outer() == "done"
    names: list[str] = []
    with watching(lambda name, took: names.append(name)):
        with pytest.raises(LookupError):
            failing()
        inner(0.0)
    assert names == ["inner", "failing", "inner"]
    inner(0.0)
    assert len(names) == 3
