"""The ingestion worker: claims jobs, reads documents, makes them current, embeds their passages.

A document is searchable by words as soon as it is read; its job ends (`ready` or `partial`) when
its passages are embedded too. Each batch of vectors is stored, so a crash costs at most one.
Reading and embedding alternate every few seconds. `kb.catalog.jobs` decides which document is read
next; which texts are embedded next is decided here. Built-in documents whose readings ship are
stored without reading them. Knows nothing about file formats: `ingestion.read` is the reader.

A document that takes longer than PATIENCE to read is finished in a thread while the worker goes on
with others, SLOW_READS of them at a time.

One worker per process; several processes may work on one catalog, because a job belongs to the
owner of its lease."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ingestion.builtin.precomputed import ShippedReadings
from ingestion.builtin.samples import with_checks
from ingestion.findings.subjects import FactSource, proposals
from ingestion.hardware import outdated_remarks
from ingestion.read import DocumentFile, DocumentReader, ReadDocument
from ingestion.uploads import REPLACE, TRACE
from kb import telemetry
from kb.blobs import Blobs
from kb.catalog import meta
from kb.catalog import tables as t
from kb.catalog.database import full, store_fault
from kb.catalog.engine import Catalog
from kb.catalog.facts import Fact, add_read_facts, outdated_facts, withdraw_proposals
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.jobs import Jobs, JobState, Turn, checkpoint_of
from kb.catalog.knowledge import corrections, documents, embeddings, versions
from kb.catalog.knowledge.documents import EarlierDocument
from kb.catalog.knowledge.embeddings import MissingText, Pending
from kb.catalog.knowledge.moves import replace_document_moves
from kb.catalog.knowledge.samples import (
    KernelSample,
    replace_document_recipes,
    replace_version_samples,
)
from kb.catalog.knowledge.symbols import replace_version_symbols
from kb.catalog.knowledge.validities import replace_document_validities
from kb.catalog.knowledge.versions import StoredVersion
from kb.catalog.schema import TOO_NEW
from kb.catalog.work import Job
from kb.data_dir import (
    fill_reserve,
    free_reserve,
    has_room_to_read,
    is_alive,
    marked_alive,
    remove_dead_marks,
)
from kb.errors import Conflict, KernloreError, StoreAway, StoreFull
from kb.hardware.lineage import chips_named
from kb.ids import new_id
from kb.workers import keep_lease

READ_SECONDS = 4.0  # of reading before the next batch of vectors
PATIENCE = 10.0  # seconds before a slow document is read concurrently with others
SLOW_READS = 2
READS_AT_ONCE = SLOW_READS + 1  # of a reader, at most
SLOW_LOOK_SECONDS = 0.5
COUNT_SECONDS = 30.0  # after which new vectors of a document that is being embedded take part
FAILED_PAUSE = 5.0  # seconds before the next try after a step failed
LOOK_SECONDS = 5.0  # between looks for work, at most: a lease that expires does not change a row
SHIPPED_AT_ONCE = 32  # documents in a transaction, for which an upload waits
STORED = ("current", "superseded")  # states of a version whose passages are stored
MAX_NAMED = 12  # headings without a card, in a remark
MAX_LISTED = 20  # rows of each list in the progress of a job
COUNTS = ("pages_seen", "pages_parsed", "sections", "passages", "tables", "code_blocks")
# A batch is one transaction of about EMBED_SECONDS: an upload waits for the current batch, and
# larger ones are hardly faster.
EMBED_SECONDS = 3.0
FIRST_BATCH, LARGEST_BATCH = 32, 512  # texts
OLDEST = 4  # one of so many texts of a share is for the oldest document
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _SlowRead:
    """A document that is being read in a thread."""

    job: Job
    version: sa.Row[Any]
    read: Future[ReadDocument]


@dataclass(frozen=True)
class WorkerParts:
    """The stores of a worker, its reader and the fingerprint of the reader's embedding model.
    Built-in documents that are in `shipped` are not read."""

    catalog: Catalog
    blobs: Blobs
    jobs: Jobs
    registry: HardwareRegistry
    model: str
    reader: DocumentReader
    shipped: ShippedReadings | None = None


class Worker:
    """Reads and embeds documents in one process. `lease_seconds` is how long a job stays claimed
    without a sign of life; `on_vectors` is called with the hardware scopes that got new vectors, so
    that the service can refresh its index."""

    def __init__(
        self,
        parts: WorkerParts,
        lease_seconds: float,
        on_vectors: Callable[[set[str]], None] | None = None,
    ) -> None:
        self._parts = parts
        self._lease = lease_seconds
        self._on_vectors = on_vectors or (lambda scopes: None)
        self._owner = new_id(f"worker{os.getpid()}")
        self._slow: dict[str, _SlowRead] = {}  # by job
        self._waiting: dict[str, Job] = {}  # read, not yet embedded
        self._span_ends: dict[str, Callable[[], None]] = {}  # of waiting jobs
        self._fresh: set[str] = set()  # documents with vectors that are not counted yet
        self._counted = time.monotonic()
        self._alive = False
        self._full = False
        self._away: StoreAway | None = None
        self._unsettled = False  # jobs may be running although their step failed
        self._expired_once = False
        self._released = threading.Event()
        self._batch = BatchSize()
        self._shipped = _ShippedDocuments(parts) if parts.shipped is not None else None

    def run(self, stop: threading.Event, idle_seconds: float = 0.5) -> None:
        """Work until `stop` is set. A step that fails ends its jobs, not the worker."""
        idle = _Idle(self._parts.catalog, self._lease)
        with self.alive():
            while not stop.is_set():
                try:
                    worked = (bool(self._slow) or not idle.unchanged()) and self._step()
                except Exception as error:  # the job boundary: recorded, never swallowed
                    log.exception("ingestion step failed")
                    self._give_up(error)
                    stop.wait(FAILED_PAUSE)
                    continue
                if worked:
                    continue
                blocked = self.full or self.away is not None
                if not blocked:
                    idle.found_nothing()
                stop.wait(FAILED_PAUSE if blocked else idle_seconds)

    @property
    def full(self) -> bool:
        """Whether reading waits for space on the disk."""
        return self._full

    @property
    def away(self) -> StoreAway | None:
        """Why the stored files are not available, while reading waits for them."""
        return self._away

    def drain(self) -> None:
        """Work until no job is queued or waits for vectors, or the files are `away`."""
        with self.alive():
            while self._step():
                pass

    def read_all(self, stop: threading.Event, until_upload: bool = False) -> None:
        """Read all queued documents without embedding them: a starting service answers by words
        first. With `until_upload` it returns once an upload of a person is read, which should not
        wait for its vectors until all built-in documents are read."""
        with self.alive():
            self._expire()
            while not stop.is_set() and has_room_to_read(self._data_dir):
                if not self._read_queued(0.0) and not self._finish_slow():
                    return
                if until_upload and self._upload_waits():
                    return

    def hand_back(self) -> None:
        """Queue again the documents that were read here and have no vectors yet, so that another
        process embeds them."""
        self._finish_embedded()
        self.release()
        self._stop_waiting(list(self._waiting.values()))

    def release(self) -> None:
        """Queue again all jobs of this worker. If it works in another thread, the results of its
        current step are discarded."""
        self._released.set()
        self._parts.jobs.give_back(self._owner)

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Show that this worker is alive, and renew its leases in a thread, however long a step
        takes. A caller that pauses between two methods has to be inside it too."""
        if self._alive:
            yield
            return

        def renew() -> bool:
            self._parts.jobs.renew(self._owner, self._lease)
            return True

        with marked_alive(self._data_dir, self._owner):
            self._alive = True
            try:
                renew()
                with keep_lease(renew, self._lease, "heartbeat"):
                    yield
            finally:
                self._alive = False

    @property
    def _data_dir(self) -> Path:
        return self._parts.catalog.data_dir

    def _step(self) -> bool:
        """Read queued documents, embed one batch; False if there was no work."""
        self._full = not has_room_to_read(self._data_dir)
        if self._full or self._parts.catalog.schema_state().state == TOO_NEW:
            return False
        fill_reserve(self._data_dir)
        if self._unsettled:
            self._give_back()
            self._unsettled = False
        self._expire()
        read = self._files_answer() and self._read_queued(uploads_alone=True)
        embedded = self._embed_batch()
        worked = (read and self._away is None) or embedded
        slow = self._finish_slow(0.0 if worked else SLOW_LOOK_SECONDS)
        self._finish_embedded()
        return worked or slow

    def _files_answer(self) -> bool:
        """Whether files can be read, which is checked again after reading one has failed."""
        if self._away is None:
            return True
        try:
            self._parts.blobs.check()
        except StoreAway as error:
            self._away = error
            return False
        log.info("the store of files answers again")
        self._away = None
        return True

    def _expire(self) -> None:
        take_over(self._parts.catalog, self._parts.jobs)
        if not self._expired_once:
            self._expired_once = True
            _retry_expired(self._parts.jobs)
            remove_dead_marks(self._data_dir)

    # -- reading

    def _read_queued(self, seconds: float = READ_SECONDS, *, uploads_alone: bool = False) -> bool:
        """Read for so long, at least one document; False if there was none. With `uploads_alone`
        no built-in document is read while an upload waits for its vectors."""
        deadline = time.monotonic() + seconds
        worked = False
        while self._may_read() and (not worked or time.monotonic() < deadline):
            alone = uploads_alone and self._upload_waits()
            if not alone and self._take_shipped():
                worked = True
                continue
            job = self._parts.jobs.claim(self._owner, self._lease, none_behind=alone)
            if job is None:
                break
            worked = True
            with telemetry.span("job: read", _span_attributes(job), parent=job.payload.get(TRACE)):
                self._read(job, str(job.payload["version_id"]))
        return worked

    def _take_shipped(self) -> bool:
        """Store the next built-in documents without reading them; False if others come first."""
        if self._shipped is None:
            return False
        try:
            stored = self._shipped.store_next(self._owner, self._lease)
        except Exception:  # each is read and fails by itself
            log.exception("built-in documents are read one by one")
            self._shipped = None
            return False
        for job in stored:
            self._start_waiting(job)
        return bool(stored)

    def _may_read(self) -> bool:
        free = len(self._slow) < READS_AT_ONCE
        return free and self._away is None and not self._released.is_set()

    def _upload_waits(self) -> bool:
        """Whether an upload of a person was read here and is not embedded yet."""
        return not all(job.behind for job in self._waiting.values())

    def _read(self, job: Job, version_id: str) -> None:
        """Read the document of a job, or fail the job. A slow one is read on in a thread."""
        with self._job_boundary(job, version_id):
            parts = self._parts
            with parts.catalog.read() as connection:
                version = _versions(connection, [job]).get(version_id)
            if version is None:
                raise Conflict("the document was deleted", hint="Upload it again if it is needed.")
            progress = checkpoint_of(job)
            if progress is not None and version.state in STORED:
                self._stored(job, progress)
                return
            file = DocumentFile(
                parts.blobs.get(version.blob_key),
                version.file_name,
                tuple(sorted(version.declared["hardware"])),
                tuple(version.declared["languages"]),
                with_facts=version.origin == "upload",  # built-in facts are in hardware.toml
            )
            specs = parts.registry.all()
            slow = _SlowRead(job, version, _in_thread(lambda: parts.reader.read(file, specs)))
            if wait([slow.read], PATIENCE).not_done:
                self._slow[job.id] = slow
            else:
                self._store_read(slow)

    def _finish_slow(self, seconds: float = SLOW_LOOK_SECONDS) -> bool:
        """Store the slow documents that have been read, waiting for one at most so long; False if
        none is being read."""
        slow = dict(self._slow)
        if not slow:
            return False
        wait([item.read for item in slow.values()], seconds, FIRST_COMPLETED)
        for job_id, item in slow.items():
            if item.read.done():
                del self._slow[job_id]
                with self._job_boundary(item.job, item.version.id):
                    self._store_read(item)
        return True

    @contextmanager
    def _job_boundary(self, job: Job, version_id: str) -> Iterator[None]:
        """Errors of one document end its job, not the worker."""
        try:
            yield
        except Conflict as error:  # another worker has the job, because the lease expired
            log.warning("job lost", job=job.id, reason=error.message)
        except StoreAway as error:  # not the fault of the document
            log.warning("reading waits", job=job.id, reason=error.message)
            self._away = error
            self._give_back()
        except KernloreError as error:
            self._fail(job, version_id, error.as_json())
        except Exception as error:  # the job boundary: recorded, never swallowed
            log.exception("ingestion failed", job=job.id)
            self._fail(job, version_id, self._error_of(error))

    def _give_back(self) -> None:
        """Queue again the jobs of this worker that are neither read nor being read."""
        self._parts.jobs.give_back(self._owner, but=[*self._waiting, *self._slow])

    def _store_read(self, slow: _SlowRead) -> None:
        """Store a document that has been read. Raises the error of its reader."""
        read = slow.read.result()
        if read.content.passages:
            self._stored(slow.job, self._store(slow.job, slow.version, read))
        else:
            self._fail(slow.job, slow.version.id, _nothing_read(read.content.report))

    def _stored(self, job: Job, progress: Mapping[str, Any]) -> None:
        """The passages of a job's document are in the catalog: they wait for their vectors."""
        jobs = self._parts.jobs
        jobs.heartbeat(job.id, self._owner, self._lease, progress, progress["passages"])
        self._start_waiting(jobs.get(job.id))

    @telemetry.traced("job: store")
    def _store(self, job: Job, version: sa.Row[Any], read: ReadDocument) -> Mapping[str, Any]:
        """Make the version current with all that was read in it, and store the progress of the job
        as its checkpoint, in one transaction. Returns the progress."""
        with self._parts.catalog.write() as connection:
            own = ReadVersion(job, version, read)
            progress = store_versions(connection, self._parts.registry, [own])[0]
            self._parts.jobs.store_checkpoint(connection, job, self._owner, progress)
        return progress

    def _fail(self, job: Job, version_id: str, error: dict[str, Any]) -> None:
        telemetry.describe({}, failed=str(error["code"]))

        def write(connection: Connection) -> None:
            versions.fail_version(connection, version_id, {"error": error})
            self._parts.jobs.finish(connection, job.id, self._owner, "failed", error=error)
            meta.bump_waiting(connection)

        try:
            self._record(write)
        except Conflict as lost:
            log.warning("job lost", job=job.id, reason=lost.message)

    def _record(self, write: Callable[[Connection], None]) -> None:
        """Store how jobs ended; if the disk is full, in the space of the reserve file."""
        try:
            with self._parts.catalog.write() as connection:
                write(connection)
        except DBAPIError as error:
            if not isinstance(store_fault(error), StoreFull):
                raise
            free_reserve(self._data_dir)
            with self._parts.catalog.write() as connection:
                write(connection)

    def _error_of(self, error: Exception) -> dict[str, Any]:
        """The error of a job that failed for another reason than its document."""
        fault = store_fault(error)
        if fault is None and not has_room_to_read(self._data_dir):
            fault = full(f"{type(error).__name__}: {error}")  # Chroma has its own message
        if fault is not None:
            return fault.as_json()
        # Without the statement and its parameters, which are in the log.
        reason = error.orig if isinstance(error, DBAPIError) else error
        return {
            "code": "internal_error",
            "message": f"{type(error).__name__}: {reason}",
            "hint": "This is a defect of Kernlore; please report it with the document.",
            "details": {},
        }

    def _give_up(self, error: Exception) -> None:
        """A step failed: fail the waiting jobs. Their documents stay searchable by words, and a
        retry embeds the rest."""
        try:
            jobs = list(self._waiting.values())
            self._stop_waiting(jobs)
            reason = self._error_of(error)

            def write(connection: Connection) -> None:
                for job in jobs:
                    with suppress(Conflict):  # the lease expired
                        self._parts.jobs.finish(
                            connection, job.id, self._owner, "failed", error=reason
                        )
                meta.bump_waiting(connection)

            self._record(write)
        except Exception:  # of any kind: the next step gives the jobs back
            log.exception("cannot be recorded yet")
        self._unsettled = True

    # -- embedding

    def _start_waiting(self, job: Job) -> None:
        """Wait for the vectors of a document that was read; the wait is a span."""
        self._waiting[job.id] = job
        if telemetry.on():
            end = telemetry.begin("job: vectors", _span_attributes(job), job.payload.get(TRACE))
            self._span_ends[job.id] = end

    def _stop_waiting(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            del self._waiting[job.id]
            if (end := self._span_ends.pop(job.id, None)) is not None:
                end()

    def _embed_batch(self) -> bool:
        """Embed some texts without a vector; False if every text has one."""
        parts = self._parts
        missing = next_texts(parts.catalog, parts.jobs, parts.model, self._batch.texts, self._owner)
        if not missing:
            return False
        missing.sort(key=lambda item: len(item.text))
        started = time.monotonic()
        payloads = [job.payload for job in self._waiting.values()]
        traces = [payload[TRACE] for payload in payloads if TRACE in payload]
        with telemetry.span("embed", {"kernlore.texts": len(missing)}, links=traces):
            vectors = parts.reader.encode([item.text for item in missing])
        self._batch.took(len(missing), time.monotonic() - started)
        shas = [item.sha256 for item in missing]
        with parts.catalog.write() as connection:
            embeddings.put(connection, parts.model, dict(zip(shas, vectors, strict=True)))
            self._fresh |= embeddings.documents_of(connection, shas)
        return True

    def _finish_embedded(self) -> None:
        """End the jobs whose passages all have vectors, and store the progress of the others."""
        if not self._waiting and not self._fresh:
            return
        parts = self._parts
        with parts.catalog.read() as connection:
            pending = embeddings.pending(connection, parts.model)
            done = [job for job in self._waiting.values() if job.subject_id not in pending]
        # A corrected passage has fresh vectors and no job.
        documents = self._fresh | {job.subject_id for job in done if job.subject_id is not None}
        late = time.monotonic() - self._counted > COUNT_SECONDS
        if documents and (done or not pending or late):
            with parts.catalog.write() as connection:
                meta.bump_vectors(connection, self._fresh)
                scopes = embeddings.document_scopes(connection, sorted(documents))
            self._on_vectors(scopes)
            self._fresh, self._counted = set(), time.monotonic()
        with parts.catalog.write() as connection:
            self._report(connection, pending)
            for job in done:
                self._finish(connection, job)
            if done:
                meta.bump_waiting(connection)
        self._stop_waiting(done)

    def _report(self, connection: Connection, pending: Mapping[str, Pending]) -> None:
        """Store how many passages of each waiting document have their vector."""
        counts: dict[str, int] = {}
        for job in self._waiting.values():
            left = pending.get(str(job.subject_id))
            counts[job.id] = max(0, (job.passages or 0) - (left.passages if left else 0))
        self._parts.jobs.report_passages(connection, self._owner, counts)

    def _finish(self, connection: Connection, job: Job) -> None:
        progress = {key: value for key, value in job.progress.items() if key != "stage"}
        state: JobState = "partial" if progress.pop("state", "") == "partial" else "ready"
        try:
            self._parts.jobs.finish(connection, job.id, self._owner, state, result=progress)
        except Conflict as error:
            log.warning("job lost", job=job.id, reason=error.message)


def _in_thread(call: Callable[[], ReadDocument]) -> Future[ReadDocument]:
    """Start a call in a thread that does not keep the process alive."""
    result: Future[ReadDocument] = Future()
    context = copy_context()  # the trace of the job

    def run() -> None:
        try:
            result.set_result(context.run(call))
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True, name="read document").start()
    return result


