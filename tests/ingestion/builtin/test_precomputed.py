"""Readings of the built-in documents that are shipped: equal to a new reading, used only for the
same input, stored completely or not at all.
"""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ingestion import worker as worker_module
from ingestion.builtin import builtin_documents, builtin_hardware, load_builtin
from ingestion.builtin.precomputed import (
    READINGS_FILE,
    VECTORS_FILE,
    RecordingReader,
    ShippedReadings,
    embed_folder,
    put_shipped,
    read_vectors,
    reading_to_json,
    write_readings,
    write_vectors,
)
from ingestion.formats import parse
from ingestion.read import DocumentFile, LocalReader, ReadDocument
from ingestion.worker import SHIPPED_AT_ONCE, Worker
from kb.catalog import tables as t
from kb.catalog.knowledge import embeddings
from kb.embedding import LocalEmbedder
from kb.ids import sha256
from tests.api.cli_process import kernlore
from tests.ingestion.builtin.test_builtin import DOCUMENT, folder, write  # noqa: F401  (a fixture)
from tests.shared import BUILTIN

pytestmark = pytest.mark.slow(seconds=5)

if TYPE_CHECKING:
    from kb.hardware.spec import HardwareSpec
    from tests.fixtures import Store


def worker_of(store: Store, shipped: ShippedReadings) -> Worker:
    reader = LocalReader(store.embedder, store.tagger, store.parsers.parse_bytes)
    return store.worker_with(reader, shipped=shipped)


def shipped_in(store: Store, knowledge: Path) -> ShippedReadings:
    return ShippedReadings(knowledge, store.embedder, store.tagger)


def load(store: Store, knowledge: Path) -> None:
    load_builtin(knowledge, store.registry, store.uploads, store.documents)


def ship(store: Store, knowledge: Path) -> RecordingReader:
    """Write the readings of a folder whose chips are registered."""
    load_builtin(knowledge, store.registry, store.uploads, store.documents)
    reader = RecordingReader(shipped_in(store, knowledge), store.embedder, store.tagger)
    store.worker_with(reader).drain()
    write_readings(knowledge, reader.readings)
    return reader


def stored(store: Store) -> list[tuple[Any, ...]]:
    """All passages with their sections and tags, without ids and times."""
    with store.catalog.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT p.id, d.source_key, d.title, p.ordinal, p.text, p.lead, p.kind, p.embed_sha256,"
            " p.prose, p.boxes, s.path, s.hardware_scope"
            " FROM passages p JOIN documents d ON d.id = p.document_id JOIN sections s"
            " ON s.id = p.section_id WHERE p.active ORDER BY d.source_key, p.ordinal"
        ).all()
        tags = defaultdict[str, list[tuple[str, str]]](list)
        for passage, kind, value in connection.exec_driver_sql(
            "SELECT passage_id, kind, value FROM passage_tags"
        ):
            tags[passage].append((kind, value))
    return [(*row[1:], sorted(tags[row[0]])) for row in rows]


def forget_documents(store: Store) -> None:
    for document in store.documents.find():
        store.documents.delete(document.id)


def test_shipped_readings_equal_new_readings(store: Store) -> None:
    """After a change of hw_manuals or of the parsers, run `kernlore knowledge vectors`."""
    from ingestion.findings.tags import SignalWords, Tagger
    from retrieval.diagnose.signals import load_signals

    tagger = Tagger({s.id: SignalWords(s.topics, s.phrases) for s in load_signals()})
    specs: dict[str, HardwareSpec] = {spec.id: spec for spec in builtin_hardware(BUILTIN)}
    shipped = ShippedReadings(BUILTIN, store.embedder, tagger)
    for upload in builtin_documents(BUILTIN):
        hardware, languages = (tuple(sorted(of)) for of in (upload.hardware, upload.languages))
        file = DocumentFile(upload.data, upload.name, hardware, languages, False)
        remaining = find_file(shipped, file, specs)
        assert remaining is not None, f"{upload.source_key} does not ship"
        anew = LocalReader(store.embedder, tagger, parse).read(file, specs)
        assert reading_to_json(remaining) == reading_to_json(anew), upload.source_key


