"""The services that operations are carried out with, wired together once.

`open_services` opens the catalog and builds the parts, without models; `Background` adds the
threads of a running service: loading the built-in knowledge, ingestion, the vector index.
"""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from threadpoolctl import threadpool_limits

from ingestion.builtin import BuiltinReport, files_key, load_builtin, load_hardware, loaded_by_newer
from ingestion.builtin.precomputed import ShippedReadings, put_shipped
from ingestion.findings.tags import SignalWords, Tagger
from ingestion.hardware import RegisteredHardware, register_hardware
from ingestion.limits import DocumentLimits
from ingestion.page_images import PageImages
from ingestion.parse_process import ParseLimits, ParserProcess
from ingestion.read import DocumentReader, LocalReader, pipeline_fingerprint, pipeline_parts
from ingestion.uploads import Uploads, read_again
from ingestion.worker import READS_AT_ONCE, Worker, WorkerParts
from kb.audit import AuditLog
from kb.blobs import Blobs
from kb.catalog import meta
from kb.catalog.database import FREE
from kb.catalog.jobs import Jobs
from kb.catalog.keys import Keys
from kb.catalog.knowledge.documents import erase_deleted, remove_orphan_facts
from kb.catalog.schema import CURRENT, NEWER, TOO_NEW
from kb.errors import KernloreError, StoreAway, Unavailable
from kb.hardware.spec import HardwareSpec
from kb.memory import collect_once_and_freeze, limit_arenas, return_freed_memory
from kb.scope import AccessScope
from kb.settings import MIB, Settings, product_version
from optimizer.evaluation.queue import EvaluationProcesses
from retrieval.diagnose.rules import check_own
from retrieval.diagnose.signals import load_signals
from retrieval.diagnose.signatures import signature_from_mapping
from retrieval.knowledge_base import KnowledgeBase
from retrieval.near import EXACT_UP_TO, NearIndex
from retrieval.snapshot.ontology import check_terms
from retrieval.snapshot.snapshot import Snapshot
from skills.lifecycle import observe
from skills.skill_library import SkillLibrary

if TYPE_CHECKING:
    from ingestion.cluster import ClusterReader
    from kb.answers import Answer
    from kb.cluster import Cluster
    from optimizer.evaluation.queue import EvaluationQueue
    from optimizer.search.runs.processes import ServiceRuns
    from skills.importing import ShippedSync
    from skills.trajectories.queue import TrajectoryQueue

FOLLOW_SECONDS = 0.5  # between checks whether the catalog has changed
UPLOAD_SECONDS = 0.1  # the same for uploads in an embedded catalog: a check takes microseconds
FREE_SECONDS = 10.0  # between returns of memory, which stop all threads for up to a second
LOADING_SECONDS = 2.0  # the same while the built-in knowledge is loaded
AWAY_SECONDS, LOOK_SECONDS = 5.0, 20.0  # between checks: while a store is away, otherwise
CONFIRM_SECONDS = 3.0  # from the first complete answers to the comparison of built-in files
STOP_SECONDS = 10.0  # for the current batch; reading a document can take longer

# Notes on readiness, by the state of the catalog's schema.
_NOTES = {
    CURRENT: "",
    NEWER: "A newer Kernlore has migrated the catalog; this one works until it is replaced.",
    TOO_NEW: "A newer Kernlore has changed the catalog into one that this one must not write to."
    " Start the newer one instead.",
}

_FILES = "builtin_files"  # of the catalog's named values: `files_key` of the last load
log = structlog.get_logger(__name__)


# Commands of the service's child processes.
CHECK_COMMAND = (sys.executable, "-m", "api.cli.main", "hardware", "check")
KNOWLEDGE_COMMAND = (sys.executable, "-m", "api.cli.main", "knowledge", "check")
RUN_COMMAND = (sys.executable, "-m", "api.run_worker")


