"""What reading the built-in documents gives, shipped: the same as reading them anew, used only
where it fits, stored whole or not at all."""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ingestion.builtin import builtin_documents, builtin_hardware, load_builtin
from ingestion.formats import parse
from ingestion.on_node import File
from ingestion.read import ReadDocument, read_document
from ingestion.shipped_documents import AT_ONCE
from ingestion.shipped_readings import FILE, Recorder, ShippedReadings, as_stored, write_readings
from ingestion.worker import Parts, Worker
from kb.catalog import tables as t
from tests.ingestion.test_builtin import DOCUMENT, folder, write  # noqa: F401  (a fixture)
from tests.shared import BUILTIN

pytestmark = pytest.mark.slow(seconds=5)

if TYPE_CHECKING:
    from kb.hardware.spec import HardwareSpec
    from tests.fixtures import Store


def worker_of(store: Store, shipped: ShippedReadings | None, elsewhere: Any = None) -> Worker:
    stores = (store.catalog, store.blobs, store.jobs, store.registry)
    return Worker(
        Parts(*stores, store.embedder, store.tagger, store.parsers, elsewhere, shipped), 60.0
    )


def shipped_in(store: Store, knowledge: Path) -> ShippedReadings:
    return ShippedReadings(knowledge, store.embedder, store.tagger)


def load(store: Store, knowledge: Path) -> None:
    load_builtin(knowledge, store.registry, store.uploads, store.documents)


def ship(store: Store, knowledge: Path) -> Recorder:
    """Write the readings of a folder whose chips are registered."""
    load_builtin(knowledge, store.registry, store.uploads, store.documents)
    recorder = Recorder(shipped_in(store, knowledge), store.embedder, store.tagger)
    worker_of(store, None, recorder).drain()
    write_readings(knowledge, recorder.readings)
    return recorder


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


def test_every_reading_that_ships_is_what_reading_gives(store: Store) -> None:
    """After a change of hw_manuals or of how documents are read: `kernlore knowledge vectors`."""
    from ingestion.findings.tags import SignalWords, Tagger
    from retrieval.diagnose.signals import load_signals

    tagger = Tagger({s.id: SignalWords(s.topics, s.phrases) for s in load_signals()})
    specs: dict[str, HardwareSpec] = {spec.id: spec for spec in builtin_hardware(BUILTIN)}
    shipped = ShippedReadings(BUILTIN, store.embedder, tagger)
    for upload in builtin_documents(BUILTIN):
        file = File(upload.data, upload.name, upload.hardware, upload.languages, False)
        kept = shipped.find_file(file, specs)
        assert kept is not None, f"{upload.source_key} does not ship"
        anew = read_document(
            parse(file.data, file.name),
            store.embedder,
            tagger,
            sorted(file.hardware),
            specs,
            sorted(file.languages),
            with_facts=False,
        )
        assert as_stored(kept) == as_stored(anew), upload.source_key


@pytest.mark.embedded
def test_what_ships_is_stored_as_if_it_had_been_read(
    store: Store,
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ship(store, folder)
    expected = stored(store)
    assert len(expected) == 3
    forget_documents(store)
    monkeypatch.setattr("ingestion.worker.read_document", None)  # nobody may call it
    load(store, folder)
    worker_of(store, shipped_in(store, folder)).drain()
    assert stored(store) == expected
    assert store.jobs.counts()["ready"] >= 3 and "failed" not in store.jobs.counts()


def test_a_document_that_changed_is_read(store: Store, folder: Path) -> None:  # noqa: F811
    ship(store, folder)
    changed = folder / "guidance" / "banks.md"
    write(changed, DOCUMENT.format(title="Banks", text="Swizzle the rows."))
    load(store, folder)
    worker_of(store, shipped_in(store, folder)).drain()
    assert any("Swizzle" in row[3] for row in stored(store))


def test_a_reading_is_used_only_where_it_would_come_out_so(
    store: Store,
    folder: Path,  # noqa: F811
) -> None:
    ship(store, folder)
    specs = store.registry.all()
    (upload,) = (u for u in builtin_documents(folder) if u.name == "banks.md")
    file = File(upload.data, upload.name, upload.hardware, upload.languages, False)
    shipped = shipped_in(store, folder)
    assert isinstance(shipped.find_file(file, specs), ReadDocument)
    assert shipped.find_file(replace(file, data=file.data + b"\n"), specs) is None
    assert shipped.find_file(replace(file, hardware=("alpha",)), specs) is None
    assert shipped.find_file(replace(file, languages=("hip",)), specs) is None
    renamed = {**specs, "alpha": replace(specs["alpha"], name="Eta")}
    assert shipped.find_file(file, renamed) is None


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"PK\x03\x04 cut"])
def test_documents_are_read_where_the_file_cannot_be(
    store: Store,
    folder: Path,  # noqa: F811
    content: bytes | None,
) -> None:
    if content is not None:
        (folder / FILE).write_bytes(content)
    load(store, folder)
    worker_of(store, shipped_in(store, folder)).drain()
    assert len(stored(store)) == 3


def test_a_damaged_reading_is_read_anew(store: Store, folder: Path) -> None:  # noqa: F811
    ship(store, folder)
    forget_documents(store)
    data = bytearray((folder / FILE).read_bytes())
    data[60:90] = bytes(30)
    (folder / FILE).write_bytes(data)
    load(store, folder)
    worker_of(store, shipped_in(store, folder)).drain()
    assert len(stored(store)) == 3


def many(folder: Path, count: int) -> None:  # noqa: F811
    for n in range(count):
        text = DOCUMENT.format(title=f"Guide {n}", text=f"Row {n} is padded.")
        write(folder / "guidance" / f"guide{n}.md", text)


def test_an_upload_goes_before_the_built_in_rest(store: Store, folder: Path) -> None:  # noqa: F811
    many(folder, 2 * AT_ONCE)
    ship(store, folder)
    forget_documents(store)
    load(store, folder)
    mine = store.submit("mine.md", "# Mine\n\nThe wombat has eight lanes.\n")
    worker_of(store, shipped_in(store, folder)).read_all(threading.Event(), until_upload=True)
    assert store.job(mine).passages == 1
    assert store.jobs.counts()["queued"] == 3 + 2 * AT_ONCE  # nothing built in was begun


def test_a_transaction_that_fails_leaves_the_documents_to_be_read(
    store: Store,
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many(folder, AT_ONCE)
    ship(store, folder)
    forget_documents(store)
    load(store, folder)
    calls: list[int] = []

    def fails_once_begun(*arguments: Any) -> Any:
        from ingestion.storing import store_version

        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the third document of a batch")
        return store_version(*arguments)

    monkeypatch.setattr("ingestion.shipped_documents.store_version", fails_once_begun)
    worker_of(store, shipped_in(store, folder)).drain()
    assert len(stored(store)) == 3 + AT_ONCE and len(calls) == 3
    with store.catalog.read() as connection:
        versions = connection.execute(t.document_versions.select()).all()
    assert {row.state for row in versions} == {"current"}


def test_the_same_readings_are_the_same_file(
    store: Store,
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    recorder = ship(store, folder)
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    write_readings(again, dict(reversed(recorder.readings.items())))
    assert (again / FILE).read_bytes() == (folder / FILE).read_bytes()