@pytest.mark.embedded
def test_shipped_readings_are_stored_as_if_parsed(
    store: Store,
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ship(store, folder)
    expected = stored(store)
    assert len(expected) == 3
    forget_documents(store)
    monkeypatch.setattr("ingestion.read.read_document", None)  # must not be called
    load(store, folder)
    worker_of(store, shipped_in(store, folder)).drain()
    assert stored(store) == expected
    assert store.jobs.counts()["ready"] >= 3 and "failed" not in store.jobs.counts()


def test_changed_document_is_parsed(store: Store, folder: Path) -> None:  # noqa: F811
    ship(store, folder)
    changed = folder / "guidance" / "banks.md"
    write(changed, DOCUMENT.format(title="Banks", text="Swizzle the rows."))
    load(store, folder)
    worker_of(store, shipped_in(store, folder)).drain()
    assert any("Swizzle" in row[3] for row in stored(store))


def test_reading_is_used_only_for_same_input(
    store: Store,
    folder: Path,  # noqa: F811
) -> None:
    ship(store, folder)
    specs = store.registry.all()
    (upload,) = (u for u in builtin_documents(folder) if u.name == "banks.md")
    file = DocumentFile(upload.data, upload.name, upload.hardware, upload.languages, False)
    shipped = shipped_in(store, folder)
    assert isinstance(find_file(shipped, file, specs), ReadDocument)
    assert find_file(shipped, replace(file, data=file.data + b"\n"), specs) is None
    assert find_file(shipped, replace(file, hardware=("alpha",)), specs) is None
    assert find_file(shipped, replace(file, languages=("hip",)), specs) is None
    renamed = {**specs, "alpha": replace(specs["alpha"], name="Eta")}
    assert find_file(shipped, file, renamed) is None


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"PK\x03\x04 cut"])
def test_documents_are_parsed_where_file_is_unreadable(
    store: Store,
    folder: Path,  # noqa: F811
    content: bytes | None,
) -> None:
    if content is not None:
        (folder / READINGS_FILE).write_bytes(content)
    load(store, folder)
    worker_of(store, shipped_in(store, folder)).drain()
    assert len(stored(store)) == 3


def test_damaged_reading_is_parsed_again(store: Store, folder: Path) -> None:  # noqa: F811
    ship(store, folder)
    forget_documents(store)
    data = bytearray((folder / READINGS_FILE).read_bytes())
    data[60:90] = bytes(30)
    (folder / READINGS_FILE).write_bytes(data)
    load(store, folder)
    worker_of(store, shipped_in(store, folder)).drain()
    assert len(stored(store)) == 3


def many(folder: Path, count: int) -> None:  # noqa: F811
    for n in range(count):
        text = DOCUMENT.format(title=f"Guide {n}", text=f"Row {n} is padded.")
        write(folder / "guidance" / f"guide{n}.md", text)


def test_upload_precedes_remaining_built_in_documents(store: Store, folder: Path) -> None:  # noqa: F811
    many(folder, 2 * SHIPPED_AT_ONCE)
    ship(store, folder)
    forget_documents(store)
    load(store, folder)
    mine = store.submit("mine.md", "# Mine\n\nThe wombat has eight lanes.\n")
    worker_of(store, shipped_in(store, folder)).read_all(threading.Event(), until_upload=True)
    assert store.job(mine).passages == 1
    assert store.jobs.counts()["queued"] == 3 + 2 * SHIPPED_AT_ONCE  # none has begun