def evaluate_processes() -> EvaluationProcesses:
    """Child processes that run `kernlore evaluate`; they start on demand."""
    command = (sys.executable, "-m", "api.cli.main", "evaluate")
    return EvaluationProcesses(command, "api.evaluate_work:evaluate")


class Meter(Protocol):
    """Counters of the service."""

    def stage(self, name: str, seconds: float) -> None: ...
    def retrieval(self, answer: Answer) -> None: ...
    def upload(self, outcome: str) -> None: ...
    def text(self) -> bytes: ...


class NoMeter:
    """Discards all counts; for commands."""

    def stage(self, name: str, seconds: float) -> None: ...
    def retrieval(self, answer: Answer) -> None: ...
    def upload(self, outcome: str) -> None: ...
    def text(self) -> bytes:
        return b""


@dataclass(frozen=True)
class Running:
    """Queues and background threads of a service."""

    evaluations: EvaluationQueue
    runs: ServiceRuns
    trajectories: TrajectoryQueue
    background: Background | None  # None over the services of a command


_SHARED = ("retriever", "snapshots", "uploads", "skills", "tagger")


def _check_names(spec: HardwareSpec) -> None:
    check_own(spec)
    check_terms(spec)


class Services(KnowledgeBase):
    """A knowledge base with uploads, the reading of documents, and the skill library."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.jobs = Jobs(self.catalog)
        self.metrics: Meter = NoMeter()
        self._running: Running | None = None

    @property
    def running(self) -> Running:
        """Evaluations, runs and trajectories of the service. Raises Unavailable in a command."""
        if self._running is None:
            raise Unavailable(
                "this needs a running service", hint="Start `kernlore serve` and give its URL."
            )
        return self._running

    @running.setter
    def running(self, running: Running) -> None:
        self._running = running

    def seen_by(self, access: AccessScope) -> Services:
        """These services restricted to what `access` allows. A function with an `access_scope`
        parameter still needs it as an argument."""
        if not access.restricted:
            return self
        for name in _SHARED:
            getattr(
                self, name
            )  # create cached parts before the copy, so that all callers share them
        seen = copy.copy(self)
        seen.access = access
        seen.registry = self.registry.seen_by(access)
        return seen

    @cached_property
    def keys(self) -> Keys:
        """The keys of callers."""
        return Keys(self.catalog)

    @cached_property
    def audit(self) -> AuditLog:
        """The log of changes."""
        return AuditLog(self.settings.data_dir)

    @cached_property
    def tagger(self) -> Tagger:
        """Finds the signals and topics of a passage."""
        return Tagger({s.id: SignalWords(s.topics, s.phrases) for s in load_signals()})

    @cached_property
    def uploads(self) -> Uploads:
        """Accepts files and queues them to be read."""
        return Uploads(
            self.catalog,
            self.blobs,
            self.jobs,
            self.registry,
            pipeline_fingerprint(self.embedder, self.tagger),
            self.settings.max_file_bytes,
        )

    @cached_property
    def shipped_readings(self) -> ShippedReadings:
        """What reading the built-in documents gives."""
        return ShippedReadings(self.settings.knowledge_dir, self.embedder, self.tagger)

    @cached_property
    def page_images(self) -> PageImages:
        """Pages of PDF documents as pictures."""
        return PageImages(self.settings)

    @cached_property
    def skills(self) -> SkillLibrary:
        """The skill library."""
        return SkillLibrary(self.catalog)

    def report_skill_use(self, names: Sequence[str]) -> None:
        """Skills that lose by this outcome are narrowed or retired."""
        observe(self.catalog, names)

    def register_hardware(self, description: Mapping[str, Any], origin: str) -> RegisteredHardware:
        """Register or replace a hardware; `origin` names the description in errors. Where its
        languages changed, its manuals are read again."""
        answer = register_hardware(
            self.registry,
            description,
            origin,
            knowledge_dir=self.settings.knowledge_dir,
            check_signature=signature_from_mapping,
            check_rules=_check_names,
        )
        if answer.outcome == "updated" and self.documents.find(hardware=answer.id):
            read_again(self.uploads, self.documents, self.blobs, answer.id)
        return answer

    @contextmanager
    def local_reader(self) -> Iterator[LocalReader]:
        """Reads and embeds in this process, with a parser process within the limits of the
        settings."""
        limits = self._parse_limits
        with ParserProcess(limits, children=READS_AT_ONCE) as parser:
            yield LocalReader(self.embedder, self.tagger, parser.parse_bytes, limits.document)

    @property
    def _parse_limits(self) -> ParseLimits:
        return ParseLimits(
            memory_mib=self.settings.parse_memory_bytes // MIB,
            cpu_seconds=int(self.settings.parse_seconds),
            wall_seconds=self.settings.parse_seconds,
            document=DocumentLimits.of(self.settings),
        )

    def cluster_reader(self, cluster: Cluster, log: Callable[[str], None]) -> ClusterReader:
        """Reads and embeds on the nodes of a cluster as this process would; `log` gets remarks."""
        from ingestion.cluster import ClusterPipeline, ClusterReader

        embedder = self.embedder
        pipeline = ClusterPipeline(
            self._parse_limits,
            self.settings.embedder,
            embedder.fingerprint,
            pipeline_parts(embedder, self.tagger),
            self.tagger,
        )
        return ClusterReader(cluster, pipeline, log)

    def worker(
        self,
        reader: DocumentReader,
        on_vectors: Callable[[set[str]], None] | None = None,
        anew: bool = False,
    ) -> Worker:
        """A worker on the queue of documents. `on_vectors` gets the scopes that have new vectors;
        `anew` also reads built-in documents whose readings ship."""
        parts = WorkerParts(
            self.catalog,
            self.blobs,
            self.jobs,
            self.registry,
            self.embedder.fingerprint,
            reader,
            None if anew else self.shipped_readings,
        )
        return Worker(parts, self.settings.lease_seconds, on_vectors)

    def load_builtin(
        self, specs: int | None = None, skills: ShippedSync | None = None
    ) -> BuiltinReport:
        """Queue the built-in documents that changed, and bring built-in skills up to date, unless
        `skills` says that they are. A worker reads the queued documents. Knowledge that a newer
        Kernlore has loaded into the same catalog stays. `specs` as in `ingestion.builtin`."""
        newer = loaded_by_newer(self.catalog, product_version())
        if newer is not None:
            log.warning("the built-in knowledge of a newer Kernlore stays", version=newer)
            return BuiltinReport(0, 0, 0, 0)
        put_shipped(self.catalog, self.settings.knowledge_dir, self.embedder.fingerprint)
        report = load_builtin(
            self.settings.knowledge_dir, self.registry, self.uploads, self.documents, specs
        )
        self.finish_deletions()
        skills = skills or self.skills.sync_builtin(self.settings.skills_dir)
        key = files_key(self.settings)
        if self._loaded_key() != key:
            with self.catalog.write() as connection:
                meta.put(connection, _FILES, key)
        log.info("built-in knowledge", **vars(report), skills=skills.skills)
        return report

    def loaded_before(self) -> bool:
        """Whether these built-in files were the last that were loaded into the catalog, by their
        sizes and times."""
        return self._loaded_key() == files_key(self.settings)

    def loaded_from_others(self) -> bool:
        """Whether other built-in files than these were the last that were loaded into the catalog,
        as before an update."""
        return self._loaded_key() not in (None, files_key(self.settings))

    def _loaded_key(self) -> str | None:
        with self.catalog.read() as connection:
            key: str | None = meta.get(connection, _FILES)
        return key

    def finish_deletions(self) -> None:
        """Remove files of deleted documents, including deletions that a killed process left
        unfinished, and facts of documents that an older Kernlore deleted without them."""
        remove_orphan_facts(self.catalog)
        try:
            erase_deleted(self.catalog, self.blobs)
        except StoreAway as error:
            log.warning("stored files of deleted documents are removed later", reason=error.message)


@dataclass(frozen=True)
class Readiness:
    """How far the service is. `knowledge_loaded` is true once the built-in knowledge of every chip
    is found by words and by vectors; `ready` once every upload is too. `index` is exact, chroma,
    starting, or the reason why the index is missing. `catalog` is current; newer, once a newer
    Kernlore has migrated it and this one may still write; or too_new, if it may not. `note` names
    the conditions that the service waits for."""

    ready: bool
    knowledge_loaded: bool
    passages: int
    embedded: int
    index: str
    jobs: dict[str, int]
    note: str = ""
    catalog: str = CURRENT

    @property
    def answers(self) -> bool:
        """Whether answers are complete, except for uploads that have not been read."""
        return self.knowledge_loaded and self.catalog != TOO_NEW


class Follower:
    """A thread that publishes changes of the catalog before a request needs them, between `start`
    and `stop`."""

    def __init__(
        self, services: Services, on_snapshot: Callable[[Snapshot], None] = lambda snapshot: None
    ) -> None:
        """`on_snapshot` is called with the current snapshot after each look."""
        self._services = services
        self._on_snapshot = on_snapshot
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)

    def start(self) -> None:
        """Start the thread. Matrix products of this process use one thread from then on: idle BLAS
        threads spin, which takes processor time from other requests."""
        threadpool_limits(1, user_api="blas")
        limit_arenas()
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the publication in progress."""
        self._stop.set()
        self._thread.join(timeout=STOP_SECONDS)

    def _run(self) -> None:
        last, changed, free_at = None, False, 0.0
        while not self._stop.is_set():
            try:
                snapshot = self._services.snapshots.current()
                if last is None:
                    collect_once_and_freeze()
                changed = changed or snapshot is not last
                last = snapshot
                if changed and time.monotonic() >= free_at:
                    return_freed_memory()
                    changed, free_at = False, time.monotonic() + FREE_SECONDS
                self._on_snapshot(snapshot)
            except Exception:  # the thread's boundary: requests publish for themselves
                log.exception("the snapshot cannot be brought up to date")
            loading = not self._services.knowledge_loaded  # documents are published together
            self._stop.wait(LOADING_SECONDS if loading else FOLLOW_SECONDS)


