"""One test per row of COMPLAINTS.md about the store and ingestion, named after its row."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from reportlab.pdfgen.canvas import Canvas

from ingestion.parse_process import ParseLimits, ParserProcess
from ingestion.uploads import FileUpload
from kb.catalog import Catalog, open_catalog
from kb.catalog.knowledge import embeddings
from kb.errors import InvalidRequest, ParseFailed
from kb.index.chroma import ChromaIndex
from kb.scope import ALL_ACCESS
from retrieval.snapshot.store import SnapshotStore
from tests import chroma_server
from tests.catalogs import all_missing, environment_of
from tests.ingestion import golden
from tests.store_servers import lose_index, size_of_index

pytestmark = pytest.mark.slow(seconds=15)

if TYPE_CHECKING:
    from tests.fixtures import Store

ROOT = Path(__file__).resolve().parents[2]
SENTENCE = "The persimmon unit of this chip issues two loads per clock."
MANUAL = f"# Chip manual\n\n## Loads\n\n{SENTENCE}\n\n## Stores\n\nStores take four clocks.\n"


def test_01_deleted_document_is_not_answered(store: Store, chroma: ChromaIndex) -> None:
    document = store.ingest("manual.md", MANUAL, hardware=("h100",)).document_id
    chroma.open_or_rebuild()
    second_client: Catalog = open_catalog(store.data_dir)
    second_process = SnapshotStore(second_client, store.embedder.fingerprint)
    vector = store.embedder.encode_query(SENTENCE)
    assert second_process.current().near(("h100",), vector, 5, ALL_ACCESS)
    for index in (chroma, None):
        assert any(SENTENCE in p.text for p in store.by_meaning(SENTENCE, "h100", index=index))
    store.documents.delete(document)
    for index in (chroma, None):
        assert store.by_meaning(SENTENCE, "h100", index=index) == []
    assert second_process.current().near(("h100",), vector, 5, ALL_ACCESS) == {}
    assert store.by_words(SENTENCE, "h100") == []
    second_client.close()


def test_02_job_of_a_killed_worker_is_resumed(store: Store) -> None:
    submitted = store.submit("manual.md", MANUAL, hardware=("h100",))
    claim = (
        "import os, sys, signal; from pathlib import Path; from kb.catalog import open_catalog;"
        "from kb.catalog.jobs import Jobs; url = os.environ.get('KERNLORE_CATALOG');"
        "jobs = Jobs(open_catalog(Path(sys.argv[1]), url));"
        "assert jobs.claim('doomed', 0.1); os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", claim, str(store.data_dir)]
    environment = os.environ | environment_of(store.data_dir)
    died = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    assert died.returncode == -signal.SIGKILL
    assert store.job(submitted).state == "running"
    time.sleep(0.15)
    store.worker().drain()
    job = store.job(submitted)
    assert (job.state, job.attempts, job.error) == ("ready", 2, None)


def test_03_partial_ingest_is_never_ready(store: Store) -> None:
    job = store.job(store.ingest("lost.pdf", golden.lost_page(), hardware=("h100",)))
    result = job.result
    assert job.state == "partial"
    assert result["pages_seen"] == result["pages_parsed"] + len(result["pages_failed"])
    assert result["passages"] > 0 and all(page["reason"] for page in result["pages_failed"])


def test_04_upsert_loses_no_passages(store: Store) -> None:
    """The property test over arbitrary documents is in tests/ingestion/test_passages.py."""
    lines = [f"Line {n} of the register file description ends here." for n in range(60)]
    text = "# M\n\n" + "\n\n".join(lines)
    for body in (text, text + "\n\nA last line.\n", text):
        document = store.ingest("manual.md", body, hardware=("h100",)).document_id
        preserved = " ".join(p.text for p in store.passages_of(document))
        assert "".join(preserved.split()) == "".join(body.removeprefix("# M").split())


def test_05_uploading_twice_adds_no_rows(store: Store) -> None:
    tables = ["documents", "document_versions", "sections", "passages", "embeddings"]
    tables += ["passage_hardware", "work"]
    store.ingest("manual.md", MANUAL, hardware=("h100",))
    before = {table: store.rows(table) for table in tables}
    for _ in range(2):
        store.ingest("manual.md", MANUAL, hardware=("h100",))
    store.ingest("renamed.md", MANUAL, hardware=("h100",))
    assert {table: store.rows(table) for table in tables} == before


def test_06_identity_is_source_key_and_bytes(store: Store) -> None:
    scope = {"hardware": ("h100",), "source_key": "chip-manual"}
    outcomes = [
        store.submit("v1.md", MANUAL, **scope).outcome,
        store.submit("v1-renamed.md", MANUAL, **scope).outcome,
        store.submit("v2.md", MANUAL + "New.\n", **scope).outcome,
        store.submit("other.md", MANUAL + "New.\n", hardware=("h100",)).outcome,
    ]
    assert outcomes == ["created", "unchanged", "new_version", "duplicate_of"]


def test_07_new_content_replaces_old_in_every_index(store: Store, chroma: ChromaIndex) -> None:
    document = store.ingest("manual.md", MANUAL, hardware=("h100",)).document_id
    chroma.open_or_rebuild()
    revised = MANUAL.replace("persimmon", "tangerine")
    store.submit("manual.md", revised, hardware=("h100",))

    def bring_up_to_date(scopes: set[str]) -> None:
        chroma.sync(scopes)

    store.worker(on_vectors=bring_up_to_date).drain()
    found = [
        store.by_words("persimmon tangerine unit", "h100"),
        store.by_meaning(SENTENCE, "h100"),
        store.by_meaning(SENTENCE, "h100", index=chroma),
    ]
    for hits in found:
        texts = " ".join(p.text for p in hits)
        assert "tangerine" in texts and "persimmon" not in texts
    assert any("persimmon" in p.text for p in store.passages_of(document, 1))


def test_08_another_pipeline_reads_unchanged_bytes_again(store: Store) -> None:
    first = store.ingest("manual.md", MANUAL, hardware=("h100",))
    newer = store.uploads_of("pipeline with another cutter")
    again = newer.submit(FileUpload("manual.md", MANUAL.encode(), hardware=("h100",)))
    assert (again.outcome, again.document_id) == ("new_version", first.document_id)
    store.worker().drain()
    version = store.documents.get(first.document_id).version
    assert version is not None and (version.number, version.pipeline) == (
        2,
        "pipeline with another cutter",
    )
    assert store.rows("embeddings") == len(store.passages_of(first.document_id))


def test_09_pages_and_boxes_survive_roman_front_matter(store: Store) -> None:
    document = store.ingest("manual.pdf", golden.manual(), hardware=("h100",)).document_id
    found = store.passages_of(document)
    assert found
    for passage in found:
        assert passage.boxes and passage.page_index == passage.boxes[0]["page_index"]
        assert passage.page_label == passage.boxes[0]["page_label"]
        assert all(box["x1"] > box["x0"] and box["y1"] > box["y0"] for box in passage.boxes)
    labels = {p.page_label for p in found}
    assert labels & {"i", "ii", "iii", "iv"} and labels & {"1", "2", "3"}
    numbered = next(p for p in found if p.page_label == "1")
    assert numbered.page_index is not None and numbered.page_index > 0


def test_10_table_pieces_repeat_caption_and_all_header_rows(store: Store) -> None:
    header = (
        "<tr><th colspan=3>Occupancy</th></tr><tr><th colspan=2>per SM</th><th>per block</th></tr>"
        "<tr><th>warps</th><th>blocks</th><th>threads</th></tr>"
    )
    rows = "".join(f"<tr><td>{n}</td><td>{n * 3}</td><td>{n * 32}</td></tr>" for n in range(90))
    page = (
        "<html><body><h1>Limits</h1><table><caption>Table 7. Occupancy limits</caption>"
        f"<thead>{header}</thead><tbody>{rows}</tbody></table></body></html>"
    )
    document = store.ingest("limits.html", page, hardware=("h100",)).document_id
    pieces = [p for p in store.passages_of(document) if p.kind == "table"]
    assert len(pieces) > 2
    for piece in pieces:
        for words in ("Table 7. Occupancy limits", "Occupancy", "per SM", "per block", "warps"):
            assert words in piece.lead


def test_11_no_passage_is_longer_than_window(store: Store) -> None:
    dense = "0x41000 vmcnt(0) 각낙닥 漢字 " * 200
    document = store.ingest("dense.md", f"# {'각' * 120}\n\n{dense}\n\n```\n{dense}\n```\n")
    assert store.job(document).state == "ready"
    with store.catalog.read() as connection:
        embedded, all_passages = embeddings.counts(connection, store.embedder.fingerprint)
    assert embedded == all_passages > 5
    with pytest.raises(InvalidRequest, match="window"):
        store.embedder.encode(["tile " * 400])


def test_12_pdf_with_text_layer_is_read_quickly(store: Store, tmp_path: Path) -> None:
    """No layout model is involved. The bound allows for a busy machine."""
    path = tmp_path / "long.pdf"
    canvas = Canvas(str(path))
    for page in range(60):
        for line in range(40):
            canvas.drawString(
                72, 740 - 16 * line, f"Page {page}, line {line}: a warp has 32 lanes."
            )
        canvas.showPage()
    canvas.save()
    store.parsers.parse(path, "warm.pdf")
    started = time.monotonic()
    parsed = store.parsers.parse(path, "long.pdf")
    pages_per_second = parsed.pages_parsed / (time.monotonic() - started)
    assert parsed.pages_parsed == 60 and pages_per_second > 5


def test_13_parser_out_of_memory_fails_alone(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.txt"
    bomb.write_text("bomb")
    limits = ParseLimits(memory_mib=1024, cpu_seconds=20, wall_seconds=20.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ParserProcess(limits, entry="tests.ingestion.test_parse_process:echo") as pool:
        with pytest.raises(ParseFailed):
            pool.parse(bomb, "bomb.txt")
        bomb.write_text("still here")
        assert pool.parse(bomb, "bomb.txt").elements
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_14_index_shrinks_and_does_not_grow_on_equal_content(
    store: Store, chroma: ChromaIndex
) -> None:
    put_vectors(store, 400)
    chroma.open_or_rebuild()
    full = size_of_index(store.data_dir)
    for _ in range(3):
        assert chroma.sync().added == 0
    assert size_of_index(store.data_dir) <= full * 1.02
    store.documents.delete(store.documents.find()[0].id)
    put_vectors(store, 20)
    chroma.rebuild()
    assert size_of_index(store.data_dir) < full / 2


def test_15_memory_is_bounded_under_query_load(store: Store, chroma: ChromaIndex) -> None:
    """A short bounded check; the long soak is a benchmark."""
    put_vectors(store, 300)
    chroma.open_or_rebuild()
    vectors = np.random.default_rng(5).normal(size=(600, store.embedder.dimension))
    snapshot = store.snapshots.current()

    def ask(start: int, count: int) -> None:
        for vector in vectors[start : start + count].astype(np.float32):
            chroma.query(("h100",), vector, 20, ALL_ACCESS)
            snapshot.near(("h100",), vector, 20, ALL_ACCESS)

    ask(0, 200)
    gc.collect()
    before = resident_kib()
    ask(200, 400)
    gc.collect()
    assert resident_kib() - before < 24 * 1024


def test_17_unreadable_index_is_rebuilt_at_start(store: Store, chroma: ChromaIndex) -> None:
    store.ingest("manual.md", MANUAL, hardware=("h100",))
    chroma.open_or_rebuild()
    expected = [p.text for p in store.by_meaning(SENTENCE, "h100", index=chroma)]
    chroma.close()
    if not chroma_server.EVERYWHERE:  # the file of a server is read by the server only
        database = store.data_dir / "chroma" / "chroma.sqlite3"
        os.truncate(database, database.stat().st_size // 3)
        assert chroma.open_or_rebuild().added == 2
        assert [p.text for p in store.by_meaning(SENTENCE, "h100", index=chroma)] == expected
        chroma.close()
    lose_index(store.data_dir)
    assert chroma.open_or_rebuild().added == 2
    assert [p.text for p in store.by_meaning(SENTENCE, "h100", index=chroma)] == expected


def test_18_scope_is_searched_without_metadata_filter(store: Store, chroma: ChromaIndex) -> None:
    """One collection per hardware: a query for one chip never touches vectors of another."""
    for chip in ("h100", "mi300x"):
        store.ingest("manual.md", MANUAL.replace("chip", chip), hardware=(chip,))
    assert chroma.open_or_rebuild().collections == 2
    hits = store.by_meaning(SENTENCE, "mi300x", index=chroma)
    assert hits and {p.hardware for p in hits} == {("mi300x",)}


def test_19_another_model_has_separate_vectors(store: Store) -> None:
    store.ingest("manual.md", MANUAL, hardware=("h100",))
    other = "other-model-8-abc"
    with store.catalog.write() as connection:
        missing = all_missing(connection, other)
        assert len(missing) == 2  # all texts are to be embedded again, none is lost
        eight = {m.sha256: np.eye(8, dtype=np.float32)[n] for n, m in enumerate(missing)}
        embeddings.put(connection, other, eight)
    directory = store.data_dir / "chroma"
    for model, query in (
        (store.embedder.fingerprint, store.embedder.encode_query(SENTENCE)),
        (other, np.eye(8, dtype=np.float32)[0]),
    ):
        index = ChromaIndex(store.catalog, model, directory)
        index.open_or_rebuild()
        hits = index.query(("h100",), query, 5, ALL_ACCESS)
        snapshot = SnapshotStore(store.catalog, model).current()
        found = snapshot.near(("h100",), query, 5, ALL_ACCESS)
        assert len(hits) == 2 and list(snapshot.numbers(hits).values()) == list(found)
        index.close()


def test_next_in_line_upload_names_cannot_leave_their_folder(store: Store) -> None:
    submitted = store.submit("../../../tmp/evil.md", MANUAL)
    version = store.documents.get(submitted.document_id).version
    assert version is not None and version.file_name == "tmp/evil.md"
    stored = [p for p in store.data_dir.rglob("*") if p.is_file() and "evil" in p.name]
    assert stored == []


def test_next_in_line_many_threads_share_one_store(store: Store, chroma: ChromaIndex) -> None:
    """Queries, uploads and deletions at once: no error, and no remaining lock."""
    store.ingest("manual.md", MANUAL, hardware=("h100",))
    chroma.open_or_rebuild()
    vector = store.embedder.encode_query(SENTENCE)
    failures: list[BaseException] = []

    def guarded(work: object) -> None:
        try:
            for _ in range(10):
                work()  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)

    def churn() -> None:
        name = f"{threading.get_ident()}.md"
        submitted = store.submit(name, MANUAL + name, hardware=("h100",))
        store.documents.delete(submitted.document_id)

    work: list[Callable[[], object]] = [
        lambda: chroma.query(("h100",), vector, 5, ALL_ACCESS),
        lambda: store.snapshots.publish().near(("h100",), vector, 5, ALL_ACCESS),
        churn,
        churn,
    ]
    threads = [threading.Thread(target=guarded, args=(w,)) for w in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def put_vectors(store: Store, count: int) -> None:
    """A document with this many passages and random vectors: load without embedding."""
    body = "# M\n\n" + "\n\n".join(f"## S{n}\n\nPassage {n} of {count}." for n in range(count))
    store.submit(f"load-{count}.md", body, hardware=("h100",))
    store.worker().read_all(threading.Event())
    model = store.embedder.fingerprint
    noise = np.random.default_rng(count)
    with store.catalog.write() as connection:
        missing = all_missing(connection, model)
        rows = noise.normal(size=(len(missing), store.embedder.dimension)).astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        put = {item.sha256: row for item, row in zip(missing, rows, strict=True)}
        embeddings.put(connection, model, put)


def resident_kib() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("no /proc here")
    line = next(x for x in status.read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1])
