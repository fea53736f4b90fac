"""An answer follows from the snapshot and the request: no statement, the same every time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from retrieval.answer import Means, actions, answer
from retrieval.request import RetrieveRequest
from tests.fixtures import Store

GUIDE = """# Memory bound

`memory_bound` says that the kernel waits for memory.

## What to try

Load 16 bytes a thread, and keep what is used again on chip.
"""
REQUESTS = (
    RetrieveRequest(signal="memory_bound", hardware="h100"),
    RetrieveRequest(query="how wide is a load", k=3),
    RetrieveRequest(log="ptxas error: too much shared data", hardware="h100", op="matmul"),
    RetrieveRequest(metrics={"DRAM Throughput": 93.0}, hardware="h100", run_id="run_1"),
    RetrieveRequest(task="write", hardware="h100", op="softmax", language="triton"),
    RetrieveRequest(query="loads", draft="tl.load(x)", hardware="h100", exclude=("psg_1",)),
)


@pytest.fixture
def statements(store: Store) -> Iterator[list[str]]:
    """Every statement that the process sends to a database meanwhile."""
    sent: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        sent.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    yield sent
    sa.event.remove(sa.Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("request_", REQUESTS)
def test_no_statement_is_sent(
    store: Store, statements: list[str], request_: RetrieveRequest
) -> None:
    store.ingest("guide.md", GUIDE, category="guidance")
    store.ingest("manual.md", GUIDE.replace("Memory bound", "H100 memory"), hardware=("h100",))
    snapshot, means = store.snapshots.current(), Means(store.embedder.encode_query)
    del statements[:]
    answered = answer(snapshot, request_, means)
    actions(snapshot, request_, means)
    assert statements == []
    assert answered.answer.excerpts and answered.shown
    assert answer(snapshot, request_, means) == answered
    # Nothing that was kept from before decides anything.
    fresh = replace(snapshot, cache=type(snapshot.cache)())
    assert answer(fresh, request_, means) == answered
