"""The retrieval log while the catalog is locked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from kb.catalog import Catalog, open_catalog
from kb.catalog.dialect import row_order
from kb.catalog.tables import retrievals
from kb.ids import new_id
from retrieval import knowledge_base as module
from retrieval.knowledge_base import Journal
from tests.catalogs import fresh_data_dir


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """A catalog whose writers give up at once, so that a lock is an error."""
    monkeypatch.setattr("kb.catalog.database.BUSY_TIMEOUT_MS", 1)
    monkeypatch.setattr("kb.catalog.database.LOCK_TIMEOUT_MS", 1)
    monkeypatch.setattr(module, "FLUSH_SECONDS", 0.01)
    opened = open_catalog(fresh_data_dir(tmp_path / "data"))
    yield opened
    opened.close()


def row(**other: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": new_id("ret"),
        "request": {"signal": "memory_bound"},
        "hardware_id": "h100",
        "signals": [],
        "excerpt_ids": [],
        "skill_ids": [],
        "move_ids": [],
        "skills_withheld": [],
        "context_sha256": "",
        "run_id": None,
        "node_id": None,
        "milliseconds": 1.0,
        "catalog_revision": 1,
        "access_scope": "all",
    }
    return {**fields, **other}


def stored(catalog: Catalog) -> list[str]:
    with catalog.read() as connection:
        order = sa.select(retrievals.c.id).order_by(row_order(connection))
        return list(connection.execute(order).scalars())


@contextmanager
def locked(catalog: Catalog) -> Iterator[None]:
    """Another writer, for the duration of the context."""
    other = open_catalog(catalog.data_dir)
    with other.write():
        yield
    other.close()


def runs(journal: Journal) -> bool:
    return journal._thread is not None and journal._thread.is_alive()


def wait_for(what: Any) -> None:
    until = time.monotonic() + 30
    while not what():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)


def test_failed_writes_are_repeated_in_order(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_SECONDS", 3600)  # only when the test flushes
    monkeypatch.setattr(module, "BATCH", 2)
    journal, rows = Journal(catalog), [row() for _ in range(5)]
    with locked(catalog):
        for one in rows[:4]:
            journal.record(one)
        busy = "lock timeout" if catalog.on_server else "locked"
        with pytest.raises(OperationalError, match=busy):
            journal.flush()
    journal.record(rows[4])
    journal.flush()
    journal.flush()
    assert stored(catalog) == [one["id"] for one in rows]
    journal.close()


def test_thread_survives_locked_catalog_and_logs_once(catalog: Catalog) -> None:
    journal, one = Journal(catalog), row()
    tries = 0
    flush = journal.flush

    def counted() -> None:
        nonlocal tries
        tries += 1
        flush()

    journal.flush = counted  # type: ignore[method-assign]
    with capture_logs() as logs:
        with locked(catalog):
            journal.record(one)
            wait_for(lambda: tries > 3)
        wait_for(lambda: stored(catalog) == [one["id"]])
    assert [entry["event"] for entry in logs] == ["retrievals wait to be stored"]
    journal.close()


def test_dead_thread_is_restarted(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(catalog)
    monkeypatch.setattr(journal, "_run", lambda: None)  # ends at once, as after an unexpected error
    journal.record(row())
    wait_for(lambda: not runs(journal))
    monkeypatch.undo()
    monkeypatch.setattr(module, "FLUSH_SECONDS", 0.01)
    journal.record(row())
    wait_for(lambda: len(stored(catalog)) == 2)
    journal.close()
    journal.record(row())
    assert not runs(journal)  # not after close


def test_unstorable_retrieval_does_not_block_others(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_SECONDS", 3600)
    journal, rows = Journal(catalog), [row(), row(request={"problem": object()}), row()]
    with capture_logs() as logs:
        for one in rows:
            journal.record(one)
        journal.flush()
    assert stored(catalog) == [rows[0]["id"], rows[2]["id"]]
    assert [(e["event"], e["retrieval"]) for e in logs] == [
        ("retrieval cannot be stored", rows[1]["id"])
    ]
    journal.close()
