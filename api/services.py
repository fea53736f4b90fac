"""Everything wired together once: the parts that HTTP routes and commands call.

`open_services` opens the catalog and builds the parts, nothing heavy yet; `Background` adds what
only the service does (loading the built-in knowledge, ingestion, the vector index). No logic of its
own beyond the wiring.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import structlog

from api.store_watch import StoreWatch
from ingestion.builtin import BuiltinReport, load_builtin, load_hardware, loaded_by_newer
from ingestion.builtin.precomputed import ShippedReadings, put_shipped
from ingestion.findings.tags import SignalWords, Tagger
from ingestion.hardware import register_hardware
from ingestion.page_images import PageImages
from ingestion.parse_process import ParseLimits, ParserProcess
from ingestion.read import DocumentReader, LocalReader, pipeline_fingerprint, pipeline_parts
from ingestion.uploads import Uploads, read_again
from ingestion.worker import Worker, WorkerParts
from kb.audit import AuditLog
from kb.catalog.database import FREE
from kb.catalog.jobs import Jobs
from kb.catalog.keys import Keys
from kb.catalog.knowledge.documents import erase_deleted, remove_orphan_facts
from kb.catalog.knowledge.versions import repair_lexical
from kb.catalog.runs import is_measuring
from kb.catalog.schema import CURRENT, NEWER, TOO_NEW
from kb.errors import KernloreError, StoreAway, Unavailable
from kb.index.chroma import parse_address
from kb.index.in_memory import KeptInMemory
from kb.index.near import EXACT_UP_TO, NearIndex, is_in_memory, state_of
from kb.memory import return_freed_memory
from kb.scope import AccessScope
from kb.settings import MIB, Settings, product_version
from optimizer.evaluation.evaluate_processes import EvaluateProcesses
from retrieval.ahead import OrdersAhead
from retrieval.answer_processes import AnswerProcesses
from retrieval.diagnose.own_rules import check_own
from retrieval.diagnose.signals import load_signals
from retrieval.diagnose.signatures import signature_from_mapping
from retrieval.knowledge_base import KnowledgeBase
from retrieval.ranking import WEIGHTS
from skills.lifecycle import observe
from skills.skill_library import SkillLibrary

if TYPE_CHECKING:
    from ingestion.cluster import ClusterReader
    from kb.cluster import Cluster

# Seconds until Chroma is opened where it is not asked yet: importing it and comparing it with the
# catalog takes two seconds of a processor, which the first requests need.
OPEN_AFTER = 3.0
STOP_SECONDS = 10.0  # for the batch at hand; a document that is being read takes longer

# By what the catalog's schema is to this code.
_NOTES = {
    CURRENT: "",
    NEWER: "A newer Kernlore has migrated the catalog; this one goes on until it is replaced.",
    TOO_NEW: "A newer Kernlore has changed the catalog into one that this one must not write to."
    " Start the newer one in its place.",
}

log = structlog.get_logger(__name__)


# What the service starts in processes of their own.
CHECK_COMMAND = (sys.executable, "-m", "api.cli.main", "hardware", "check")
RUN_COMMAND = (sys.executable, "-m", "api.run_worker")


def evaluate_processes() -> EvaluateProcesses:
    """`kernlore evaluate` in processes of their own, of which none is started yet."""
    command = (sys.executable, "-m", "api.cli.main", "evaluate")
    return EvaluateProcesses(command, "api.evaluate_work:evaluate")


_SHARED = ("retriever", "uploads", "skills", "tagger", "index")


class Services(KnowledgeBase):
    """A knowledge base with what the doors add to it: uploads, reading and the skill library."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.jobs = Jobs(self.catalog)

    def seen_by(self, access: AccessScope) -> Services:
        """The same services as this caller may see and change them. What takes an `access_scope`
        still has to be given it.
        """
        if not access.restricted:
            return self
        for name in _SHARED:
            getattr(self, name)  # made here where it was not yet: one for all callers
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
        """Who changed what."""
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

    def register_hardware(self, description: Mapping[str, Any], origin: str) -> dict[str, Any]:
        """Register or replace a hardware; `origin` names the description in errors. Where its
        languages changed, its manuals are read again.
        """
        answer = register_hardware(
            self.registry,
            description,
            origin,
            knowledge_dir=self.settings.knowledge_dir,
            check_signature=signature_from_mapping,
            check_rules=check_own,
        )
        if answer["outcome"] == "updated" and self.documents.find(hardware=answer["id"]):
            read_again(self.uploads, self.documents, self.blobs, answer["id"])
        return answer

    @contextmanager
    def local_reader(self) -> Iterator[LocalReader]:
        """Reads and embeds in this process, with a parser process within the limits of the
        settings.
        """
        with ParserProcess(self._parse_limits) as parser:
            yield LocalReader(self.embedder, self.tagger, parser.parse_bytes)

    @property
    def _parse_limits(self) -> ParseLimits:
        return ParseLimits(
            memory_mib=self.settings.parse_memory_bytes // MIB,
            cpu_seconds=int(self.settings.parse_seconds),
            wall_seconds=self.settings.parse_seconds,
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
        `anew` also reads built-in documents whose readings ship.
        """
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

    def load_builtin(self, specs: int | None = None) -> BuiltinReport:
        """Queue the built-in documents that changed, and bring built-in skills up to date. Whoever
        works on the queue reads the documents. What a newer Kernlore has loaded into the same
        catalog stays. `specs` as in `ingestion.builtin`.
        """
        newer = loaded_by_newer(self.catalog, product_version())
        if newer is not None:
            log.warning("the built-in knowledge of a newer Kernlore stays", version=newer)
            return BuiltinReport(0, 0, 0, 0)
        put_shipped(self.catalog, self.settings.knowledge_dir, self.embedder.fingerprint)
        report = load_builtin(
            self.settings.knowledge_dir, self.registry, self.uploads, self.documents, specs
        )
        self.finish_deletions()
        skills = self.skills.sync_builtin(self.settings.skills_dir)
        log.info("built-in knowledge", **vars(report), skills=skills.skills)
        return report

    def finish_deletions(self) -> None:
        """Remove what deletions have left, also those of a killed process, and facts that those of
        an older Kernlore did not take along.
        """
        remove_orphan_facts(self.catalog)
        try:
            erase_deleted(self.catalog, self.blobs)
        except StoreAway as error:
            log.warning("stored files of deleted documents are removed later", reason=error.message)


@dataclass(frozen=True)
class Readiness:
    """How far the service is. `ready` once the built-in knowledge is loaded, every passage has its
    vector, and those are searched: in memory, or where they are many or on a server, by Chroma.
    `index` is starting, chroma, or why there is none. `answer_processes` answer beside the
    service's own. `catalog` is current; newer, once
    a newer Kernlore has migrated it and this one may go on; or too_new, where it may not. `note`
    says what is waited for, empty where nothing is.
    """

    ready: bool
    knowledge_loaded: bool
    passages: int
    embedded: int
    index: str
    jobs: dict[str, int]
    note: str = ""
    catalog: str = CURRENT
    answer_processes: int = 0


class Background:
    """The service's own threads. Until the vector index is open, which a thread of its own does,
    answers come from words and exact search over the catalog's vectors.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._stop = threading.Event()
        self._loaded = threading.Event()
        self._index_state = "starting"
        self._worker: Worker | None = None
        self._specs = 0  # chips that are built in
        self._thread = threading.Thread(target=self._run, name="ingestion", daemon=True)
        self._in_memory = KeptInMemory(
            services.catalog,
            WEIGHTS.heading,
            lambda: services.embedder.fingerprint,
            follow=self._follow,
        )
        self._ahead = OrdersAhead(
            services.retriever, services.settings.orders_ahead, self._is_measuring
        )
        self._answers = AnswerProcesses(services.settings, services.settings.answer_processes)
        self._near: NearIndex | None = None
        self._opening = threading.Thread(target=self._search_vectors, name="vectors", daemon=True)
        self._watch = StoreWatch(
            services.blobs, self._load_builtin, services.finish_deletions, lambda: self._near
        )

    def start(self) -> None:
        """Register the built-in hardware, then load, read and embed in the background."""
        services = self._services
        services.dense_ready = False
        # Before the first request: a chip that is built in is never an unknown one.
        if loaded_by_newer(services.catalog, product_version()) is None:
            self._specs = load_hardware(services.settings.knowledge_dir, services.registry)
        repair_lexical(services.catalog)
        if services.settings.chroma_url:
            parse_address(services.settings.chroma_url)
        self._thread.start()
        self._in_memory.start()
        self._ahead.start()
        if services.settings.chroma_url or not services.blobs.is_local:
            self._watch.start()

    def stop(self) -> None:
        """End the thread and close the services; no job is left running."""
        self._stop.set()
        self._watch.stop()
        self._ahead.stop()
        self._answers.stop()
        self._in_memory.stop()
        for thread in (self._thread, self._opening):
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
        loaded = self._loaded.is_set()
        busy = jobs.get("queued", 0) + jobs.get("running", 0)
        state = self._index_state
        if self._near is not None and self._near.away is not None:
            state = f"away: {self._near.away.message}"
        searched = state == "chroma" or self._searched_exactly(passages)
        ready = loaded and embedded == passages and not busy and searched
        if not self._thread.is_alive() and not self._stop.is_set():
            ready, state = False, "failed: ingestion has stopped, its log says why"
        schema = services.catalog.schema_state().state
        waits = " ".join(self._waits())
        note = " ".join(filter(None, (waits, _NOTES[schema])))
        ready = ready and not waits and schema != TOO_NEW
        answering = self._answers.ready
        return Readiness(ready, loaded, passages, embedded, state, jobs, note, schema, answering)

    def _searched_exactly(self, passages: int) -> bool:
        """Whether answers are whole while Chroma is being opened: exact search gives the same."""
        services = self._services
        here = self._index_state == "starting" and not services.settings.chroma_url
        if not here or not services.dense_ready:
            return False
        few = passages <= EXACT_UP_TO
        return few or is_in_memory(services.catalog, services.embedder.fingerprint)

    def _waits(self) -> Iterator[str]:
        """What is waited for."""
        if self._worker is not None and self._worker.full:
            yield f"There is no space to read documents. {FREE}"
        refused = self._worker.away if self._worker is not None else None
        if (away := self._watch.files_away or refused) is not None:
            yield f"Documents are read later, and uploads refused: {away.message}. {away.hint}"
        if self._near is not None and (away := self._near.away) is not None:
            yield f"Vectors are searched in memory, or not at all: {away.message}. {away.hint}"

    def _is_measuring(self) -> bool:
        """Whether kernels may be timed on this machine; on which of them is not known where the
        catalog is on a server.
        """
        catalog = self._services.catalog
        if catalog.on_server:
            return False
        with catalog.read() as connection:
            return is_measuring(connection)

    def _run(self) -> None:
        services = self._services
        services.embedder.prepare()
        with services.local_reader() as reader:
            worker = self._worker = services.worker(reader, self._on_vectors)
            self._load_builtin()
            with worker.alive():
                # Words first: a request in the first seconds finds every document by its text.
                worker.read_all(self._stop, until_upload=True)
                services.retriever.warm(services.settings.models_dir)
                model = services.embedder.fingerprint
                services.__dict__["index"] = NearIndex(services.catalog, model, None)
                services.dense_ready = True
                services.retriever.answer_elsewhere(self._answers.answer)
                self._answers.start()
                self._opening.start()
                worker.run(self._stop)

    def _load_builtin(self) -> bool:
        """Whether the built-in knowledge is loaded; what an earlier start has loaded answers while
        the store of files is away.
        """
        services = self._services
        try:
            services.load_builtin(self._specs)
        except StoreAway as error:
            log.warning("built-in knowledge is loaded later", reason=error.message)
            self._watch.lose_files(error)
            if services.vectors()[1]:
                self._loaded.set()
            return False
        except KernloreError as error:
            log.error("built-in knowledge cannot be loaded", reason=error.message)
            raise
        self._loaded.set()
        return True

    def _search_vectors(self) -> None:
        passages = self._services.vectors()[1]
        if self._searched_exactly(passages) and self._stop.wait(OPEN_AFTER):
            return
        try:
            self._open_index()
        except Exception as error:  # the thread's boundary
            self._index_state = f"failed: {type(error).__name__}"
            self._services.__dict__.pop("index", None)
            log.exception("no vector index; answering from the catalog")

    def _open_index(self) -> None:
        """Open Chroma, check that it answers, bring it up to the catalog."""
        from kb.index.chroma import ChromaIndex

        services = self._services
        model, settings = services.embedder.fingerprint, services.settings
        chroma = ChromaIndex(
            services.catalog, model, settings.data_dir / "chroma", settings.chroma_url
        )
        near = NearIndex(services.catalog, model, chroma)
        before = state_of(services.catalog)
        try:
            near.catch_up()
        except StoreAway as error:
            log.warning("searching without Chroma until it answers", reason=error.message)
        except KernloreError as error:
            self._index_state = f"failed: {error.message}"
            services.__dict__.pop("index", None)
            log.error("no vector index; answering from the catalog", reason=error.message)
            return
        services.__dict__["index"] = near
        if state_of(services.catalog) != before:
            near.sync()  # the worker had nobody to tell of vectors that it stored meanwhile
        if not settings.chroma_url and not near.asks_chroma():
            # Its graphs are all in memory once each was looked into, beside the same vectors.
            chroma.close()
            return_freed_memory()
        self._near = near if settings.chroma_url else None
        self._index_state = "chroma"

    def _follow(self) -> None:
        follow = getattr(self._services.__dict__.get("index"), "follow", None)
        if follow is not None:
            follow()

    def _on_vectors(self, scopes: set[str]) -> None:
        index = self._services.index
        sync = getattr(index, "sync", None)
        if sync is not None:
            sync(scopes)


def open_services(settings: Settings) -> Services:
    """The services of a data directory. Raises StoreError where it cannot be opened."""
    return Services(settings)
