"""Shared fixtures: real catalogs, embedder, parser child and service. No mocks."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

from ingestion.builtin.precomputed import ShippedReadings
from ingestion.findings.tags import SignalWords, Tagger
from ingestion.parse_process import ParserProcess
from ingestion.read import DocumentReader, LocalReader, pipeline_fingerprint
from ingestion.uploads import FileUpload, Submitted, Uploads
from ingestion.worker import Worker, WorkerParts
from kb.blobs import open_blobs
from kb.catalog import Catalog, open_catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.jobs import Jobs
from kb.catalog.knowledge import passages
from kb.catalog.knowledge.documents import Documents
from kb.catalog.knowledge.passages import Passage
from kb.catalog.work import Job
from kb.embedding import DEFAULT_MODEL, LocalEmbedder, open_embedder
from kb.hardware.schema import parse_hardware
from kb.index.chroma import ChromaIndex
from kb.scope import ALL_ACCESS, ScopeFilter
from kb.tokens import tokenize
from retrieval.knowledge_base import Retriever
from retrieval.near import NearIndex
from retrieval.snapshot.store import SnapshotStore
from tests import chroma_server as chroma_server_module
from tests import postgresql, seaweed
from tests.catalogs import environment_of, filled_data_dir, fresh_data_dir
from tests.places import ROOT
from tests.shared import copy_knowledge, exported_models, once, place_models, read_builtin_knowledge

SERVICE_START_SECONDS = 90
SERVED_DOCUMENTS = (
    "guidance/memory-bound.md",
    "guidance/uncoalesced-access-and-bank-conflicts.md",
    "hardware/h100/memory-hierarchy.md",
    "hardware/h100/programming-and-limits.md",
    "hardware/nvidia/execution-model-and-resource-reports.md",
)

# id, name, parent, kind
HARDWARE = (
    ("nvidia", "NVIDIA", None, "vendor"),
    ("ampere", "NVIDIA Ampere", "nvidia", "family"),
    ("hopper", "NVIDIA Hopper", "nvidia", "family"),
    ("a100", "NVIDIA A100", "ampere", "accelerator"),
    ("h100", "NVIDIA H100", "hopper", "accelerator"),
    ("h200", "NVIDIA H200", "hopper", "accelerator"),
    ("amd", "AMD", None, "vendor"),
    ("mi300x", "AMD MI300X", "amd", "accelerator"),
)

VOCABULARY = {
    "memory_bound": SignalWords(
        ("memory bandwidth", "coalescing"),
        ("the kernel waits for memory and moves more bytes than it needs",),
    ),
    "low_occupancy": SignalWords(("occupancy",), ("too few warps are resident to hide latency",)),
}


def hardware_toml(hardware_id: str, name: str, parent: str | None, kind: str) -> str:
    above = f'parent = "{parent}"\n' if parent else ""
    return (
        f'id = "{hardware_id}"\nname = "{name}"\nvendor = "{name.split()[0].lower()}"\n{above}'
        f'aliases = []\nlanguages = ["triton"]\nkind = "{kind}"\nsummary = "{name} for tests."\n'
    )


def register_hardware(catalog: Catalog) -> None:
    registry = HardwareRegistry(catalog)
    for entry in HARDWARE:
        registry.put(parse_hardware(hardware_toml(*entry), entry[0]), "builtin")


class Store:
    """A data directory with everything that ingestion and search need at store level. A separate
    process uses the same servers with the environment of `tests.catalogs.environment_of`.
    """

    access = ALL_ACCESS

    def __init__(
        self,
        data_dir: Path,
        embedder: LocalEmbedder,
        parsers: ParserProcess,
        tagger: Tagger,
        servers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.data_dir = data_dir
        self.embedder = embedder
        self.parsers = parsers
        self.tagger = tagger
        filled = filled_data_dir(data_dir, register_hardware)
        self.catalog: Catalog = open_catalog(filled, servers.get("KERNLORE_CATALOG"))
        self.blobs = open_blobs(data_dir, servers.get("KERNLORE_BLOB_URL"))
        self.jobs = Jobs(self.catalog)
        self.registry = HardwareRegistry(self.catalog)
        if not self.registry.all():  # on a server
            register_hardware(self.catalog)
        self.documents = Documents(self.catalog)
        self.snapshots = SnapshotStore(self.catalog, embedder.fingerprint)
        self.pipeline = pipeline_fingerprint(embedder, tagger)
        self._retrievers: list[Retriever] = []

    def close(self) -> None:
        for opened in self._retrievers:
            opened.close()
        self.catalog.close()

    @property
    def uploads(self) -> Uploads:
        return self.uploads_of(self.pipeline)

    def uploads_of(self, pipeline: str, max_bytes: int = 1 << 20) -> Uploads:
        return Uploads(self.catalog, self.blobs, self.jobs, self.registry, pipeline, max_bytes)

    def worker(
        self, lease: float = 60.0, on_vectors: Callable[[set[str]], None] | None = None
    ) -> Worker:
        reader = LocalReader(self.embedder, self.tagger, self.parsers.parse_bytes)
        return self.worker_with(reader, lease, on_vectors)

    def worker_with(
        self,
        reader: DocumentReader,
        lease: float = 60.0,
        on_vectors: Callable[[set[str]], None] | None = None,
        shipped: ShippedReadings | None = None,
    ) -> Worker:
        model = self.embedder.fingerprint
        stores = (self.catalog, self.blobs, self.jobs, self.registry)
        return Worker(WorkerParts(*stores, model, reader, shipped), lease, on_vectors)

    def submit(self, name: str, text: str | bytes, **message: object) -> Submitted:
        data = text.encode() if isinstance(text, str) else text
        return self.uploads.submit(FileUpload(name, data, **message))  # type: ignore[arg-type]

    def ingest(self, name: str, text: str | bytes, **message: object) -> Submitted:
        """Upload and work until the queue is empty."""
        submitted = self.submit(name, text, **message)
        self.worker().drain()
        return submitted

    def job(self, submitted: Submitted) -> Job:
        assert submitted.job_id is not None
        return self.jobs.get(submitted.job_id)

    # -- search

    def scope(self, hardware: str | None) -> ScopeFilter:
        return ScopeFilter(self.registry.scopes(hardware) if hardware else None)

    def by_words(self, query: str, hardware: str | None = None, k: int = 20) -> list[Passage]:
        """Lexical hits of the passage level."""
        scope, snapshot = self.scope(hardware), self.snapshots.current()
        hits = snapshot.search("passage", tokenize(query), scope, k)
        found = snapshot.load(hits, scope)
        return [found[seq] for seq in hits if seq in found]

    def by_meaning(
        self,
        query: str,
        hardware: str | None = None,
        k: int = 20,
        index: NearIndex | ChromaIndex | None = None,
    ) -> list[Passage]:
        """Vector hits of the snapshot, or of an index."""
        scope, snapshot = self.scope(hardware), self.snapshots.current()
        vector = self.embedder.encode_query(query)
        if isinstance(index, NearIndex):
            hits = index.nearest(snapshot, scope.hardware, vector, k, ALL_ACCESS)
        elif isinstance(index, ChromaIndex):
            cosines = index.query(scope.hardware or (), vector, k, ALL_ACCESS)
            numbers = snapshot.numbers(cosines)
            hits = {numbers[i]: cosines[i] for i in cosines if i in numbers}
            hits = dict(sorted(hits.items(), key=lambda hit: -hit[1])[:k])
        else:
            hits = snapshot.near(scope.hardware, vector, k)
        found = snapshot.load(hits, scope)
        return [found[seq] for seq in hits if seq in found]

    def retriever(self, near: NearIndex | None = None) -> Retriever:
        """A retriever, which is closed with the store."""
        self._retrievers.append(
            Retriever(self.catalog, self.snapshots, self.embedder, lambda: near)
        )
        return self._retrievers[-1]

    def rows(self, table: str) -> int:
        with self.catalog.read() as connection:
            return int(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one())

    def passages_of(self, document_id: str, version: int | None = None) -> list[Passage]:
        with self.catalog.read() as connection:
            version_id = self.documents.version_id(connection, document_id, version, ALL_ACCESS)
            return passages.of_version(connection, version_id, limit=10_000)


@pytest.fixture(autouse=True)
def _databases(request: pytest.FixtureRequest) -> Iterator[None]:
    """Remove the catalogs on a server of the data directories in the test's folder."""
    folder: Path | None = None
    if postgresql.EVERYWHERE and "tmp_path" in request.fixturenames:
        folder = request.getfixturevalue("tmp_path")
    yield
    if folder is not None:
        postgresql.server().forget(folder)


