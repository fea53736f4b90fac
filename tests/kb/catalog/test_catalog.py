"""Transactions, named values, and documents as rows of the catalog."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kb.catalog import Catalog, meta, open_catalog
from kb.catalog.database import CACHE_KIB
from kb.catalog.engine import portions
from kb.catalog.knowledge.documents import erase_deleted
from kb.errors import NotFound, StoreError, UnknownHardware
from kb.scope import AccessScope

if TYPE_CHECKING:
    from tests.fixtures import Store


MANUAL = "# Manual\n\n## Shared memory\n\nOne block may take 227 KiB of shared memory.\n"


def test_failed_transaction_writes_nothing(catalog: Catalog) -> None:
    with catalog.write() as connection:
        meta.put(connection, "kept", 1)
    with pytest.raises(RuntimeError), catalog.write() as connection:
        meta.put(connection, "kept", 2)
        raise RuntimeError("in the middle")
    with catalog.read() as connection:
        assert meta.get(connection, "kept") == 1


def test_writes_inside_read_are_discarded(catalog: Catalog) -> None:
    with catalog.read() as connection:
        meta.put(connection, "smuggled", 1)
    with catalog.read() as connection:
        assert meta.get(connection, "smuggled") is None


def test_read_transaction_sees_one_snapshot(catalog: Catalog, data_dir: Path) -> None:
    other = open_catalog(data_dir)
    with catalog.read() as connection:
        before = meta.revision(connection)
        with other.write() as writer:
            meta.bump_revision(writer)
        assert meta.revision(connection) == before
    with catalog.read() as connection:
        assert meta.revision(connection) == before + 1
    other.close()


def test_writers_wait_for_each_other(catalog: Catalog) -> None:
    def bump() -> None:
        for _ in range(10):
            with catalog.write() as connection:
                meta.bump_revision(connection)

    threads = [threading.Thread(target=bump) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with catalog.read() as connection:
        assert meta.revision(connection) == 40


def test_portions_hold_every_value_once() -> None:
    values = list(range(1234))
    parts = portions(values)
    assert [value for part in parts for value in part] == values
    assert max(map(len, parts)) <= 500
    assert portions([]) == []


def test_documents_are_listed_by_scope_and_category(store: Store) -> None:
    chip = store.submit("h100.md", MANUAL, hardware=("h100",))
    store.submit("guide.md", MANUAL + "More.\n")
    assert [d.id for d in store.documents.find(hardware="h100")] == [chip.document_id]
    assert [d.category for d in store.documents.find()] == ["guidance", "hardware"]
    listed = store.documents.get(chip.document_id)
    assert (listed.hardware, listed.job_state, listed.passages) == (("h100",), "queued", 0)


def test_document_of_another_scope_is_not_found(store: Store) -> None:
    mine = store.submit("mine.md", MANUAL, access_scope=AccessScope("team"))
    assert store.documents.find() == []
    for ask in (store.documents.get, store.documents.versions, store.documents.delete):
        with pytest.raises(NotFound):
            ask(mine.document_id)
    assert (
        store.documents.get(mine.document_id, access_scope=AccessScope("team")).id
        == mine.document_id
    )


def test_deletion_removes_only_unreferenced_files(store: Store) -> None:
    shared = store.submit("one.md", MANUAL, hardware=("h100",))
    store.submit("two.md", MANUAL, hardware=("mi300x",))
    assert len(store.blobs.sizes()) == 1
    store.documents.delete(shared.document_id)
    assert erase_deleted(store.catalog, store.blobs) and len(store.blobs.sizes()) == 1
    [left] = store.documents.find()
    store.documents.delete(left.id)
    assert erase_deleted(store.catalog, store.blobs) and store.blobs.sizes() == {}
    with pytest.raises(NotFound):
        store.documents.get(left.id)


def test_unknown_version_and_hardware_errors_have_hints(store: Store) -> None:
    document = store.submit("one.md", MANUAL)
    with pytest.raises(NotFound, match="no version 7") as missing:
        store.documents.sections(document.document_id, version=7)
    assert "lists its versions" in missing.value.hint
    with pytest.raises(UnknownHardware) as unknown:
        store.registry.scopes("h10")
    assert "h100" in unknown.value.hint


def test_scopes_widen_upwards(store: Store) -> None:
    assert store.registry.scopes("h100") == ("h100", "hopper", "nvidia", "any")


def test_hardware_with_reordered_fields_is_unchanged(store: Store) -> None:
    spec = store.registry.get("h100")
    with store.catalog.write() as connection:
        connection.exec_driver_sql("UPDATE hardware SET spec = '# by hand\n' || spec")
    assert store.registry.put(spec, "builtin") == "unchanged"
    assert store.registry.put(replace(spec, summary="Another."), "builtin") == "updated"


@pytest.mark.embedded
def test_reopening_catalog_keeps_held_locks(tmp_path: Path) -> None:
    """Closing any descriptor of the file drops all its POSIX locks, and another process could open
    the catalog as its exclusive owner while it is in use here.
    """
    first = open_catalog(tmp_path)
    take = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=0);"
        " print(c.execute('PRAGMA journal_mode=DELETE').fetchone()[0])"
    )
    command = [sys.executable, "-c", take, str(first.path)]
    with first.read() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM work").scalar()
        second = open_catalog(tmp_path)
        taken = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "database is locked" in taken.stderr, taken.stdout
    first.close()
    second.close()
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    assert alone.stdout.strip() == "delete"


@pytest.mark.embedded
def test_connections_do_not_memory_map_file(catalog: Catalog) -> None:
    """Each mapping would count as resident memory: two of them took 760 MiB at 95,693 passages."""
    with catalog.read() as one, catalog.read() as other:
        for connection in (one, other):
            assert connection.exec_driver_sql("PRAGMA mmap_size").scalar() == 0
            assert connection.exec_driver_sql("PRAGMA cache_size").scalar() == -CACHE_KIB


# -- an empty or missing catalog next to other files of a store is an error, not a new store


def truncate(path: Path) -> None:
    path.write_bytes(b"")


def empty(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")


@pytest.mark.embedded
@pytest.mark.parametrize("lose", [truncate, empty, Path.unlink])
@pytest.mark.parametrize("file", ["blobs/ab/abc", "snapshot/current", "runs/run_1/kernel.cpp"])
def test_lost_catalog_is_reported(tmp_path: Path, lose: Callable[[Path], None], file: str) -> None:
    open_catalog(tmp_path).close()
    left = tmp_path / file
    left.parent.mkdir(parents=True)
    left.write_text("x")
    open_catalog(tmp_path).close()
    for path in tmp_path.glob("catalog.sqlite-*"):
        path.unlink()
    lose(tmp_path / "catalog.sqlite")
    for _ in range(2):  # the error changes no file
        with pytest.raises(StoreError, match="empty or was lost") as refused:
            open_catalog(tmp_path)
        assert str(left) in refused.value.message and "kernlore restore" in refused.value.hint


@pytest.mark.embedded
@pytest.mark.parametrize("name", ["models/model.onnx", "devices/here.json", "locks/service"])
def test_first_start_over_leftover_files_creates_store(tmp_path: Path, name: str) -> None:
    (tmp_path / "blobs" / "ab").mkdir(parents=True)
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text("x")
    (tmp_path / "catalog.sqlite").touch()  # from a start that was killed
    open_catalog(tmp_path).close()