def _versions(connection: Connection, jobs: Sequence[Job]) -> dict[str, sa.Row[Any]]:
    """The versions of these jobs with the origin of their document, by id."""
    rows = connection.execute(
        sa.select(t.document_versions, t.documents.c.origin)
        .join(t.documents, t.documents.c.id == t.document_versions.c.document_id)
        .where(t.document_versions.c.id.in_([str(job.payload["version_id"]) for job in jobs]))
    )
    return {row.id: row for row in rows}


def _nothing_read(report: Mapping[str, Any]) -> dict[str, Any]:
    """The error of a job whose file has no text."""
    reasons = [*(f["reason"] for f in report["pages_failed"]), *report["warnings"]]
    return {
        "code": "parse_failed",
        "message": f"nothing could be read: {'; '.join(reasons[:5]) or 'no text in it'}",
        "hint": "Scanned pages need OCR first; upload a version with a text layer."
        if report["pages_failed"]
        else "A file without text adds no knowledge: leave it out, or upload what it refers to.",
        "details": dict(report),
    }


def _span_attributes(job: Job) -> dict[str, telemetry.Value]:
    return {
        "kernlore.job.id": job.id,
        "kernlore.job.attempt": job.attempts,
        "kernlore.document.id": job.subject_id or "",
    }


