"""Snapshots reflect every committed change of the catalog by any process, and nothing deleted."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kb.catalog import meta
from kb.catalog.knowledge import passages
from kb.catalog.knowledge.passages import Patch
from kb.scope import ScopeFilter
from kb.tokens import tokenize
from retrieval.snapshot import store as store_module
from retrieval.snapshot.snapshot import Snapshot
from retrieval.snapshot.store import SnapshotStore
from tests.fixtures import Store
from tests.places import ROOT

ALL = ScopeFilter(None)
MANUAL = """# {title}

## Memory of {title}

The {word} of this chip moves 128 bytes a cycle. Its banks are 4 bytes wide.

## Limits

| name | value |
| --- | --- |
| {word} blocks | 16 |
"""


def manual(word: str, title: str = "Talon") -> str:
    return MANUAL.format(word=word, title=title)


def contents(snapshot: Snapshot) -> dict[str, Any]:
    """Everything that answers may read from a snapshot, independent of segments."""
    seqs = sorted(snapshot.load(range(10_000)))
    loaded = snapshot.load(seqs)
    sections = snapshot.sections({p.section_id for p in loaded.values()}, ALL)
    columns = snapshot.around(seqs, ALL)
    return {
        "documents": sorted((d.id, d.title, d.version, d.passages) for d in documents(snapshot)),
        "passages": loaded,
        "sections": {i: (s.path, s.text, s.parent_id, s.ordinal) for i, s in sections.items()},
        "below": snapshot.below([s.id for s in sections.values()]),
        "columns": {name: array.tolist() for name, array in columns._asdict().items()},
        "words": {
            word: found(word, snapshot)
            for word in ("memory", "bank", "block", "zephyrite", "quillon")
        },
        "in sections": snapshot.search("section", tokenize("banks limits"), ALL, 50),
        "members": snapshot.members_of([s.seq for s in sections.values()]).seqs.tolist(),
        "cards": [(card.name, card.meaning) for card in snapshot.symbols()],
    }


def found(word: str, snapshot: Snapshot) -> dict[int, float]:
    return snapshot.search("passage", tokenize(word), ALL, 50)


def documents(snapshot: Snapshot) -> list[Any]:
    return list(snapshot.documents.values())


def full_snapshot(store: Store) -> Snapshot:
    """A snapshot made from the catalog alone."""
    return SnapshotStore(store.catalog, store.embedder.fingerprint).rebuild()


@pytest.mark.slow(seconds=5)
def test_incremental_snapshot_equals_full_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "SMALL", 4)  # passages: enough to merge segments
    snapshots = store.snapshots
    one = store.ingest("one.md", manual("zephyrite"), hardware=("h100",))
    store.ingest("two.md", manual("quillon", "Orbit"), hardware=("mi300x",))
    stored = snapshots.current()
    for round_ in range(6):
        store.ingest(f"more-{round_}.md", manual(f"word{round_}", f"Chip {round_}"))
        assert contents(snapshots.current()) == contents(full_snapshot(store))
    store.ingest("one.md", manual("quillon"), hardware=("h100",))
    passage = store.passages_of(one.document_id)[0]
    patch = Patch(text="Corrected: the zephyrite.", hardware=("a100",))
    passages.correct(store.catalog, passage.id, patch, "ann")
    store.worker().drain()
    assert contents(snapshots.current()) == contents(full_snapshot(store))
    store.documents.delete(one.document_id)
    assert contents(snapshots.current()) == contents(full_snapshot(store))
    assert len(snapshots.current().segments) < 8
    # A reader continues with its first snapshot.
    assert one.document_id in stored.documents
    assert any("zephyrite" in p.text for p in stored.load(range(10_000)).values())


def test_rare_word_finds_its_document_without_vectors(store: Store) -> None:
    store.submit("one.md", manual("zephyrite"))
    store.worker().read_all(threading.Event())
    snapshot = store.snapshots.current()
    assert snapshot.embedded < snapshot.passages
    assert found("zephyrite", snapshot)


def test_deleted_document_is_in_no_segment_file(store: Store) -> None:
    gone = store.ingest("one.md", manual("zephyrite"))
    store.ingest("two.md", manual("quillon", "Orbit"))
    store.ingest("one.md", manual("zephyrites"))  # its first version is in a segment too
    folder = store.data_dir / store_module.FOLDER
    store.snapshots.publish()
    assert any(b"zephyrite" in path.read_bytes() for path in folder.iterdir())
    store.documents.delete(gone.document_id)
    store.snapshots.publish()
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert not [name for name, data in files.items() if b"zephyrite" in data]
    assert any(b"quillon" in data for data in files.values())


def test_no_process_answers_from_before_change(
    store: Store, make_store: Callable[[Path], Store]
) -> None:
    other = make_store(store.data_dir)
    submitted = store.ingest("one.md", manual("zephyrite"))
    assert found("zephyrite", store.snapshots.current())
    assert found("zephyrite", other.snapshots.current())
    other.documents.delete(submitted.document_id)
    for opened in (store, other):
        assert found("zephyrite", opened.snapshots.current()) == {}


def test_snapshot_published_by_another_thread_has_its_own_version(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = store.ingest("manual.md", "# M\n\nThe quince unit.\n").document_id
    assert store.by_words("quince")
    store.documents.delete(document)
    version = store.catalog.version

    def published_meanwhile() -> Hashable:
        monkeypatch.setattr(store.catalog, "version", version)
        store.snapshots.publish()  # as another thread does while this one waits for the version
        return version()

    monkeypatch.setattr(store.catalog, "version", published_meanwhile)
    assert store.by_words("quince") == []


@pytest.mark.slow
def test_processes_map_same_files(store: Store) -> None:
    store.ingest("one.md", manual("zephyrite"))
    snapshot = store.snapshots.publish()
    folder = store.data_dir / store_module.FOLDER
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.segment")}
    code = f"""
        from pathlib import Path
        from kb.catalog import open_catalog
        from retrieval.snapshot.store import SnapshotStore
        from tests.retrieval.snapshot.test_store import found
        catalog = open_catalog(Path({str(store.data_dir)!r}))
        snapshot = SnapshotStore(catalog, {store.embedder.fingerprint!r}).current()
        print(snapshot.passages, len(found("zephyrite", snapshot)))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True
    )
    passages_found, hits = map(int, done.stdout.split())
    assert passages_found == snapshot.passages and hits > 0, done.stderr
    assert {p.name: p.stat().st_mtime_ns for p in folder.glob("*.segment")} == before