def test_failed_transaction_leaves_documents_to_be_parsed(
    store: Store,
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many(folder, SHIPPED_AT_ONCE)
    ship(store, folder)
    forget_documents(store)
    load(store, folder)
    calls: list[int] = []  # the documents of each transaction
    store_versions = worker_module.store_versions

    def fails_once(*arguments: Any) -> Any:
        calls.append(len(arguments[2]))
        progress = store_versions(*arguments)
        if len(calls) == 1:
            raise RuntimeError("after the first documents")
        return progress

    monkeypatch.setattr(worker_module, "store_versions", fails_once)
    worker_of(store, shipped_in(store, folder)).drain()
    documents = 3 + SHIPPED_AT_ONCE
    assert len(stored(store)) == documents and calls == [SHIPPED_AT_ONCE, *[1] * documents]
    with store.catalog.read() as connection:
        versions = connection.execute(t.document_versions.select()).all()
    assert {row.state for row in versions} == {"current"}


def test_equal_readings_give_equal_files(
    store: Store,
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    recorder = ship(store, folder)
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    write_readings(again, dict(reversed(recorder.readings.items())))
    assert (again / READINGS_FILE).read_bytes() == (folder / READINGS_FILE).read_bytes()


# -- vectors

MODEL = "model-384-abc"
MANUAL = "# Manual\n\n## Clocks\n\nThe clock runs at 1.4 GHz.\n\n## Banks\n\nThere are 32 banks.\n"


def unit_rows(count: int) -> dict[str, np.ndarray]:
    rows = np.random.default_rng(1).normal(size=(count, 384)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return {f"{n:064x}": row for n, row in enumerate(rows)}


def test_written_vectors_are_read_back_as_unit_vectors(tmp_path: Path) -> None:
    rows = unit_rows(20)
    write_vectors(tmp_path / VECTORS_FILE, MODEL, rows)
    back = read_vectors(tmp_path / VECTORS_FILE, MODEL)
    assert set(back) == set(rows)
    for name, row in rows.items():
        assert abs(float(back[name] @ row) - 1) < 1e-4
        assert abs(float(np.linalg.norm(back[name])) - 1) < 1e-6


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"PK\x03\x04 cut"])
def test_unreadable_vectors_file_gives_no_vectors(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / VECTORS_FILE).write_bytes(content)
    assert read_vectors(tmp_path / VECTORS_FILE, MODEL) == {}


def test_vectors_of_another_model_are_not_used(store: Store, tmp_path: Path) -> None:
    write_vectors(tmp_path / VECTORS_FILE, MODEL, unit_rows(3))
    assert read_vectors(tmp_path / VECTORS_FILE, "model-384-abd") == {}
    assert put_shipped(store.catalog, tmp_path, store.embedder.fingerprint) == 0


def test_new_directory_embeds_no_shipped_passage(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ingest("manual.md", MANUAL, hardware=("h100",))
    model = store.embedder.fingerprint
    embed_folder(store.catalog, tmp_path, model)
    with store.catalog.write() as connection:
        connection.exec_driver_sql("DELETE FROM embeddings")
    assert put_shipped(store.catalog, tmp_path, model) == 2
    assert put_shipped(store.catalog, tmp_path, model) == 0  # once is enough
    with store.catalog.read() as connection:
        assert embeddings.counts(connection, model) == (2, 2)
    monkeypatch.setattr(LocalEmbedder, "encode", None)  # must not be called
    store.ingest("again.md", MANUAL + "\n", hardware=("h200",))


@pytest.mark.slow(seconds=15)
def test_every_shipped_passage_has_vector(read_builtin: Path) -> None:
    """After a change of hw_manuals or of the passage cutter, run `kernlore knowledge vectors`."""
    from kb.catalog import open_catalog

    catalog = open_catalog(read_builtin)
    with catalog.read() as connection:
        model = str(np.load(BUILTIN / VECTORS_FILE)["model"])
        embedded, passages = embeddings.counts(connection, model)
    catalog.close()
    assert passages > 3_000 and embedded == passages


def test_command_writes_vectors_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "guidance").mkdir(parents=True)
    (tmp_path / "guidance" / "a.md").write_text(
        '---\ntitle: "A"\nsources:\n  - title: "T"\n    url: "https://example.org"\n---\n' + MANUAL
    )
    done = kernlore("knowledge", "vectors", tmp_path, "--json")
    assert done.code == 0, done.err
    path = tmp_path / VECTORS_FILE
    assert done.json["passages"] == 2 and Path(done.json["path"]) == path
    assert len(read_vectors(path, str(np.load(path)["model"]))) == 2


def find_file(
    shipped: ShippedReadings, file: DocumentFile, specs: Mapping[str, HardwareSpec]
) -> ReadDocument | None:
    return shipped.find(sha256(file.data), file.hardware, file.languages, specs)