# -- storing a version


@dataclass(frozen=True)
class ReadVersion:
    """A version with its job, and all that was read in it."""

    job: Job
    version: sa.Row[Any]
    read: ReadDocument

    @property
    def uploaded(self) -> bool:
        """Whether a person has sent it."""
        return bool(self.version.origin != "builtin")


def store_versions(
    connection: Connection, registry: HardwareRegistry, read: Sequence[ReadVersion]
) -> list[dict[str, Any]]:
    """Make versions of different documents current with all that was read in them, inside the
    caller's transaction; returns the progress of their jobs."""
    read = [_titled(own) for own in read]
    earlier = [_checked(connection, own) if own.uploaded else None for own in read]
    contents = [(own.version.id, own.read.content) for own in read]
    stored = versions.activate(connection, contents)
    both = list(zip(stored, read, strict=True))
    current = [(version, own.read) for version, own in both if version.active]
    for version, _ in current:
        if not version.first:
            withdraw_proposals(connection, version.document.id)
    proposed = [_propose(connection, registry, *pair) for pair in both]
    replace_document_moves(connection, [(v, own.moves) for v, own in current])
    replace_document_validities(connection, [(v, own.validities) for v, own in current])
    for version, own in current:
        if own.recipes or not version.first:
            replace_document_recipes(connection, version, own.recipes)
    replace_version_symbols(connection, [(v, own.read.cards) for v, own in both])
    replace_version_samples(connection, [(v, _kernels(own)) for v, own in both])
    return [
        _progress(own.read, _remarks(connection, registry, version, own, before, facts), facts)
        for (version, own), before, facts in zip(both, earlier, proposed, strict=True)
    ]


