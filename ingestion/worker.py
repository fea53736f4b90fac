"""The ingestion worker: claims jobs, reads documents, makes them current, embeds what has no vector
yet.

A document is searchable by words as soon as it is read; its job ends (`ready` or `partial`) when
its passages are embedded too. Vectors are kept as they come, so a crash costs at most one batch.
Reading and embedding take turns of a few seconds. Whose document is next is decided by
`kb.catalog.jobs` for reading and by `ingestion.turns` for embedding.

One worker a process; several processes may work on one catalog, because a job belongs to who holds
its lease."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import DBAPIError

from ingestion.elements import ParsedDocument
from ingestion.elsewhere import Elsewhere
from ingestion.findings.tags import Tagger
from ingestion.idle import Idle
from ingestion.job_report import internal_error, nothing_read
from ingestion.job_spans import JobSpans
from ingestion.left_behind import READ, retry_read, take_over
from ingestion.next_texts import BatchSize, next_texts
from ingestion.on_node import File
from ingestion.parse_process import ParserPool
from ingestion.passages import encode_whole
from ingestion.read import ReadDocument, read_document
from ingestion.shipped_documents import ShippedDocuments
from ingestion.shipped_readings import ShippedReadings
from ingestion.storing import store_version, titled
from kb import telemetry
from kb.blobs import Blobs
from kb.catalog import tables as t
from kb.catalog.database import full, store_fault
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.jobs import Jobs, JobState, checkpoint_of
from kb.catalog.knowledge import candidates, embeddings, versions
from kb.catalog.knowledge.embeddings import Pending
from kb.catalog.schema import TOO_NEW
from kb.catalog.work import Job
from kb.data_dir import (
    fill_reserve,
    free_reserve,
    has_room_to_read,
    marked_alive,
    remove_dead_marks,
)
from kb.embedding import Embedder
from kb.errors import Conflict, KernloreError, StoreAway, StoreFull
from kb.ids import new_id
from kb.workers import keep_lease

READ_SECONDS = 4.0  # of reading before the next batch of vectors
FAILED_PAUSE = 5.0  # seconds before the next try after a step failed
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Parts:
    """The stores and models that a worker uses; `elsewhere` reads and embeds in place of them, and
    built-in documents that are in `shipped` are not read at all.
    """

    catalog: Catalog
    blobs: Blobs
    jobs: Jobs
    registry: HardwareRegistry
    embedder: Embedder
    tagger: Tagger
    parsers: ParserPool
    elsewhere: Elsewhere | None = None
    shipped: ShippedReadings | None = None


class Worker:
    """Reads and embeds documents in one process. `lease_seconds` is how long a job stays claimed
    without a sign of life; `on_vectors` is called with the hardware scopes that got new vectors
    (the service refreshes its index).
    """

    def __init__(
        self,
        parts: Parts,
        lease_seconds: float,
        on_vectors: Callable[[set[str]], None] | None = None,
    ) -> None:
        self._parts = parts
        self._lease = lease_seconds
        self._on_vectors = on_vectors or (lambda scopes: None)
        self._owner = new_id(f"worker{os.getpid()}")
        self._waiting: dict[str, Job] = {}  # read, not yet embedded
        self._spans = JobSpans()
        self._fresh: set[str] = set()  # scopes with vectors that `on_vectors` has not had
        self._living = False
        self._full = False
        self._away: StoreAway | None = None
        self._unsettled = False  # whether jobs are running whose end could not be written
        self._looked = False  # at what others have left
        self._released = threading.Event()
        self._batch = BatchSize()
        self._shipped = ShippedDocuments(parts) if parts.shipped is not None else None

    def run(self, stop: threading.Event, idle_seconds: float = 0.5) -> None:
        """Work until `stop` is set. A step that fails ends the jobs it was for, not the worker."""
        idle = Idle(self._parts.catalog, self._lease)
        with self.alive():
            while not stop.is_set():
                try:
                    worked = not idle.nothing_new() and self._step()
                except Exception as error:  # the job boundary: recorded, never swallowed
                    log.exception("ingestion step failed")
                    self._give_up(error)
                    stop.wait(FAILED_PAUSE)
                    continue
                if worked:
                    continue
                waits = self.full or self.away is not None
                idle.found_nothing(for_now=waits)
                stop.wait(FAILED_PAUSE if waits else idle_seconds)

    @property
    def full(self) -> bool:
        """Whether it waits for space on the disk."""
        return self._full

    @property
    def away(self) -> StoreAway | None:
        """Why the stored files cannot be had, where reading waits for them."""
        return self._away

    def drain(self) -> None:
        """Work until nothing is queued and nothing waits, or what is queued cannot be had: see
        `away`.
        """
        with self.alive():
            while self._step():
                pass

    def read_all(self, stop: threading.Event, until_upload: bool = False) -> None:
        """Read everything that is queued, without embedding: a starting service answers by words
        first. With `until_upload` it returns as soon as a document that a person sent is read,
        which does not wait for its vectors until all that is built in is read.
        """
        with self.alive():
            self._expire()
            while not stop.is_set() and has_room_to_read(self._data_dir) and self._read_queued(0.0):
                if until_upload and self._upload_waits():
                    return

    def hand_back(self) -> None:
        """Queue again what was read here and has no vectors yet: another process embeds it."""
        self._finish_embedded()
        self.release()
        self._spans.done(self._waiting.values())
        self._waiting.clear()

    def release(self) -> None:
        """Queue again all that is this worker's, also while it works in another thread: what that
        still does is discarded.
        """
        self._released.set()
        self._parts.jobs.give_back(self._owner)

    def _step(self) -> bool:
        """Read what is queued, embed one batch; False when there was nothing to do."""
        self._full = not has_room_to_read(self._data_dir)
        if self._full or self._parts.catalog.schema_state().state == TOO_NEW:
            return False
        fill_reserve(self._data_dir)
        if self._unsettled:
            self._parts.jobs.give_back(self._owner, but=self._waiting)
            self._unsettled = False
        self._expire()
        read = self._files_answer() and self._read_queued(uploads_alone=True)
        embedded = self._embed_batch()
        self._finish_embedded()
        return (read and self._away is None) or embedded

    def _files_answer(self) -> bool:
        """Whether files can be read. They are taken to be there until reading one says otherwise;
        vectors are made meanwhile.
        """
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

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Show that this worker lives, and renew the leases of its jobs from a thread of its own,
        however long a step takes. Whoever does something else between two steps enters it around
        them: in between the worker has jobs too.
        """
        if self._living:
            yield
            return

        def renew() -> bool:
            self._parts.jobs.renew(self._owner, self._lease)
            return True

        with marked_alive(self._data_dir, self._owner):
            self._living = True
            try:
                renew()
                with keep_lease(renew, self._lease, "heartbeat"):
                    yield
            finally:
                self._living = False

    @property
    def _data_dir(self) -> Path:
        return self._parts.catalog.data_dir

    def _expire(self) -> None:
        take_over(self._parts.catalog, self._parts.jobs)
        if not self._looked:
            self._looked = True
            retry_read(self._parts.catalog, self._parts.jobs)
            remove_dead_marks(self._data_dir)

    # -- reading

    def _read_queued(self, seconds: float = READ_SECONDS, *, uploads_alone: bool = False) -> bool:
        """Read for so long, at least one document; False when there was none. With `uploads_alone`
        nothing built in is read while an upload waits for its vectors.
        """
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
            self._read(job)
        return worked

    def _take_shipped(self) -> bool:
        """Store built-in documents without reading them, where that is what comes next."""
        shipped = self._shipped
        if shipped is None:
            return False
        try:
            stored = shipped.store_some(self._owner, self._lease)
        except Exception:  # one by one, each has its own end
            log.exception("built-in documents are read one by one")
            self._shipped = None
            return False
        for job in stored:
            self._waiting[job.id] = job
            self._spans.waits(job)
        return bool(stored)

    def _may_read(self) -> bool:
        return self._away is None and not self._released.is_set()

    def _upload_waits(self) -> bool:
        """Whether a document that a person sent is read here and not yet embedded."""
        return not all(job.behind for job in self._waiting.values())

    def _read(self, job: Job) -> None:
        version_id = str(job.payload["version_id"])
        with self._spans.reading(job):
            self._read_or_fail(job, version_id)

    def _read_or_fail(self, job: Job, version_id: str) -> None:
        try:
            self._read_version(job, version_id)
        except Conflict as error:  # the lease ran out; whoever took over will finish
            log.warning("job lost", job=job.id, reason=error.message)
        except StoreAway as error:  # says nothing about the document
            log.warning("reading waits", job=job.id, reason=error.message)
            self._away = error
            self._parts.jobs.give_back(self._owner, but=self._waiting)
        except KernloreError as error:
            self._fail(job, version_id, error.as_json())
        except Exception as error:  # the job boundary: recorded, never swallowed
            log.exception("ingestion failed", job=job.id)
            self._fail(job, version_id, self._error_of(error))

    def _read_version(self, job: Job, version_id: str) -> None:
        version = self._version(version_id)
        checkpoint = checkpoint_of(job)
        if checkpoint is not None and version.state in READ:
            self._await_vectors(job, checkpoint)  # somebody has read it, and was stopped then
            return
        hardware = sorted(version.declared["hardware"])
        read = self._read_file(version, hardware)
        if not read.content.passages:
            self._finish_empty(job, version_id, dict(read.content.report))
            return
        self._await_vectors(job, self._store(job, version, titled(job, read)))

    def _read_file(self, version: sa.Row[Any], hardware: list[str]) -> ReadDocument:
        parts, specs = self._parts, self._parts.registry.all()
        facts = version.origin != "builtin"  # theirs are in hardware.toml, with sources
        spoken = version.declared["languages"]
        if parts.elsewhere is not None:
            data = parts.blobs.get(version.blob_key)
            file = File(data, version.file_name, tuple(hardware), tuple(spoken), facts)
            return parts.elsewhere.read(file, specs)
        return read_document(
            self._parse(version),
            parts.embedder,
            parts.tagger,
            hardware,
            specs,
            spoken,
            with_facts=facts,
        )

    def _await_vectors(self, job: Job, progress: Mapping[str, Any]) -> None:
        count = progress["passages"]
        self._parts.jobs.heartbeat(job.id, self._owner, self._lease, progress, count)
        self._waiting[job.id] = self._parts.jobs.get(job.id)
        self._spans.waits(job)

    def _version(self, version_id: str) -> sa.Row[Any]:
        with self._parts.catalog.read() as connection:
            version = connection.execute(
                sa.select(t.document_versions, t.documents.c.origin)
                .join(t.documents, t.documents.c.id == t.document_versions.c.document_id)
                .where(t.document_versions.c.id == version_id)
            ).one_or_none()
        if version is None:
            raise Conflict("the document was deleted", hint="Upload it again if it is needed.")
        return version

    @telemetry.traced("job: parse")
    def _parse(self, version: sa.Row[Any]) -> ParsedDocument:
        with tempfile.TemporaryDirectory(prefix="kernlore-") as folder:
            path = Path(folder) / "document"
            path.write_bytes(self._parts.blobs.get(version.blob_key))
            return self._parts.parsers.parse(path, version.file_name)

    @telemetry.traced("job: store")
    def _store(self, job: Job, version: sa.Row[Any], read: ReadDocument) -> dict[str, Any]:
        """Make the version current, with all that was read in it, in one transaction. Returns the
        job's progress, which the job keeps from that moment on.
        """
        with self._parts.catalog.write() as connection:
            progress = store_version(connection, self._parts.registry, version, read)
            self._parts.jobs.store_checkpoint(connection, job, self._owner, progress)
        return progress

    def _finish_empty(self, job: Job, version_id: str, report: dict[str, Any]) -> None:
        """A file that parses but says nothing is a failure with the reason, never ready."""
        self._fail(job, version_id, nothing_read(report))

    def _fail(self, job: Job, version_id: str, error: dict[str, Any]) -> None:
        telemetry.describe({}, failed=str(error["code"]))

        def write(connection: sa.Connection) -> None:
            versions.fail_version(connection, version_id, {"error": error})
            self._parts.jobs.finish(connection, job.id, self._owner, "failed", error=error)

        try:
            self._record(write)
        except Conflict as lost:
            log.warning("job lost", job=job.id, reason=lost.message)

    def _record(self, write: Callable[[sa.Connection], None]) -> None:
        """Write how jobs ended. On a full disk into the space that is kept for it."""
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
        """What a job says of a failure that is not its document's."""
        fault = store_fault(error)
        if fault is None and not has_room_to_read(self._data_dir):
            fault = full(f"{type(error).__name__}: {error}")  # Chroma says it in its own words
        return fault.as_json() if fault is not None else internal_error(error)

    def _give_up(self, error: Exception) -> None:
        """A step failed: fail what it was for, or do so before the next step."""
        try:
            self._fail_waiting(error)
        except Exception:  # whatever it is, the worker goes on and records it before its next step
            log.exception("cannot be recorded yet")
        self._unsettled = True

    # -- embedding

    def _embed_batch(self) -> bool:
        """Embed some texts that have no vector; False when there are none."""
        parts = self._parts
        model = parts.embedder.fingerprint
        missing = next_texts(parts.catalog, parts.jobs, model, self._batch.texts, self._owner)
        if not missing:
            return False
        missing.sort(key=lambda item: len(item.text))
        started = time.monotonic()
        texts = [item.text for item in missing]
        with self._spans.embedding(len(missing), self._waiting.values()):
            elsewhere = parts.elsewhere
            vectors = elsewhere.encode(texts) if elsewhere else encode_whole(parts.embedder, texts)
        self._batch.took(len(missing), time.monotonic() - started)
        shas = [item.sha256 for item in missing]
        with parts.catalog.write() as connection:
            embeddings.put(connection, model, dict(zip(shas, vectors, strict=True)))
            self._fresh |= embeddings.text_scopes(connection, shas)
        return True

    def _finish_embedded(self) -> None:
        """End the jobs whose passages all have vectors now, and say how far the others are."""
        if not self._waiting and not self._fresh:
            return
        parts = self._parts
        with parts.catalog.read() as connection:
            pending = candidates.pending(connection, parts.embedder.fingerprint)
            done = [job for job in self._waiting.values() if job.subject_id not in pending]
            subjects = [job.subject_id for job in done if job.subject_id is not None]
            scopes = embeddings.document_scopes(connection, subjects)
        # A corrected passage has fresh vectors and no job.
        scopes |= self._fresh
        if scopes and (done or not pending):
            self._on_vectors(scopes)
            self._fresh = set()
        with parts.catalog.write() as connection:
            self._report(connection, pending)
            for job in done:
                self._finish(connection, job)
                del self._waiting[job.id]
        self._spans.done(done)

    def _report(self, connection: sa.Connection, pending: Mapping[str, Pending]) -> None:
        """Write how many passages of each waiting document have their vector."""
        counts: dict[str, int] = {}
        for job in self._waiting.values():
            left = pending.get(str(job.subject_id))
            counts[job.id] = max(0, (job.passages or 0) - (left.passages if left else 0))
        self._parts.jobs.report_passages(connection, self._owner, counts)

    def _finish(self, connection: sa.Connection, job: Job) -> None:
        progress = {key: value for key, value in job.progress.items() if key != "stage"}
        state: JobState = "partial" if progress.pop("state", "") == "partial" else "ready"
        try:
            self._parts.jobs.finish(connection, job.id, self._owner, state, result=progress)
        except Conflict as error:
            log.warning("job lost", job=job.id, reason=error.message)

    def _fail_waiting(self, error: Exception) -> None:
        """Fail the waiting jobs. Their documents stay searchable by words, and a retry embeds the
        rest.
        """
        jobs, self._waiting = list(self._waiting.values()), {}
        self._spans.done(jobs)
        reason = self._error_of(error)

        def write(connection: sa.Connection) -> None:
            for job in jobs:
                with suppress(Conflict):  # the lease ran out, which says as much
                    self._parts.jobs.finish(connection, job.id, self._owner, "failed", error=reason)

        self._record(write)
