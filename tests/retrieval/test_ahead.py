"""Answers to a signal and a chip alone are prepared while nobody asks, and are the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from kb.index.exact import ExactIndex
from retrieval.ahead import Attendance, OrdersAhead

from kb.answers import Answer
from kb.catalog import meta
from kb.catalog.knowledge import lexical
from kb.catalog.tables import candidates
from retrieval.request import RetrieveRequest
from retrieval.search.ranking import WEIGHTS
from retrieval.service import Retriever
from retrieval.stages import watching
from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=5)

MANUAL = (
    "# Chip\n\n## Memory bound\n\nA kernel that is memory_bound moves fewer bytes when rows stay"
    " in shared memory.\n\n## Occupancy\n\nOccupancy falls with the registers of a thread.\n"
)
ASKED = {"signal": "memory_bound", "hardware": "h100"}


@pytest.fixture
def store(tmp_path: Any, embedder: Any, parsers: Any, tagger: Any) -> Iterator[Store]:
    store = Store(tmp_path, embedder, parsers, tagger)
    store.ingest("manual.md", MANUAL, hardware=("h100",))
    keep(store)
    yield store
    store.catalog.close()


@pytest.fixture
def retriever(store: Store) -> Iterator[Retriever]:
    retriever = made(store)
    yield retriever
    retriever.close()


def made(store: Store) -> Retriever:
    index = ExactIndex(store.catalog, store.embedder.fingerprint)
    return Retriever(store.catalog, store.registry, store.embedder, lambda: index)


def watched(retriever: Retriever) -> list[tuple[str, ...]]:
    """The pairs that the retriever has made orders for, from now on."""
    pairs: list[tuple[str, ...]] = []
    make = retriever.make_order

    def noted(*pair: str) -> None:
        make(*pair)
        pairs.append(pair)

    retriever.make_order = noted  # type: ignore[method-assign, assignment]
    return pairs


def keep(store: Store) -> None:
    """What a service keeps in memory."""
    with store.catalog.read() as connection:
        lexical.keep_in_memory(connection, WEIGHTS.heading)
        candidates.keep_in_memory(connection, store.embedder.fingerprint)


def ask(retriever: Retriever, **more: Any) -> tuple[Answer, Sequence[str]]:
    """The answer, and the stages that it went through."""
    stages: list[str] = []
    with watching(lambda stage, _: stages.append(stage)):
        answer = retriever.retrieve(RetrieveRequest(**{**ASKED, **more}))
    return answer, stages


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_a_prepared_answer_is_not_ranked_again_and_is_the_same(
    store: Store, retriever: Retriever
) -> None:
    answer, stages = ask(made(store))
    assert "ranking" in stages
    with store.catalog.write() as connection:
        meta.bump_revision(connection)  # what the first answer left is gone
    prepared_pairs = watched(retriever)
    ahead = OrdersAhead(retriever, 100, look_seconds=0.02, idle_seconds=0.0)
    ahead.start()
    until(lambda: (ASKED["signal"], ASKED["hardware"]) in prepared_pairs)
    ahead.stop()
    prepared, stages = ask(retriever)
    assert "ranking" not in stages
    before, after = answer.as_json(), prepared.as_json()
    assert {**before, "retrieval_id": ""} == {**after, "retrieval_id": ""}


def test_it_waits_while_somebody_is_answered(store: Store, retriever: Retriever) -> None:
    ahead = OrdersAhead(retriever, 100, look_seconds=0.02, idle_seconds=0.05)
    prepared = watched(retriever)
    with retriever.attendance.asked():
        ahead.start()
        time.sleep(0.5)
        assert not prepared
    until(lambda: prepared)
    ahead.stop()


def test_it_waits_while_kernels_are_timed(retriever: Retriever) -> None:
    timed = threading.Event()
    timed.set()
    prepared = watched(retriever)
    ahead = OrdersAhead(retriever, 100, timed.is_set, look_seconds=0.02, idle_seconds=0.0)
    ahead.start()
    time.sleep(0.3)
    assert not prepared
    timed.clear()
    until(lambda: prepared)
    ahead.stop()


def test_a_skill_keeps_what_is_prepared_and_a_document_does_not(
    store: Store, retriever: Retriever
) -> None:
    retriever.make_order(*ASKED.values())
    with store.catalog.write() as connection:
        meta.bump_skills(connection)
    assert "ranking" not in ask(retriever)[1]
    store.ingest(
        "other.md", "# Other\n\nA memory_bound kernel waits for HBM.\n", hardware=("h100",)
    )
    assert "ranking" in ask(retriever)[1]


def test_chips_that_were_asked_about_come_first(store: Store, retriever: Retriever) -> None:
    pairs = retriever.signals_and_chips(1_000)
    assert {chip for _, chip in pairs} == {"h100"}, "the only one with a document"
    assert ("memory_bound", "h100") in pairs
    ask(retriever, hardware="h200")
    retriever._journal.flush()
    assert retriever.signals_and_chips(1)[0][1] == "h200"
    assert len(retriever.signals_and_chips(3)) == 3


def test_nothing_is_prepared_before_all_is_in_memory(store: Store, retriever: Retriever) -> None:
    assert retriever.searched() is not None
    store.ingest("new.md", "# New\n\nText.\n", hardware=("h100",))
    assert retriever.searched() is None, "the columns are those of before"
    keep(store)
    assert retriever.searched() is not None


def test_attendance_is_idle_between_answers() -> None:
    attendance = Attendance()
    with attendance.asked(), attendance.asked():
        assert attendance.idle_seconds == 0.0
    first = attendance.idle_seconds
    time.sleep(0.01)
    assert attendance.idle_seconds > first