def _titled(own: ReadVersion) -> ReadVersion:
    """Without the title that was read, if its sender has given one."""
    if not own.job.payload.get("title_given"):
        return own
    read = own.read
    return replace(own, read=replace(read, content=replace(read.content, title=None)))


def _checked(connection: Connection, own: ReadVersion) -> EarlierDocument:
    """The state of a document before. Raises UnrelatedVersion."""
    earlier = documents.earlier_document(connection, own.version.document_id)
    if not own.job.payload.get(REPLACE):
        content = own.read.content
        title = content.title or own.version.declared["title"]
        texts = (passage.text for passage in content.passages)
        documents.check_replacement(connection, earlier, title, texts)
    return earlier


def _propose(
    connection: Connection, registry: HardwareRegistry, version: StoredVersion, own: ReadVersion
) -> int:
    if not version.active:
        return 0
    return add_read_facts(connection, _proposals(connection, registry, own.version, own.read))


def _kernels(own: ReadVersion) -> Sequence[KernelSample]:
    read = own.read
    return read.kernels if own.uploaded else with_checks(read.kernels, read.front_matter)


def _remarks(
    connection: Connection,
    registry: HardwareRegistry,
    version: StoredVersion,
    own: ReadVersion,
    earlier: EarlierDocument | None,
    proposed: int,
) -> list[str]:
    if not version.active:
        return []
    document_id = version.document.id
    remarks = documents.remarks(connection, version.id, earlier) if earlier else []
    if own.uploaded and not proposed:
        remarks += _about_other_chips(registry, own.version, own.read)
    if not version.first:
        remarks += corrections.remarks(corrections.unfit(connection, document_id))
        remarks += outdated_remarks(outdated_facts(connection, document_id=document_id))
    return remarks