@pytest.mark.parametrize("damage", ["cut", "manifest", "gone", "another model"])
def test_unreadable_segments_are_rebuilt(store: Store, damage: str) -> None:
    store.ingest("one.md", manual("zephyrite"))
    expected = contents(store.snapshots.publish())
    folder = store.data_dir / store_module.FOLDER
    manifest = folder / store_module.MANIFEST
    segment = next(folder.glob("*.segment"))
    if damage == "cut":
        segment.write_bytes(segment.read_bytes()[:-100])
    elif damage == "manifest":
        manifest.write_text(manifest.read_text()[:-5])
    elif damage == "gone":
        segment.unlink()
    else:
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"model": "other"}))
    snapshots = SnapshotStore(store.catalog, store.embedder.fingerprint)
    assert contents(snapshots.current()) == expected
    assert contents(SnapshotStore(store.catalog, store.embedder.fingerprint).current()) == expected


def test_read_only_folder_does_not_prevent_answers(store: Store) -> None:
    store.ingest("one.md", manual("zephyrite"))
    (store.data_dir / store_module.FOLDER).write_text("a file where the folder belongs")
    snapshots = SnapshotStore(store.catalog, store.embedder.fingerprint)
    assert found("zephyrite", snapshots.current())


def test_skills_and_facts_are_reloaded_without_documents(store: Store) -> None:
    store.ingest("one.md", manual("zephyrite"))
    before = store.snapshots.current()
    with store.catalog.write() as connection:
        meta.bump_skills(connection)
    after = store.snapshots.current()
    assert after is not before and after.segments == before.segments
    assert after.knowledge.facts is before.knowledge.facts
    with store.catalog.write() as connection:
        meta.bump_revision(connection)
    assert store.snapshots.current().knowledge.facts is not before.knowledge.facts


def test_answer_waits_for_change_of_skills_published_by_another_thread(store: Store) -> None:
    before = store.snapshots.current()
    answers: list[Snapshot] = []
    asking = threading.Thread(target=lambda: answers.append(store.snapshots.current()))
    with store.snapshots._lock:  # held by a publishing thread
        with store.catalog.write() as connection:
            meta.bump_uses(connection)
        assert store.snapshots.current() is before
        with store.catalog.write() as connection:
            meta.bump_skills(connection)
        asking.start()
        asking.join(0.2)
        assert not answers
    asking.join()
    assert answers[0].state.skills > before.state.skills


def test_nearest_passages_are_exact(store: Store) -> None:
    for n in range(8):
        store.ingest(f"{n}.md", manual(f"word{n}", f"Chip {n}"), hardware=("h100",))
    store.ingest("other.md", manual("quillon"), hardware=("mi300x",))
    snapshot = store.snapshots.current()
    vector = store.embedder.encode_query("how wide is a bank of memory")
    columns = snapshot.around(range(10_000), ALL)
    about = {s for s, p in snapshot.load(columns.seqs).items() if "h100" in p.hardware}
    cosines = dict(zip(columns.seqs.tolist(), columns.vectors @ vector, strict=True))
    best = sorted(about, key=lambda seq: (-round(float(cosines[seq]), 5), seq))[:7]
    found = snapshot.near(("h100",), vector, 7)
    assert list(found) == best
    assert np.allclose(list(found.values()), [cosines[seq] for seq in best], atol=1e-6)


def test_concurrent_first_requests_get_answers(store: Store) -> None:
    submitted = [store.submit(f"{n}.md", manual(f"word{n}")) for n in range(4)]
    stop, failed = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            try:
                snapshot = store.snapshots.current()
                contents(snapshot)
            except Exception as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    store.worker().drain()
    for document in submitted[:2]:
        store.documents.delete(document.document_id)
        store.snapshots.publish()
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(store.snapshots.current().documents) == 2


MATRIX = """# Stalls

## Block mask

| Instruction | B0 | B6 |
| --- | --- | --- |
| `vadda` | | no |
| `vlone` | no | |
"""
DEFINED = """# Vector unit

## `vadda`

Adds two registers.

```talon
vadda v0, v1, v2
```

| Instruction | Operands | Operation |
| --- | --- | --- |
| vadda | dst, a, b | adds two registers |
| vsuba | dst, a, b | subtracts two registers |
"""


def test_row_of_a_support_matrix_is_part_of_the_card_of_its_name(store: Store) -> None:
    store.ingest("defined.md", DEFINED, hardware=("h100",), category="hardware")
    store.ingest("matrix.md", MATRIX, hardware=("h100",), category="hardware")
    cards = {card.name: card for card in full_snapshot(store).symbols(("h100",))}
    assert cards["vadda"].further == ("Block mask, B6: no",)
    assert cards["vadda"].meaning.startswith("adds two registers")
    assert cards["vlone"].further == ("B0: no",)  # nothing else describes it