class Background:
    """The service's own threads: one loads the built-in knowledge and reads uploads, one opens
    Chroma where the store has one; and a `Follower`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._stop = threading.Event()
        self._queued = threading.Event()  # set once changed built-in documents are queued
        self._worker: Worker | None = None
        services.knowledge_loaded = False
        # Chips that were registered by `start`; None where an earlier start did.
        self._specs: int | None = 0
        self._loaded_before = False
        self._index = "exact"
        self._threads = [
            threading.Thread(target=self._ingest, name="ingestion", daemon=True),
            threading.Thread(target=self._open_chroma, name="chroma", daemon=True),
        ]
        self._follower = Follower(services, self._note_complete)
        self._watch = StoreWatch(
            services.blobs, self._load_builtin, services.finish_deletions, lambda: services.near
        )

    def start(self) -> None:
        """Register the built-in hardware, then load, read and embed in the background."""
        services = self._services
        services.dense_ready = False
        # Before the first request: a chip that is built in is never an unknown one.
        self._loaded_before = services.loaded_before()
        if self._loaded_before:
            self._specs = None
        elif loaded_by_newer(services.catalog, product_version()) is None:
            self._specs = load_hardware(services.settings.knowledge_dir, services.registry)
        if services.settings.chroma_url:
            from kb.index.chroma import parse_address

            parse_address(services.settings.chroma_url)
        self._follower.start()
        for thread in self._threads:
            thread.start()
        if services.settings.chroma_url or not services.blobs.is_local:
            self._watch.start()

    def stop(self) -> None:
        """End the threads, release running jobs, and close the services."""
        self._stop.set()
        self._watch.stop()
        self._follower.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=STOP_SECONDS)
        if self._worker is not None:
            with suppress(Unavailable):  # a newer Kernlore has the catalog; leases run out
                self._worker.release()
        self._services.close()

    def readiness(self) -> Readiness:
        """How far the service is now."""
        services = self._services
        embedded, passages = services.vectors()
        jobs = services.jobs.counts()
        loaded = services.knowledge_loaded
        busy = jobs.get("queued", 0) + jobs.get("running", 0)
        state = self._index
        if services.near is not None and services.near.away is not None:
            state = f"away: {services.near.away.message}"
        ready = loaded and embedded == passages and not busy and services.dense_ready
        if not self._threads[0].is_alive() and not self._stop.is_set():
            ready, state = False, "failed: ingestion has stopped; the log has the reason"
        schema = services.catalog.schema_state().state
        waits = " ".join(self._waits())
        uploads = f"Documents are being read: {busy} are left." if loaded and busy else ""
        note = " ".join(filter(None, (waits, uploads, _NOTES[schema])))
        ready = ready and not waits and schema != TOO_NEW
        return Readiness(ready, loaded, passages, embedded, state, jobs, note, schema)

    def _waits(self) -> Iterator[str]:
        """The conditions that the service waits for, as sentences."""
        if self._worker is not None and self._worker.full:
            yield f"There is no space to read documents. {FREE}"
        refused = self._worker.away if self._worker is not None else None
        if (away := self._watch.files_away or refused) is not None:
            yield f"Documents are read later, and uploads refused: {away.message}. {away.hint}"
        if not self._services.knowledge_loaded:
            left = self._services.documents.unread("builtin", ("staged",))
            if left:
                yield f"The built-in knowledge is being loaded: {left} documents are left."
            elif self._queued.is_set():
                yield "The built-in knowledge is read; its vectors are being loaded."
            else:
                yield "The files of the built-in knowledge are being listed."
        near = self._services.near
        if near is not None and (away := near.away) is not None:
            yield f"Vectors are searched exactly: {away.message}. {away.hint}"

    # -- reading

    def _ingest(self) -> None:
        services = self._services
        with ThreadPoolExecutor(1) as pool, services.local_reader() as reader:
            warming = pool.submit(self._warm)
            worker = self._worker = services.worker(reader, self._on_vectors)
            if self._loaded_before:
                self._queued.set()
            else:
                self._load_builtin()
            with worker.alive():
                # Words first: a request in the first seconds finds every document by its text.
                worker.read_all(self._stop, until_upload=True)
                warming.result()
                services.dense_ready = True
                self._note_complete(services.snapshots.current())
                if self._loaded_before:
                    pool.submit(self._confirm_builtin)
                embedded = not services.catalog.on_server
                worker.run(self._stop, UPLOAD_SECONDS if embedded else FOLLOW_SECONDS)

    def _warm(self) -> None:
        services = self._services
        settings = services.settings
        services.embedder.prepare()
        services.retriever.warm(settings.models_dir, settings.knowledge_dir)
        services.embedder.wait()

    def _confirm_builtin(self) -> None:
        """Compare the built-in files with the catalog, because files can change without a new time
        and documents can be deleted. Later, because it takes half a second of a processor."""
        try:
            if not self._stop.wait(CONFIRM_SECONDS):
                self._load_builtin()
        except Exception:  # the thread's boundary: what was loaded before is complete
            log.exception("the built-in knowledge cannot be compared")

    def _load_builtin(self) -> bool:
        """Queue the built-in documents that have changed; return whether that succeeded. While the
        store of files is away, knowledge of an earlier start is used."""
        services = self._services
        try:
            if services.load_builtin(self._specs).changed:
                services.knowledge_loaded = False
        except StoreAway as error:
            log.warning("built-in knowledge is loaded later", reason=error.message)
            self._watch.lose_files(error)
            if services.vectors()[1]:
                self._queued.set()
            return False
        except KernloreError as error:
            log.error("built-in knowledge cannot be loaded", reason=error.message)
            raise
        self._queued.set()
        return True

    def _note_complete(self, snapshot: Snapshot) -> None:
        """Set `knowledge_loaded` once no built-in document waits to be read."""
        services = self._services
        if not services.knowledge_loaded and self._queued.is_set() and services.dense_ready:
            waiting = (document.builtin for document in snapshot.knowledge.waiting)
            services.knowledge_loaded = not any(waiting)

    def _on_vectors(self, scopes: set[str]) -> None:
        if self._services.near is not None:
            self._services.near.sync(scopes)

    # -- vectors of large stores

    def _open_chroma(self) -> None:
        """Open Chroma: at once if it is on a server, otherwise when the store is too large for
        exact search."""
        services = self._services
        settings = services.settings
        while not settings.chroma_url and services.vectors()[0] <= EXACT_UP_TO:
            if self._stop.wait(60.0):
                return
        from kb.index.chroma import ChromaIndex

        model = services.embedder.fingerprint
        folder, url = settings.data_dir / "chroma", settings.chroma_url
        near = NearIndex(ChromaIndex(services.catalog, model, folder, url))
        self._index = "starting"
        try:
            near.catch_up()
        except StoreAway as error:
            log.warning("searching without Chroma until it answers", reason=error.message)
        except Exception as error:  # the thread's boundary
            self._index = f"failed: {getattr(error, 'message', type(error).__name__)}"
            log.exception("Chroma cannot be opened; vectors are searched exactly")
            return
        services.near = near
        near.sync()  # vectors that were stored while it was opened
        self._index = "chroma"


def open_services(settings: Settings) -> Services:
    """The services of a data directory. Raises StoreError where it cannot be opened."""
    return Services(settings)


class StoreWatch:
    """A thread that checks the stores on servers between `start` and `stop`, and catches up once
    they answer again. A service whose stores are all in its data directory does not need it."""

    def __init__(
        self,
        blobs: Blobs,
        load_builtin: Callable[[], bool],
        finish_deletions: Callable[[], None],
        near: Callable[[], NearIndex | None],
    ) -> None:
        """`load_builtin` loads the built-in knowledge and returns whether that succeeded; `near`
        returns the vector index once it uses Chroma on a server."""
        self._blobs = blobs
        self._load_builtin = load_builtin
        self._finish_deletions = finish_deletions
        self._near = near
        self._unloaded = False
        self._files_away: StoreAway | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stores", daemon=True)

    @property
    def files_away(self) -> StoreAway | None:
        """The error of the store of files; None while it answers."""
        return self._files_away

    def lose_files(self, error: StoreAway) -> None:
        """Record a failed load of the built-in knowledge, to repeat it once the files answer."""
        self._files_away, self._unloaded = error, True

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the check in progress, which has time limits."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=AWAY_SECONDS)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._check_files()
                self._check_vectors()
            except Exception:  # boundary of the thread: the catalog's server may be away too
                log.warning("stores cannot be checked", exc_info=True)
            near = self._near()
            away = self._files_away or (near is not None and near.away)
            self._stop.wait(AWAY_SECONDS if away else LOOK_SECONDS)

    def _check_files(self) -> None:
        if self._blobs.is_local:
            return
        try:
            self._blobs.check()
        except StoreAway as error:
            if self._files_away is None:
                log.warning("the store of files is away", reason=error.message)
            self._files_away = error
            return
        if self._files_away is not None:
            log.info("the store of files answers")
            self._files_away = None
        if self._unloaded:
            self._unloaded = not self._load_builtin()
        self._finish_deletions()

    def _check_vectors(self) -> None:
        near = self._near()
        if near is None:
            return
        near.check()
        if near.away is not None and not self._stop.is_set():
            try:
                report = near.catch_up()
            except StoreAway:
                return  # `near.away` says why
            log.info("Chroma answers again", added=report.added, removed=report.removed)