def _proposals(
    connection: Connection, registry: HardwareRegistry, version: sa.Row[Any], read: ReadDocument
) -> list[Fact]:
    """The facts of a document as rows of its hardware, with its current title."""
    if not read.facts:
        return []
    title = connection.execute(
        sa.select(t.documents.c.title).where(t.documents.c.id == version.document_id)
    ).scalar_one()
    file_name = version.file_name
    source = FactSource(version.document_id, version.id, title or file_name, file_name)
    headings = [" > ".join(section.path) for section in read.content.sections]
    texts = [*headings, *(passage.text for passage in read.content.passages)]
    hardware = sorted(version.declared["hardware"])
    return proposals(read.facts, source, hardware, registry.all(), texts)


def _about_other_chips(
    registry: HardwareRegistry, version: sa.Row[Any], read: ReadDocument
) -> list[str]:
    """A remark on a document whose facts are all about other chips than it was uploaded for."""
    hardware = version.declared["hardware"]
    if not read.facts or not hardware:
        return []
    titles = (read.content.title, version.declared["title"], version.file_name)
    sections = (" ".join(section.path) for section in read.content.sections)
    text = "\n".join((*filter(None, titles), *sections))
    others = sorted(chips_named(text, registry.all()) - set(hardware))
    named = ", ".join(others[:MAX_NAMED]) or "another chip"
    own = " and ".join(sorted(hardware))
    return [
        f"Numbers were read as facts ({len(read.facts)}), and none is proposed for {own}: the text"
        f" names {named} as their subject. If it is the same chip, upload the file for that id, or"
        f" make {own} its child (`parent` in hardware.toml), which inherits its facts."
    ]


