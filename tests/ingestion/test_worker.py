"""The worker: every job ends, nothing is stored twice, a kill costs a retry and no data."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ingestion import worker as worker_module
from ingestion.uploads import Submitted
from ingestion.worker import Worker, take_over
from kb.catalog import meta
from kb.catalog.knowledge import embeddings, passages
from kb.catalog.knowledge.passages import Patch
from kb.catalog.work import Job
from kb.embedding import LocalEmbedder, Vectors
from tests.catalogs import environment_of
from tests.ingestion import golden
from tests.waiting import until

pytestmark = pytest.mark.slow(seconds=10)

if TYPE_CHECKING:
    from tests.fixtures import Store

ROOT = Path(__file__).resolve().parents[2]
MANUALS = {
    f"manual{n}.md": f"# Manual {n}\n\n"
    + "\n\n".join(
        f"## Part {n}.{part}\n\nUnit {n} of kind {part} has {n * part} lanes." for part in range(4)
    )
    for n in range(4)
}
# Workers in a separate process, one per line of standard input, which names a data directory and
# the servers of its stores. Loading the model takes seconds, so the process serves several tests.
# Its leases are short.
WORK = """
import json, sys
from pathlib import Path
from ingestion.parse_process import ParserProcess
from tests.fixtures import VOCABULARY, Store
from ingestion.findings.tags import Tagger
from kb.embedding import open_embedder
embedder = open_embedder("all-MiniLM-L6-v2", Path(sys.argv[1]))
embedder.encode(["warm"])
with ParserProcess() as parsers:
    for line in sys.stdin:
        data_dir, servers = json.loads(line)
        store = Store(Path(data_dir), embedder, parsers, Tagger(VOCABULARY), servers)
        worker = store.worker(lease=0.5)
        print("working", flush=True)
        worker.drain()
        print("done", flush=True)
"""


class OtherProcess:
    """Starts on first use, and again after a kill."""

    def __init__(self, model_cache: Path) -> None:
        self._arguments = [sys.executable, "-c", WORK, str(model_cache)]
        self._process: subprocess.Popen[str] | None = None

    def work(self, data_dir: Path) -> None:
        """Returns as soon as the worker runs."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._arguments,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        line = json.dumps([str(data_dir), environment_of(data_dir)])
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        self.wait_for("working")

    def wait_for(self, word: str) -> None:
        assert self._process is not None and self._process.stdout is not None
        assert self._process.stdout.readline() == f"{word}\n"

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None


@pytest.fixture(scope="module")
def other(model_cache: Path) -> Iterator[OtherProcess]:
    process = OtherProcess(model_cache)
    yield process
    process.kill()


def contents(store: Store) -> dict[str, list[str]]:
    """The contents of the catalog, without ids and times."""
    queries = {
        "passages": "SELECT d.source_key, p.ordinal, p.text, p.active FROM passages p"
        " JOIN documents d ON d.id = p.document_id",
        "sections": "SELECT v.number, d.source_key, s.ordinal, s.heading FROM sections s"
        " JOIN document_versions v ON v.id = s.version_id JOIN documents d ON d.id = v.document_id",
        "versions": "SELECT d.source_key, v.number, v.state FROM document_versions v"
        " JOIN documents d ON d.id = v.document_id",
        "hardware": "SELECT p.text, h.hardware_id FROM passage_hardware h"
        " JOIN passages p ON p.id = h.passage_id",
        "tags": "SELECT p.text, g.kind, g.value FROM passage_tags g"
        " JOIN passages p ON p.id = g.passage_id",
        "embeddings": "SELECT text_sha256 FROM embeddings",
        "jobs": "SELECT d.source_key, j.state FROM work j JOIN documents d ON d.id = j.subject_id",
    }
    with store.catalog.read() as connection:
        return {
            name: sorted(map(repr, connection.exec_driver_sql(query).all()))
            for name, query in queries.items()
        }


def submit_all(store: Store) -> list[str]:
    submitted = [store.submit(name, text, hardware=("h100",)) for name, text in MANUALS.items()]
    return [s.job_id for s in submitted if s.job_id]


