"""An open data directory: catalog, blobs, hardware, documents, embedder, vector index, retriever.

Every use case in the rooms above receives a `KnowledgeBase`; the service and the commands extend
it. Parts are built on first use, because the embedding model takes seconds to load. Does not know
HTTP, ingestion or kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache

from kb.blobs import Blobs, open_blobs
from kb.catalog import Catalog, open_catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.knowledge.documents import Documents
from kb.embedding import LocalEmbedder, Vectors, open_embedder
from kb.scope import ALL_ACCESS, AccessScope
from kb.settings import Settings
from retrieval.near import NearIndex
from retrieval.service import Retriever
from retrieval.snapshot.store import SnapshotStore

REMEMBERED = 4_096  # cached vectors of queries and names, of 1.5 KB
DENSE_SHARE = 0.9  # share of passages with a vector from which on vectors are used in answers


class KnowledgeBase:
    """The parts of one data directory. Call `close` when done."""

    access: AccessScope = ALL_ACCESS  # restricts reads and changes

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.catalog: Catalog = open_catalog(settings.data_dir, settings.catalog)
        self.blobs: Blobs = open_blobs(settings.data_dir, settings.blob_url)
        self.documents = Documents(self.catalog)
        self.registry = HardwareRegistry(self.catalog)

    @cached_property
    def dense_ready(self) -> bool:
        """Whether answers use vectors. While few passages have a vector, those would rank first for
        that reason alone. A command decides this once; the service sets it again while it starts.
        """
        embedded, passages = self.vectors()
        return embedded >= DENSE_SHARE * passages

    def vectors(self) -> tuple[int, int]:
        """Number of passages with a vector, and number of all passages."""
        snapshot = self.snapshots.current()
        return snapshot.embedded, snapshot.passages

    @cached_property
    def embedder(self) -> LocalEmbedder:
        return open_embedder(self.settings.embedder, self.settings.models_dir)

    @cached_property
    def embed(self) -> Callable[[str], Vectors]:
        """The embedder's vector of a query, cached."""
        return lru_cache(maxsize=REMEMBERED)(self.embedder.encode_query)

    @cached_property
    def snapshots(self) -> SnapshotStore:
        """Source of the snapshots that answers are computed from."""
        return SnapshotStore(self.catalog, self.embedder.fingerprint)

    near: NearIndex | None = None  # set by a service with Chroma
    knowledge_loaded: bool = True  # False while a service loads the built-in knowledge

    @cached_property
    def retriever(self) -> Retriever:
        return Retriever(
            self.catalog,
            self.snapshots,
            self.embedder,
            near=lambda: self.near,
            dense_ready=lambda: self.dense_ready,
            loaded=lambda: self.knowledge_loaded,
            withheld_share=self.settings.skills_withheld_share,
            shared=self.settings.workers > 1,
        )

    def report_skill_use(self, names: Sequence[str]) -> None:
        """Record that an outcome was reported for these skills. Does nothing here; with a skill
        library (`skills/`), losing skills are narrowed or retired.
        """

    def close(self) -> None:
        if "retriever" in self.__dict__:
            self.retriever.close()
        self.catalog.close()
