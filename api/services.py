"""Everything wired together once: the parts that HTTP routes and CLI commands call.

`open_services` opens the catalog and builds the parts, nothing heavy yet; `Background` adds what
only the service does (loading the built-in knowledge, ingestion, the vector index). No logic of its
own beyond the wiring."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import structlog

from ingestion.builtin import BuiltinReport, load_builtin, load_hardware
from ingestion.findings.tags import SignalWords, Tagger
from ingestion.parse_process import ParseLimits, ParserPool
from ingestion.read import pipeline_fingerprint
from ingestion.uploads import Uploads
from ingestion.worker import Parts, Worker
from kb.blobs import Blobs, open_blobs
from kb.catalog import Catalog, open_catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.jobs import Jobs
from kb.catalog.knowledge import embeddings
from kb.catalog.knowledge.documents import Documents
from kb.embedding import Embedder, open_embedder
from kb.errors import KernloreError
from kb.index.exact import ExactIndex
from kb.settings import MIB, Settings
from retrieval.diagnose.signals import load_signals
from retrieval.ranking import VectorIndex
from retrieval.service import Retriever
from skills.library import SkillLibrary

DENSE_SHARE = 0.9  # of the passages must have a vector before vectors take part

log = structlog.get_logger(__name__)


class Services:
    """The parts, built when first used."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.catalog: Catalog = open_catalog(settings.data_dir)
        self.blobs: Blobs = open_blobs(settings.data_dir, settings.blob_url)
        self.jobs = Jobs(self.catalog)
        self.documents = Documents(self.catalog)
        self.registry = HardwareRegistry(self.catalog)

    @cached_property
    def dense_ready(self) -> bool:
        """Whether vectors take part in answers: where few passages have one, those would win by
        having it. Decided once; the service decides anew as its start goes on.
        """
        embedded, passages = self.vectors()
        return embedded >= DENSE_SHARE * passages

    def vectors(self) -> tuple[int, int]:
        """(embedded, all) passages."""
        with self.catalog.read() as connection:
            return embeddings.counts(connection, self.embedder.fingerprint)

    @cached_property
    def embedder(self) -> Embedder:
        return open_embedder(self.settings.embedder, self.settings.data_dir / "models")

    @cached_property
    def tagger(self) -> Tagger:
        return Tagger({s.id: SignalWords(s.topics, s.phrases) for s in load_signals()})

    @cached_property
    def uploads(self) -> Uploads:
        return Uploads(
            self.catalog,
            self.blobs,
            self.jobs,
            self.registry,
            pipeline_fingerprint(self.embedder, self.tagger),
            self.settings.max_file_bytes,
        )

    @cached_property
    def index(self) -> VectorIndex:
        """Exact search over the catalog; the service puts Chroma in its place."""
        return ExactIndex(self.catalog, self.embedder.fingerprint)

    @cached_property
    def retriever(self) -> Retriever:
        return Retriever(
            self.catalog,
            self.registry,
            self.embedder,
            lambda: self.index,
            lambda: self.dense_ready,
            self.settings.skills_withheld_share,
        )

    @cached_property
    def skills(self) -> SkillLibrary:
        return SkillLibrary(self.catalog)

    def parser_pool(self) -> ParserPool:
        return ParserPool(
            ParseLimits(
                memory_mib=self.settings.parse_memory_bytes // MIB,
                cpu_seconds=int(self.settings.parse_seconds),
                wall_seconds=self.settings.parse_seconds,
            )
        )

    def worker(
        self, parsers: ParserPool, on_vectors: Callable[[set[str]], None] | None = None
    ) -> Worker:
        parts = Parts(
            self.catalog,
            self.blobs,
            self.jobs,
            self.registry,
            self.embedder,
            self.tagger,
            parsers,
        )
        return Worker(parts, self.settings.lease_seconds, on_vectors)

    def load_builtin(self) -> BuiltinReport:
        """Documents are handed in, and read by whoever works on the queue."""
        report = load_builtin(
            self.settings.knowledge_dir, self.registry, self.uploads, self.documents
        )
        skills = self.skills.sync_builtin(self.settings.skills_dir)
        log.info("built-in knowledge", **vars(report), skills=skills.skills)
        return report

    def close(self) -> None:
        if "retriever" in self.__dict__:
            self.retriever.close()
        self.catalog.close()


@dataclass(frozen=True)
class Readiness:
    """How far the service is: `ready` when the built-in knowledge is loaded and every passage has
    its vector.
    """

    ready: bool
    knowledge_loaded: bool
    passages: int
    embedded: int
    index: str  # starting | chroma | failed: reason
    jobs: dict[str, int]


class Background:
    """The service's own threads. Answers are lexical (and exactly dense) until the vector index is
    open.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._stop = threading.Event()
        self._loaded = threading.Event()
        self._index_state = "starting"
        self._thread = threading.Thread(target=self._run, name="ingestion", daemon=True)

    def start(self) -> None:
        services = self._services
        services.dense_ready = False
        # Before the first request: a chip that is built in is never an unknown one.
        load_hardware(services.settings.knowledge_dir, services.registry)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
        self._services.close()

    def readiness(self) -> Readiness:
        services = self._services
        embedded, passages = services.vectors()
        jobs = services.jobs.counts()
        loaded = self._loaded.is_set()
        busy = jobs.get("queued", 0) + jobs.get("running", 0)
        ready = loaded and embedded == passages and not busy and self._index_state == "chroma"
        state = self._index_state
        if not self._thread.is_alive() and not self._stop.is_set():
            ready, state = False, "failed: ingestion has stopped, its log says why"
        return Readiness(ready, loaded, passages, embedded, state, jobs)

    def _run(self) -> None:
        services = self._services
        with services.parser_pool() as parsers:
            worker = services.worker(parsers, self._on_vectors)
            try:
                services.load_builtin()
            except KernloreError as error:
                log.error("built-in knowledge cannot be loaded", reason=error.message)
                raise
            self._loaded.set()
            # Words first: a request in the first seconds finds every document by its text.
            worker.read_all(self._stop)
            services.retriever.warm()
            services.dense_ready = True
            self._open_index()
            worker.run(self._stop)

    def _open_index(self) -> None:
        """Open Chroma, check that it answers, bring it up to the catalog."""
        from kb.index.chroma import ChromaIndex

        services = self._services
        try:
            index = ChromaIndex(
                services.catalog,
                services.embedder.fingerprint,
                services.settings.data_dir / "chroma",
                services.settings.chroma_url,
            )
            index.open_or_rebuild()
        except KernloreError as error:
            self._index_state = f"failed: {error.message}"
            log.error("no vector index; answering from the catalog", reason=error.message)
            return
        services.__dict__["index"] = index
        self._index_state = "chroma"

    def _on_vectors(self, scopes: set[str]) -> None:
        index = self._services.index
        sync = getattr(index, "sync", None)
        if sync is not None:
            sync(scopes)


def open_services(settings: Settings) -> Services:
    return Services(settings)