def test_two_processes_share_work(
    store: Store, make_store: Callable[[Path], Store], tmp_path: Path, other: OtherProcess
) -> None:
    undisturbed = make_store(tmp_path / "undisturbed")
    submit_all(undisturbed)
    undisturbed.worker().drain()
    submit_all(store)
    other.work(store.data_dir)
    store.worker().drain()
    other.wait_for("done")
    store.worker().drain()
    assert contents(store) == contents(undisturbed)


def test_kill_9_costs_retry_and_no_data(
    store: Store, make_store: Callable[[Path], Store], tmp_path: Path, other: OtherProcess
) -> None:
    undisturbed = make_store(tmp_path / "undisturbed")
    submit_all(undisturbed)
    undisturbed.worker().drain()

    jobs = submit_all(store)
    other.work(store.data_dir)
    moment = random.uniform(0.0, 0.6)
    time.sleep(moment)
    other.kill()

    time.sleep(0.6)  # until the lease of the dead worker expires
    store.worker().drain()
    assert {store.jobs.get(job).state for job in jobs} == {"ready"}, f"killed after {moment} s"
    assert contents(store) == contents(undisturbed), f"killed after {moment} s"


def test_job_of_a_worker_killed_after_reading_is_resumed(
    store: Store, make_store: Callable[[Path], Store], tmp_path: Path
) -> None:
    """The worst moment: the version is current, but the job is not finished."""
    undisturbed = make_store(tmp_path / "undisturbed")
    submit_all(undisturbed)
    undisturbed.worker().drain()
    jobs = submit_all(store)
    dead = store.worker(lease=0.05)
    assert dead._read_queued()
    time.sleep(0.1)
    assert store.by_words("lanes", "h100")  # read, so it can be found by its words
    sections = store.rows("sections")
    living = store.worker()
    living.drain()
    assert {store.jobs.get(job).attempts for job in jobs} == {2}
    assert store.rows("sections") == sections
    assert contents(store) == contents(undisturbed)
    dead._finish_embedded()  # resumes: its jobs have another owner now
    assert contents(store) == contents(undisturbed)


def test_uploads_survive_any_number_of_kills(store: Store, other: OtherProcess) -> None:
    jobs = submit_all(store)
    for _ in range(6):
        other.work(store.data_dir)
        time.sleep(random.uniform(0.0, 0.1))
        other.kill()
    time.sleep(0.6)  # the last lease expires
    store.worker().drain()
    assert {store.jobs.get(job).state for job in jobs} == {"ready"}
    assert {store.jobs.get(job).error for job in jobs} == {None}
    assert store.by_words("lanes", "h100")


@pytest.mark.embedded
def test_jobs_failed_by_earlier_releases_for_killed_workers_are_read(store: Store) -> None:
    """Whether or not their document was read."""
    read = store.ingest("manual.md", "# M\n\nText.\n")
    unread = store.submit("other.md", "# O\n\nOther text.\n")
    damaged = store.submit("damaged.pdf", b"%PDF-1.4 nothing")
    store.worker().drain()
    assert store.job(damaged).state == "failed"
    fail = "UPDATE work SET state = 'failed', error = ?, payload = json_remove(payload, '$.kept')"
    with store.catalog.write() as connection:
        for job in (read, unread):
            error = json.dumps({"code": "lease_expired", "message": "", "hint": "", "details": {}})
            connection.exec_driver_sql(f"{fail} WHERE id = ?", (error, job.job_id))
    store.worker().drain()
    assert store.job(read).state == store.job(unread).state == "ready"
    assert store.job(damaged).state == "failed"
    assert store.rows("embeddings") == 2


def test_released_worker_leaves_no_running_job(store: Store) -> None:
    jobs = submit_all(store)
    worker = store.worker()
    assert worker._read_queued(2)
    worker.release()
    assert store.jobs.counts() == {"queued": len(jobs)}
    worker.drain()  # its thread may still run
    assert store.jobs.counts() == {"queued": len(jobs)}
    store.worker().drain()
    assert {store.jobs.get(job).attempts for job in jobs} == {1}
    assert store.jobs.counts() == {"ready": len(jobs)}