@pytest.fixture(scope="module")
def quick_timing() -> Iterator[None]:
    """Brief timing that gives a figure on a busy machine too, for a module that needs one."""
    from optimizer.evaluation import settings  # here, because it imports torch

    quick = dataclasses.replace(settings.BRIEF, block_ms=1.0, max_pairs=4, quiet=1e6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "BRIEF", quick)
        yield


@pytest.fixture(scope="session")
def postgres() -> postgresql.Server:
    """A PostgreSQL server; the test is skipped if none can be started."""
    return postgresql.server_or_skip()


@pytest.fixture(scope="session")
def chroma_server() -> chroma_server_module.ChromaServer:
    """A Chroma server; the test is skipped if none can be started."""
    return chroma_server_module.server_or_skip()


@pytest.fixture(scope="session")
def s3_server() -> seaweed.S3Server:
    """An S3 server; the test is skipped if none can be started."""
    return seaweed.server_or_skip()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def catalog(data_dir: Path) -> Iterator[Catalog]:
    opened = open_catalog(fresh_data_dir(data_dir))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def model_cache() -> Path:
    return exported_models()


@pytest.fixture(scope="session")
def embedder(model_cache: Path) -> LocalEmbedder:
    opened = open_embedder(DEFAULT_MODEL, model_cache)
    assert isinstance(opened, LocalEmbedder)
    return opened