def _progress(read: ReadDocument, remarks: Sequence[str], proposed: int) -> dict[str, Any]:
    """The progress of a job whose document was read and has to be embedded: its final state, the
    counts of the report, and the first rows of its lists."""
    report = {**read.content.report, "passages": len(read.content.passages)}
    left_out = [f"{' > '.join(s.section[-2:])}: {s.reason}" for s in read.samples_left_out]
    return {
        "stage": "embedding",
        "state": "ready" if read.complete else "partial",
        **{key: report[key] for key in COUNTS},
        "pages_failed": report["pages_failed"][:MAX_LISTED],
        "characters_left_out": report["characters_left_out"],
        "facts_proposed": proposed,
        "rows_not_read": report.get("rows_not_read", [])[:MAX_LISTED],
        "recipes_proposed": len(read.recipes),
        "symbols": len(read.cards),
        "samples": len(read.kernels),
        "samples_left_out": left_out[:MAX_LISTED],
        "warnings": report["warnings"][:MAX_LISTED],
        "remarks": [*remarks, *_without_card(report.get("headings_without_card", []))],
    }


def _without_card(names: Sequence[str]) -> list[str]:
    """A remark on headings that look like instructions and gave no card."""
    if not names:
        return []
    shown = ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "")
    several = len(names) > 1
    look = "headings look like instructions" if several else "heading looks like an instruction"
    return [
        f"{len(names)} {look} and gave no card: {shown}. A line such as `Syntax: {names[0]} ...`"
        " under the heading, or a table with a column Instruction, gives one; `kernlore knowledge"
        " symbols --propose` asks a language model."
    ]