def test_worker_is_alive_between_reading_and_embedding(store: Store) -> None:
    """Loading the model takes seconds: a worker killed meanwhile must not be waited for."""
    jobs = submit_all(store)
    worker = store.worker()
    with worker.alive():
        worker.read_all(threading.Event())
        [lock] = (store.data_dir / "locks").iterdir()
        os.link(lock, remaining := lock.with_suffix(".kept"))
        store.worker()._expire()
        assert store.jobs.counts() == {"running": len(jobs)}
    remaining.rename(lock)  # without its lock, as after a kill
    store.worker().drain()
    assert store.jobs.counts() == {"ready": len(jobs)}


def test_new_version_changes_every_index_in_one_transaction(store: Store) -> None:
    old = "# Manual\n\n## Clocks\n\nThe plum clock runs at 1410 MHz.\n"
    first = store.ingest("manual.md", old, hardware=("h100",))
    store.submit("manual.md", old.replace("plum", "quince"), hardware=("h100",))
    assert store.by_words("plum", "h100") and store.by_meaning("plum clock", "h100")
    store.worker().drain()
    for found in (store.by_words("clock", "h100"), store.by_meaning("clock", "h100")):
        assert [p.text for p in found] == ["The quince clock runs at 1410 MHz."]
    [before] = store.passages_of(first.document_id, 1)
    assert "plum" in before.text


def test_reading_precedes_embedding(store: Store) -> None:
    jobs = submit_all(store)
    worker = store.worker()
    worker.read_all(threading.Event())
    assert store.rows("embeddings") == 0
    assert store.by_words("lanes", "h100")
    assert {store.jobs.get(job).progress["stage"] for job in jobs} == {"embedding"}
    worker.drain()
    assert {store.jobs.get(job).state for job in jobs} == {"ready"}


def paragraphs(words: str, count: int) -> str:
    """A manual whose passages all differ."""
    parts = (f"## Part {n}\n\nThe {words} of part {n} holds {n} tiles." for n in range(count))
    return "# Manual\n\n" + "\n\n".join(parts) + "\n"


def ended_in_order(store: Store, *submitted: Submitted) -> list[str]:
    jobs = [(store.job(answer), answer.name) for answer in submitted]
    assert all(job.state == "ready" for job, _ in jobs)
    return [name for _, name in sorted(jobs, key=lambda pair: pair[0].finished_at or "")]