@pytest.fixture(scope="session")
def parsers() -> Iterator[ParserProcess]:
    with ParserProcess() as pool:
        yield pool


@pytest.fixture(scope="session")
def tagger() -> Tagger:
    return Tagger(VOCABULARY)


@pytest.fixture
def make_store(
    embedder: LocalEmbedder, parsers: ParserProcess, tagger: Tagger
) -> Iterator[Callable[[Path], Store]]:
    """Opens stores on any directory; a new one has hardware."""
    opened: list[Store] = []

    def make(data_dir: Path) -> Store:
        store = Store(data_dir, embedder, parsers, tagger)
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(data_dir: Path, make_store: Callable[[Path], Store]) -> Store:
    return make_store(data_dir)


@pytest.fixture
def chroma(store: Store) -> Iterator[ChromaIndex]:
    index = ChromaIndex(store.catalog, store.embedder.fingerprint, store.data_dir / "chroma")
    yield index
    index.close()


@pytest.fixture(scope="module")
def module_store(
    tmp_path_factory: pytest.TempPathFactory,
    embedder: LocalEmbedder,
    parsers: ParserProcess,
    tagger: Tagger,
) -> Iterator[Store]:
    """One store for all tests of a module."""
    store = Store(tmp_path_factory.mktemp("store"), embedder, parsers, tagger)
    yield store
    store.close()


@pytest.fixture(scope="session")
def read_builtin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with all shipped knowledge, made once for all workers: it takes ten seconds,
    so `make quick` leaves out the tests that use it.
    """
    return once(tmp_path_factory, "read-builtin", read_builtin_knowledge)


@pytest.fixture(scope="session")
def service_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the service at `service_url`; its data directory is `data` in it."""
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="session")
def service_url(service_folder: Path, model_cache: Path) -> Iterator[str]:
    """The real service on a free port with a separate data directory, killed at the end. It has all
    chips and some documents: reading and embedding the others would disturb other tests.
    """
    with service_of(service_folder, SERVED_DOCUMENTS, model_cache) as url:
        yield url


@contextmanager
def service_of(folder: Path, documents: tuple[str, ...], model_cache: Path) -> Iterator[str]:
    """A real service with these built-in documents; all its files are in `folder`."""
    knowledge = copy_knowledge(folder / "knowledge", documents)
    place_models(fresh_data_dir(folder / "data"), model_cache)  # as after a first start
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["serve", "--port", str(port), "--data-dir", str(folder / "data")]
    output = (folder / "service.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "api.cli.main", *arguments],
        cwd=ROOT,
        env=os.environ
        | {"KERNLORE_KNOWLEDGE_DIR": str(knowledge)}
        | environment_of(folder / "data"),
        stdout=output,
        stderr=subprocess.STDOUT,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_healthy(url, process, folder / "service.log")
        yield url
    finally:
        process.kill()
        process.wait()
        output.close()


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], output: Path) -> None:
    """Wait until it answers from the built-in knowledge by words (`/readyz` is 503 before that)."""
    deadline = time.monotonic() + SERVICE_START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    tail = output.read_text(encoding="utf-8", errors="replace")[-3000:]
    pytest.fail(f"the service did not become healthy (exit {process.poll()}):\n{tail}")