# -- built-in documents whose readings ship


class _ShippedDocuments:
    """Stores several of them in a transaction, in which their jobs are taken: a killed process has
    stored all of these or none. All other queued documents come first."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts
        self._skipped: set[str] = set()  # jobs whose documents have to be read

    def store_next(self, owner: str, lease_seconds: float) -> Sequence[Job]:
        """Store the next documents; returns their jobs, which belong to the owner now. Empty if
        other documents come first."""
        parts = self._parts
        specs = parts.registry.all()  # in another transaction
        with parts.catalog.read() as connection:
            if not self._queued(connection, locked=False):
                return []  # the usual case, which needs no write lock
        with parts.catalog.write() as connection:
            queued = self._queued(connection, locked=True)
            by_id = _versions(connection, queued)
            found: dict[str, ReadVersion] = {}  # the first of each document
            for job in queued:
                version = by_id.get(str(job.payload["version_id"]))
                read = self._reading(job, version, specs)
                if read is None or version is None:
                    self._skipped.add(job.id)
                else:
                    found.setdefault(version.document_id, ReadVersion(job, version, read))
            if not found:
                return []
            taken = [own.job for own in found.values()]
            progress = store_versions(connection, parts.registry, list(found.values()))
            checkpoints = {str(job.id): own for job, own in zip(taken, progress, strict=True)}
            return parts.jobs.take_with_checkpoints(
                connection, taken, checkpoints, owner, lease_seconds
            )

    def _queued(self, connection: Connection, *, locked: bool) -> list[Job]:
        jobs = self._parts.jobs
        return jobs.only_behind(connection, SHIPPED_AT_ONCE, self._skipped, locked=locked)

    def _reading(self, job: Job, version: sa.Row[Any] | None, specs: Any) -> ReadDocument | None:
        shipped = self._parts.shipped
        if shipped is None or version is None or version.origin != "builtin":
            return None
        if checkpoint_of(job) is not None or version.state != "staged":
            return None
        about = version.declared
        read = shipped.find(version.sha256, about["hardware"], about["languages"], specs)
        return read if read is not None and read.content.passages else None


# -- turns at the embedding model
#
# Uploads come before built-in documents. Shares (uploads of one group, or about the same hardware)
# get equal parts of a batch. Within a share the document with the fewest missing texts comes first,
# because it is ready soonest; a part of the batch is for the oldest document, so that a stream of
# small ones cannot delay it forever.


class BatchSize:
    """The number of texts that a worker embeds at a time."""

    def __init__(self) -> None:
        self.texts = FIRST_BATCH

    def took(self, texts: int, seconds: float) -> None:
        """Adapt the next batch to EMBED_SECONDS, by the time of the last one."""
        if 2 * texts >= self.texts or seconds > EMBED_SECONDS:
            fitting = int(texts * EMBED_SECONDS / max(seconds, 0.001))
            self.texts = min(max(fitting, FIRST_BATCH), 2 * self.texts, LARGEST_BATCH)


def next_texts(
    catalog: Catalog, jobs: Jobs, model: str, batch: int, owner: str
) -> list[MissingText]:
    """A batch of texts without a vector of this model, each once, of the documents whose turn it
    is. Documents of other workers are theirs to embed."""
    turns = jobs.turns()
    others = jobs.held_by_others(owner)
    with catalog.read() as connection:
        waiting = []
        for document_id, left in embeddings.pending(connection, model).items():
            if document_id not in others:
                # A corrected passage has no job, and a person waits for it.
                turn = turns.get(document_id) or Turn(share=document_id)
                waiting.append(
                    PendingDocument(document_id, turn.share, turn.behind, left.texts, left.first)
                )
        return embeddings.missing(connection, model, allot(waiting, batch))


@dataclass(frozen=True)
class PendingDocument:
    """A document with texts to embed. `first` orders documents by age; one that is `behind` waits
    for all that are not."""

    document_id: str
    share: str
    behind: bool
    texts: int
    first: int


def allot(waiting: Sequence[PendingDocument], batch: int) -> dict[str, int]:
    """The number of texts of each document in a batch; documents without any are left out."""
    first = [document for document in waiting if not document.behind] or waiting
    shares: dict[str, list[PendingDocument]] = {}
    for document in first:
        shares.setdefault(document.share, []).append(document)
    sizes = {share: sum(d.texts for d in documents) for share, documents in shares.items()}
    allotted: dict[str, int] = {}
    for share, texts in equal_parts(sizes, batch).items():
        allotted |= _within_share(shares[share], texts)
    return {document_id: texts for document_id, texts in allotted.items() if texts}


def equal_parts(counts: Mapping[str, int], batch: int) -> dict[str, int]:
    """`batch` in equal parts, none larger than counts; the rest of a small one goes to others."""
    parts: dict[str, int] = {}
    left = batch
    for position, name in enumerate(sorted(counts, key=lambda name: (counts[name], name))):
        # Rounded up: of two shares and one text, one gets it.
        equal = -(-left // (len(counts) - position))
        parts[name] = min(counts[name], equal)
        left -= parts[name]
    return parts


def _within_share(documents: Sequence[PendingDocument], texts: int) -> dict[str, int]:
    oldest = min(documents, key=lambda document: document.first)
    parts = {oldest.document_id: min(oldest.texts, -(-texts // OLDEST))}
    left = texts - parts[oldest.document_id]
    for document in sorted(documents, key=lambda d: (d.texts, d.first)):
        more = min(left, document.texts - parts.get(document.document_id, 0))
        parts[document.document_id] = parts.get(document.document_id, 0) + more
        left -= more
    return parts


# -- looks for work


class _Idle:
    """Skips looks for work while no document, vector or job has changed since a look that found
    none. A look takes a write transaction and goes over all passages; `unchanged` takes
    microseconds, and one statement after another change, such as a logged retrieval."""

    def __init__(self, catalog: Catalog, lease_seconds: float) -> None:
        self._catalog = catalog
        self._seconds = min(LOOK_SECONDS, lease_seconds)
        self._version: Hashable = None  # of the catalog when the counters were read
        self._counters: tuple[int, int] | None = None  # before the last look
        self._until = 0.0  # the end of the validity of the last look, by the monotonic clock

    def unchanged(self) -> bool:
        """Whether the last look found no work and is still valid."""
        valid = time.monotonic() < self._until
        version = self._catalog.version()
        if valid and version == self._version:
            return True
        with self._catalog.read() as connection:
            state = meta.state(connection)
        counters = (state.stamp, state.waiting)
        valid = valid and counters == self._counters
        if not valid:
            self._until = 0.0
        self._version, self._counters = version, counters
        return valid

    def found_nothing(self) -> None:
        """Record that the last look found no work."""
        if not self._until:
            self._until = time.monotonic() + self._seconds


# -- jobs of stopped workers


def take_over(catalog: Catalog, jobs: Jobs) -> None:
    """Queue the jobs of dead workers again, on this machine and on others."""
    jobs.requeue_abandoned(lambda owner: is_alive(catalog.data_dir, owner))


def _retry_expired(jobs: Jobs) -> None:
    """Queue jobs again that earlier versions failed because their process was killed."""
    for job in jobs.in_state("failed"):
        if (job.error or {}).get("code") == "lease_expired":
            with suppress(Conflict):  # another replica was first
                jobs.retry(job.id)
