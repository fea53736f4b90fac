"""The vector index is derived data: after any damage it is rebuilt without embedding."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kb.catalog.knowledge import versions
from kb.catalog.knowledge.versions import PassageDraft, SectionDraft, VersionContent
from kb.embedding import LocalEmbedder, Vectors
from kb.index.chroma import ChromaIndex
from kb.scope import ALL_ACCESS
from retrieval.near import NearIndex
from tests.catalogs import all_missing, copy_data_dir, put_vectors

pytestmark = [pytest.mark.slow(seconds=10), pytest.mark.in_data_dir]

if TYPE_CHECKING:
    from tests.fixtures import Store

ROOT = Path(__file__).resolve().parents[3]
MANUAL = "# Manual\n\n" + "\n\n".join(
    f"## Part {n}\n\nThe {word} of the chip is described here."
    for n, word in enumerate(("clock", "cache", "barrier", "register file", "power supply"))
)
QUERY = "which cache does the chip have"
# Fills a directory and exits without closing anything.
FILL_AND_DIE = """
import os, signal, sys
from pathlib import Path
from kb.catalog import open_catalog
from kb.index.chroma import ChromaIndex
from kb.scope import ALL_ACCESS
from retrieval.near import NearIndex
data = Path(sys.argv[1])
index = ChromaIndex(open_catalog(data), sys.argv[2], data / "chroma")
index.open_or_rebuild()
os.kill(os.getpid(), signal.SIGKILL)
"""


def opened(store: Store) -> ChromaIndex:
    return ChromaIndex(store.catalog, store.embedder.fingerprint, store.data_dir / "chroma")


def texts(store: Store, index: ChromaIndex | NearIndex | None = None) -> list[str]:
    return [hit.text for hit in store.by_meaning(QUERY, "h100", k=3, index=index)]


@pytest.fixture(scope="module")
def filled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with an index, made once for the module."""
    return tmp_path_factory.mktemp("filled") / "data"


@pytest.fixture
def filled(filled_folder: Path, data_dir: Path, make_store: Callable[[Path], Store]) -> Store:
    """A copy of a data directory with five passages and their index."""
    if not filled_folder.exists():
        first = make_store(filled_folder)
        first.ingest("manual.md", MANUAL, hardware=("h100",))
        index = opened(first)
        index.open_or_rebuild()
        index.close()
    copy_data_dir(filled_folder, data_dir)
    return make_store(data_dir)


def truncate_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def overwrite_randomly(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


@pytest.fixture
def no_encoding(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Counts the calls that embed passages."""
    calls: list[Sequence[str]] = []
    encode = LocalEmbedder.encode

    def counted(self: LocalEmbedder, batch: Sequence[str]) -> Vectors:
        calls.append(batch)
        return encode(self, batch)

    monkeypatch.setattr(LocalEmbedder, "encode", counted)
    return calls


@pytest.mark.parametrize("damage", [truncate_half, empty, overwrite_randomly, shutil.rmtree])
def test_unreadable_directory_is_rebuilt_without_embedding(
    filled: Store, damage: Callable[[Path], None], no_encoding: list[Sequence[str]]
) -> None:
    before = texts(filled)
    directory = filled.data_dir / "chroma"
    if damage is shutil.rmtree:
        shutil.rmtree(directory)
    else:
        damage(directory / "chroma.sqlite3")
    index = opened(filled)
    report = index.open_or_rebuild()
    assert report.added == 5
    assert texts(filled, index) == before
    assert no_encoding == []
    index.close()
    assert [p.name for p in filled.data_dir.glob("chroma*")] == ["chroma"]  # no copy left over


def test_probe_detects_damage(filled: Store) -> None:
    index = opened(filled)
    assert index.probe()
    index.close()
    truncate_half(filled.data_dir / "chroma" / "chroma.sqlite3")
    index = opened(filled)
    assert not index.probe()
    assert index.rebuild().added == 5
    assert index.probe()
    index.close()


def test_probe_detects_damaged_graph(store: Store) -> None:
    """Above a thousand entries Chroma stores the graph in separate files."""
    rows = np.random.default_rng(3).normal(size=(1200, store.embedder.dimension))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    submitted = store.submit("many.md", "# Many\n", hardware=("h100",))
    version = str(store.job(submitted).payload["version_id"])
    drafts = [PassageDraft(0, "text", f"text {n}", "", None, (), 0, ()) for n in range(len(rows))]
    with store.catalog.write() as connection:
        content = VersionContent([SectionDraft(("Many",), 1, None)], drafts)
        versions.activate(connection, [(version, content)])
        missing = all_missing(connection, store.embedder.fingerprint)
        vectors = {item.sha256: row for item, row in zip(missing, rows, strict=True)}
        put_vectors(connection, store.embedder.fingerprint, vectors)
    index = opened(store)
    index.open_or_rebuild()
    index.close()
    snapshot = store.snapshots.current()

    def exact(row: Vectors, limit: int) -> list[str]:
        return [p.id for p in snapshot.load(snapshot.near(("h100",), row, limit)).values()]

    nearest = set(exact(rows[7], 10))
    own = {n: exact(rows[n], 1)[0] for n in (7, *range(0, len(rows), 25))}
    for damage in (truncate_half, empty, overwrite_randomly):
        files = (store.data_dir / "chroma").rglob("*")
        graph = [path for path in files if path.suffix in (".bin", ".pickle")]
        assert graph
        for path in graph:
            damage(path)
        index = opened(store)
        assert index.open_or_rebuild().added == len(rows), damage.__name__
        hits = list(index.query(("h100",), rows[7], 10, ALL_ACCESS))
        # Threads build the graph, so the last neighbours differ between builds; each passage finds
        # itself in all of them.
        assert hits[0] == own[7] and len(set(hits) & nearest) >= 7, damage.__name__
        for n, passage in own.items():
            found = index.query(("h100",), rows[n], 10, ALL_ACCESS)
            assert next(iter(found)) == passage, damage.__name__
        index.close()


def test_damage_during_service_is_repaired_at_next_query(filled: Store) -> None:
    index = opened(filled)
    index.open_or_rebuild()
    before = texts(filled, index)
    index.close()
    overwrite_randomly(filled.data_dir / "chroma" / "chroma.sqlite3")
    assert texts(filled, index) == before
    index.close()


def test_opening_good_directory_changes_nothing(filled: Store) -> None:
    index = opened(filled)
    report = index.open_or_rebuild()
    assert (report.collections, report.added, report.removed) == (1, 0, 0)
    index.close()


def test_passages_added_while_stopped_are_added_without_rebuild(filled: Store) -> None:
    filled.ingest("more.md", MANUAL.replace("chip", "card"), hardware=("h200",))
    index = opened(filled)
    assert index.probe()
    assert index.open_or_rebuild().added == 5
    index.close()


def test_killed_service_leaves_usable_index(store: Store) -> None:
    store.ingest("manual.md", MANUAL, hardware=("h100",))
    arguments = [str(store.data_dir), store.embedder.fingerprint]
    died = subprocess.run([sys.executable, "-c", FILL_AND_DIE, *arguments], cwd=ROOT, check=False)
    assert died.returncode == -signal.SIGKILL
    index = opened(store)
    index.open_or_rebuild()
    assert texts(store, index) == texts(store)
    index.close()


def test_chroma_is_not_opened_before_first_use(store: Store) -> None:
    opened(store).close()
    assert not (store.data_dir / "chroma").exists()


def test_empty_catalog_has_empty_index(store: Store) -> None:
    index = opened(store)
    assert index.open_or_rebuild().collections == 0
    assert texts(store, index) == []
    index.close()