def test_uploads_precede_built_in_and_small_precede_large_documents(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestion.worker.FIRST_BATCH", 8)
    monkeypatch.setattr("ingestion.worker.LARGEST_BATCH", 8)
    builtin = store.submit("b.md", paragraphs("builtin", 9), source_key="b", origin="builtin")
    large = store.submit("large.md", paragraphs("large", 24), hardware=("h100",), group="one")
    small = store.submit("small.md", paragraphs("small", 3), hardware=("h100",), group="two")
    store.worker().drain()
    assert ended_in_order(store, builtin, large, small) == ["small.md", "large.md", "b.md"]


def test_built_in_documents_wait_for_vectors_of_uploads(store: Store) -> None:
    builtin = store.submit("b.md", "# B\n\nText.\n", source_key="b", origin="builtin")
    mine = store.submit("mine.md", "# M\n\nMine.\n")
    worker = store.worker()
    assert worker._step()
    assert (store.job(mine).state, store.job(builtin).state) == ("ready", "queued")
    assert worker._step()
    assert store.job(builtin).state == "ready"


def test_upload_interrupts_reading_of_built_in_documents_at_start(store: Store) -> None:
    """Its vectors would otherwise wait until all built-in documents are read."""
    builtin = [
        store.submit(f"b{n}.md", f"# B{n}\n\nText {n}.\n", source_key=f"b{n}", origin="builtin")
        for n in range(3)
    ]
    mine = store.submit("mine.md", "# M\n\nMine.\n")
    worker = store.worker()
    worker.read_all(threading.Event(), until_upload=True)
    assert store.job(mine).progress["stage"] == "embedding"
    assert {store.job(submitted).state for submitted in builtin} == {"queued"}
    worker.drain()
    assert ended_in_order(store, mine, *builtin)[0] == "mine.md"


class CountingEmbedder(LocalEmbedder):
    """The model of the store; records its input."""

    def __init__(self, folder: Path, cache: Path) -> None:
        super().__init__(folder, cache)
        self.given: list[str] = []

    def encode(self, texts: Sequence[str]) -> Vectors:
        self.given += texts
        return super().encode(texts)


def test_identical_passages_are_embedded_once(
    store: Store, make_store: Callable[[Path], Store], model_cache: Path
) -> None:
    """In one document, across documents of one batch, and where the vector exists."""
    counting = CountingEmbedder(store.embedder._folder, model_cache)
    store.embedder = counting
    again = "## Note\n\nThe same warning stands in every chapter of this manual, word for word.\n\n"
    manual = "# Manual\n\n" + again * 40
    for name, hardware in (("a.md", "h100"), ("b.md", "h200"), ("c.md", "a100")):
        store.submit(name, manual, hardware=(hardware,))
    store.worker().drain()
    assert store.rows("passages") == 120
    assert len(counting.given) == 1
    store.ingest("d.md", manual.replace("# Manual\n\n", "# Manual\n\nA preface.\n\n"))
    assert len(counting.given) == 2 and "preface" in counting.given[1]
    assert store.jobs.counts() == {"ready": 4}


def test_progress_is_updated_with_each_batch(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestion.worker.FIRST_BATCH", 8)
    monkeypatch.setattr("ingestion.worker.LARGEST_BATCH", 8)
    submitted = store.submit("manual.md", paragraphs("large", 20))
    worker = store.worker()
    seen = []
    while worker._step():
        job = store.job(submitted)
        seen.append((job.state, job.passages_done, job.passages))
    assert seen == [("running", 8, 20), ("running", 16, 20), ("ready", 20, 20)]


def test_stopped_worker_reads_no_further(store: Store) -> None:
    submit_all(store)
    stop = threading.Event()
    stop.set()
    store.worker().read_all(stop)
    assert store.jobs.counts() == {"queued": len(MANUALS)}


def test_lost_pages_make_document_partial(store: Store) -> None:
    submitted = store.ingest("lost.pdf", golden.lost_page(), hardware=("h100",))
    job = store.job(submitted)
    assert job.state == "partial"
    assert job.result["pages_seen"] == job.result["pages_parsed"] + len(job.result["pages_failed"])
    assert job.result["pages_failed"][0]["reason"]


def test_file_without_text_fails_with_reason(store: Store) -> None:
    submitted = store.ingest("empty.md", "---\ntitle: Nothing\n---\n")
    job = store.job(submitted)
    assert job.state == "failed" and job.error is not None
    assert job.error["code"] == "parse_failed" and job.error["hint"]
    version = store.documents.get(submitted.document_id).version
    assert version is not None and version.state == "failed"


def test_invalid_moves_fail_document_not_the_worker(store: Store) -> None:
    bad = store.submit("bad.md", "---\nmoves: nonsense\n---\n# Bad\n\nText.\n")
    good = store.submit("good.md", "# Good\n\nText.\n")
    store.worker().drain()
    error = store.job(bad).error
    assert error is not None and error["code"] == "invalid_knowledge"
    assert store.job(good).state == "ready"


def test_document_deleted_while_waiting_leaves_no_rows(store: Store) -> None:
    submitted = store.submit("manual.md", "# M\n\nText.\n")
    worker = store.worker()
    worker.read_all(threading.Event())
    store.documents.delete(submitted.document_id)
    worker.drain()
    assert store.rows("passages") == store.rows("work") == 0


def test_built_in_documents_are_retried_automatically(store: Store) -> None:
    submitted = store.submit("manual.md", "# M\n\nText.\n", origin="builtin")
    assert store.jobs.claim("dead", 0.01)
    time.sleep(0.03)
    take_over(store.catalog, store.jobs)
    # The next start submits the file again before anything is read; it is already staged.
    again = store.submit("manual.md", "# M\n\nText.\n", origin="builtin")
    assert (again.outcome, again.job_id) == ("unchanged", None)
    store.worker().drain()
    job = store.job(submitted)
    assert (job.state, job.attempts) == ("ready", 2)


def test_long_correction_is_embedded_in_parts(store: Store) -> None:
    submitted = store.ingest("manual.md", "# M\n\nText.\n", hardware=("h100",))
    [passage] = store.passages_of(submitted.document_id)
    long = "The register file is split among warps. " * 60 + "Persimmons spill."
    assert store.embedder.count_tokens(long) > store.embedder.window
    passages.correct(store.catalog, passage.id, Patch(text=long), "ana")
    reported: list[set[str]] = []
    store.worker(on_vectors=reported.append).drain()
    assert reported == [{"h100"}]  # no job waits, but the index must be notified
    assert store.by_meaning("register file of a warp", "h100")[0].id == passage.id
    with store.catalog.read() as connection:
        assert embeddings.counts(connection, store.embedder.fingerprint) == (1, 1)


def test_failing_step_ends_its_jobs_and_not_the_worker(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = LocalEmbedder.encode
    broken = threading.Event()
    broken.set()

    def sometimes(self: LocalEmbedder, texts: Sequence[str]) -> Vectors:
        if broken.is_set():
            raise OSError("the model file is gone")
        return encode(self, texts)

    monkeypatch.setattr(LocalEmbedder, "encode", sometimes)
    monkeypatch.setattr(worker_module, "FAILED_PAUSE", 0.05)
    submitted = store.submit("manual.md", "# M\n\nText.\n")
    stop = threading.Event()
    thread = threading.Thread(target=store.worker().run, args=(stop, 0.05))
    thread.start()
    try:
        failed = job_in(store, submitted.job_id or "", "failed")
        assert failed.error is not None and "model file" in failed.error["message"]
        broken.clear()
        store.jobs.retry(failed.id)
        assert job_in(store, failed.id, "ready").attempts == 2
    finally:
        stop.set()
        thread.join()


def job_in(store: Store, job_id: str, state: str) -> Job:
    job: Job = until(lambda: store.jobs.get(job_id), lambda job: job.state == state, pause=0.02)
    return job


def test_facts_are_proposed_once_and_withdrawn_with_their_table(store: Store) -> None:
    table = "# M\n\n| Property | Value |\n| --- | --- |\n| Memory bandwidth | 3.35 TB/s |\n"
    submitted = store.ingest("m.md", table, hardware=("h100",))
    [fact] = store.registry.facts("h100", status="proposed")
    assert (fact.key, fact.number) == ("memory_bandwidth", 3.35e12)
    assert (fact.title, fact.locator.split(",")[0], fact.subject_kind) == ("M", "table", "chip")
    store.ingest("m.md", table + "\nMore text.\n", hardware=("h100",))
    assert [f.id for f in store.registry.facts("h100")] == [fact.id]
    store.ingest("m.md", table.replace("3.35", "4.8"), hardware=("h100",))
    assert [f.number for f in store.registry.facts("h100")] == [4.8e12]
    store.documents.delete(submitted.document_id)
    assert store.registry.facts("h100") == []


def test_repeated_table_states_its_facts_once(store: Store) -> None:
    table = "| Property | Value |\n| --- | --- |\n| Memory bandwidth | 3.35 TB/s |\n"
    manual = f"# M\n\n## Board A\n\nBoth boards.\n\n{table}\n## Board B\n\nBoth boards.\n\n{table}"
    submitted = store.ingest("m.md", manual, hardware=("h100",))
    assert store.job(submitted).state == "ready"
    [fact] = store.registry.facts("h100", status="proposed")
    assert fact.locator.startswith("Board A")


# -- an idle worker


def test_idle_worker_sends_no_queries_until_change(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ingest("manual.md", "# M\n\nText.\n")
    looks: list[float] = []
    step = Worker._step

    def counted(self: Worker) -> bool:
        looks.append(time.monotonic())
        return step(self)

    monkeypatch.setattr(Worker, "_step", counted)
    stop = threading.Event()
    thread = threading.Thread(target=store.worker().run, args=(stop, 0.01))
    thread.start()
    try:
        time.sleep(1.0)
        assert len(looks) <= 5  # not the hundred of its polling interval
        for use in range(30):  # such as those of logged retrievals
            with store.catalog.write() as connection:
                meta.put(connection, "other", use)
            time.sleep(0.02)
        assert len(looks) <= 5
        second = store.submit("other.md", "# N\n\nMore text.\n")
        until(lambda: store.job(second).state == "ready", pause=0.02)
        assert store.job(second).attempts == 1
    finally:
        stop.set()
        thread.join()
