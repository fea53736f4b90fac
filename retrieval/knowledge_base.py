"""An open data directory: catalog, blobs, hardware, documents, embedder, vector index, retriever.

`KnowledgeBase` is what every use case above this room is given: the optimizer searches with it, the
curator learns with it, the service and the commands add what only they need. Parts are built when
they are first used, because the embedding model takes seconds to load. Knows nothing about HTTP,
ingestion or kernels.
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
from retrieval.snapshot.store import Snapshots

REMEMBERED = 4_096  # vectors of queries and names, of 1.5 KB
DENSE_SHARE = 0.9  # of the passages must have a vector before vectors take part in answers


class KnowledgeBase:
    """The parts of one data directory; `close` it when done."""

    access: AccessScope = ALL_ACCESS  # what whoever was given this may see and change

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.catalog: Catalog = open_catalog(settings.data_dir, settings.catalog)
        self.blobs: Blobs = open_blobs(settings.data_dir, settings.blob_url)
        self.documents = Documents(self.catalog)
        self.registry = HardwareRegistry(self.catalog)

    @cached_property
    def dense_ready(self) -> bool:
        """Whether vectors take part in answers.

        Where few passages have a vector, those few would win by having one. A command decides this
        once; the service sets it again while it starts.
        """
        embedded, passages = self.vectors()
        return embedded >= DENSE_SHARE * passages

    def vectors(self) -> tuple[int, int]:
        """Number of passages that have a vector, and number of all passages."""
        snapshot = self.snapshots.current()
        return snapshot.embedded, snapshot.passages

    @cached_property
    def embedder(self) -> LocalEmbedder:
        return open_embedder(self.settings.embedder, self.settings.models_dir)

    @cached_property
    def embed(self) -> Callable[[str], Vectors]:
        """The embedder's vector of a query, remembered."""
        return lru_cache(maxsize=REMEMBERED)(self.embedder.encode_query)

    @cached_property
    def snapshots(self) -> Snapshots:
        """What answers are computed from."""
        return Snapshots(self.catalog, self.embedder.fingerprint)

    near: NearIndex | None = None  # of a service with a Chroma
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
        )

    def report_skill_use(self, names: Sequence[str]) -> None:
        """Record that an outcome was reported for these skills.

        Here nothing follows from it; with a skill library (`skills/`), skills that lose are
        narrowed or retired.
        """

    def close(self) -> None:
        if "retriever" in self.__dict__:
            self.retriever.close()
        self.catalog.close()
