"""An answer is a function of snapshot and request: it sends no SQL statement and is always
equal.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa

from kb.embedding import LocalEmbedder
from retrieval.answer import AnswerConfig, AnswerResult, Exclusions, actions, answer
from retrieval.request import RetrieveRequest
from retrieval.snapshot.cache import Cache
from retrieval.snapshot.snapshot import Snapshot
from retrieval.stages import stage, watching
from tests.fixtures import Store

GUIDE = """# {title}

`memory_bound` says that the kernel waits for memory.

## What to try on {title}

Load 16 bytes a thread, and keep what is used again on chip: too much shared data is an error.

## Occupancy on {title}

Occupancy falls with the registers of a thread.
"""
SIGNAL = RetrieveRequest(signal="memory_bound", hardware="h100")
QUERY = RetrieveRequest(query="how wide is a load", hardware="h100")
REQUESTS = (
    SIGNAL,
    RetrieveRequest(query="how wide is a load", k=3),
    RetrieveRequest(log="ptxas error: too much shared data", hardware="h100", op="matmul"),
    RetrieveRequest(metrics={"DRAM Throughput": 93.0}, hardware="h100", run_id="run_1"),
    RetrieveRequest(task="write", hardware="h100", op="softmax", language="triton"),
    RetrieveRequest(query="loads", draft="tl.load(x)", hardware="h100", exclude=("psg_1",)),
)
ALIKE = (
    QUERY,
    replace(QUERY, query="how wide are loads"),
    replace(QUERY, hardware="h200"),
    replace(QUERY, k=1),
    replace(QUERY, max_tokens=300),
    replace(QUERY, categories=("hardware",)),
    replace(QUERY, log="error: too much shared data"),
    replace(QUERY, metrics={"smsp__cycles_active.avg": 1.0}),
    SIGNAL,
    replace(SIGNAL, k=1),
    replace(SIGNAL, max_tokens=600),
    replace(SIGNAL, hardware="h200"),
    replace(SIGNAL, signal="occupancy_limited"),
    replace(SIGNAL, op="softmax"),
    replace(SIGNAL, query="registers of a thread"),
    replace(SIGNAL, metrics={"smsp__cycles_active.avg": 1.0}),
)


@pytest.fixture(scope="module")
def config(embedder: LocalEmbedder) -> AnswerConfig:
    return AnswerConfig(embedder.encode_query)


@pytest.fixture(scope="module")
def snapshot(module_store: Store) -> Snapshot:
    module_store.submit("guide.md", GUIDE.format(title="Memory bound"), category="guidance")
    for chip in ("h100", "h200"):
        module_store.submit(f"{chip}.md", GUIDE.format(title=chip), hardware=(chip,))
    module_store.worker().drain()
    return module_store.snapshots.current()


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """Every SQL statement of this thread during the test."""
    sent: list[str] = []
    thread = threading.get_ident()  # a service of another test may still read documents

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        if threading.get_ident() == thread:
            sent.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    yield sent
    sa.event.remove(sa.Engine, "before_cursor_execute", note)


def fresh(snapshot: Snapshot) -> Snapshot:
    """The snapshot with an empty cache."""
    return replace(snapshot, cache=Cache())


@pytest.mark.parametrize("request_", REQUESTS)
def test_answer_sends_no_sql_statement(
    snapshot: Snapshot, config: AnswerConfig, statements: list[str], request_: RetrieveRequest
) -> None:
    answered = answer(snapshot, request_, config)
    actions(snapshot, request_, config)
    assert statements == []
    assert answered.answer.excerpts and answered.shown
    assert answer(snapshot, request_, config) == answered
    assert answer(fresh(snapshot), request_, config) == answered


@pytest.mark.slow(seconds=8)
def test_cache_of_one_request_does_not_affect_another(
    snapshot: Snapshot, config: AnswerConfig
) -> None:
    warm = fresh(snapshot)
    answers = [answer(warm, request, config) for request in ALIKE]
    assert all(one != next_ for one, next_ in pairwise(answers))
    for request, answered in zip(ALIKE, answers, strict=True):
        assert answer(fresh(snapshot), request, config) == answered


def test_excluded_passages_are_left_out(snapshot: Snapshot, config: AnswerConfig) -> None:
    first = answer(snapshot, QUERY, config)
    worst = frozenset(first.shown[:1])

    def ids(answered: AnswerResult) -> set[str]:
        return {excerpt.id for excerpt in answered.answer.excerpts}

    assert worst <= ids(first)
    assert not worst & ids(answer(snapshot, QUERY, config, Exclusions(excerpts=worst)))


def test_log_of_a_vendors_tool_is_answered_for_that_vendor(
    snapshot: Snapshot, config: AnswerConfig
) -> None:
    line = "ptxas error : Entry function 'f' uses too much shared data (0x41000 bytes, 0x38c00 max)"
    answered = answer(snapshot, RetrieveRequest(log=line), config).answer
    assert answered.hardware is not None and answered.hardware["id"] == "nvidia"
    assert "by ptxas" in answered.diagnosis.hint and "`hardware`" in answered.diagnosis.hint
    assert not {"h100", "h200"} & {i for e in answered.excerpts for i in e.hardware}
    assert "33,792 bytes too much" in answered.context


def test_log_of_no_vendor_is_answered_for_any_chip(
    snapshot: Snapshot, config: AnswerConfig
) -> None:
    answered = answer(snapshot, RetrieveRequest(log="IndexError: list index"), config).answer
    assert answered.hardware is None and "No hardware was named" in answered.diagnosis.hint


PROTON = """[{"frame": {"name": "k"}, "metrics": {}, "children": [{"frame": {"name":
 "/w/k.py:3@k"}, "metrics": {"num_samples": 9, "stalled_long_scoreboard": 8}, "children": []}]}]"""


def test_sentence_about_profile_leads_where_no_rule_fires(
    snapshot: Snapshot, config: AnswerConfig
) -> None:
    copied = "| Name | Time |\n|---|---|\n| [CUDA memcpy HtoD] | 25 ms |\n| add | 75 ms |\n"
    result = answer(snapshot, RetrieveRequest(profile=copied), config).answer
    assert "copies between host and device take 25 %" in result.diagnosis.hint
    assert "Profile: copies between host and device take 25 %" in result.context


def test_hot_lines_are_in_answer_and_context(snapshot: Snapshot, config: AnswerConfig) -> None:
    draft = "import x\n\nv = tl.load(p)\n"
    request = RetrieveRequest(profile=PROTON, draft=draft, hardware="h100")
    result = answer(snapshot, request, config).answer
    (line,) = result.diagnosis.lines
    assert line.finding.startswith("k.py line 3: 100 % of samples, waits for data of a load")
    assert line.source == ("3: v = tl.load(p)",)
    assert line.finding in result.context and "    3: v = tl.load(p)" in result.context
    assert result.diagnosis.primary == "memory_latency" and asdict(result)["diagnosis"]["lines"]


# -- times of answer stages add up and are counted where an observer is present


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
