"""Nearest passages through Chroma, filled from the catalog with llama-index's vector-store and node types.

One collection per hardware scope and embedding model: Chroma's metadata filters cost 20-40 times an unfiltered query.
Everything in it is derived: `sync` makes it equal to the catalog without embedding anything, `probe` finds a directory
that can no longer be read and `rebuild` makes a new one. Two processes on one directory serve deleted vectors, so only
the service opens it (`kb.service_lock`).
"""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from kb.catalog import embeddings, passages
from kb.catalog.embeddings import ScopeVectors, Vector
from kb.catalog.engine import Catalog
from kb.scope import ALL_ACCESS

BATCH = 5_000  # Chroma takes at most 5,461 rows a call
SEARCH_BREADTH = 200  # of the HNSW graph; recall of the top 100 is 1.00 at 10,000 rows

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class SyncReport:
    collections: int
    added: int
    removed: int


class ChromaIndex:
    """The service's vector index. `url` names a Chroma server; without it the directory is opened in this process."""

    def __init__(self, catalog: Catalog, model: str, directory: Path, url: str | None = None) -> None:
        self._catalog = catalog
        self._model = model
        self._directory = directory
        self._url = url
        self._stores: dict[str, Any] = {}
        # Chroma's embedded client is not safe against a collection deleted under a query.
        self._lock = threading.RLock()
        self._client = self._connect()

    def _connect(self) -> Any:
        import chromadb

        settings = chromadb.Settings(anonymized_telemetry=False)
        if self._url:
            host, _, port = re.sub(r"^https?://", "", self._url).rstrip("/").partition(":")
            return chromadb.HttpClient(host=host, port=int(port or 8000), settings=settings)
        self._directory.mkdir(parents=True, exist_ok=True)
        return chromadb.PersistentClient(str(self._directory), settings=settings)

    # -- asking

    def query(
        self, scopes: Sequence[str] | None, vector: Vector, limit: int, access_scope: str = ALL_ACCESS
    ) -> dict[int, float]:
        """The nearest passages of the scopes (None: all), best first: seq -> cosine."""
        from llama_index.core.vector_stores import VectorStoreQuery

        with self._catalog.read() as connection:
            wanted = scopes if scopes is not None else embeddings.hardware_scopes(connection)
        ids: dict[str, float] = {}
        with self._lock:
            for scope in wanted:
                store = self._existing_store(scope, access_scope)
                if store is None:
                    continue
                found = store.query(
                    VectorStoreQuery(query_embedding=vector.tolist(), similarity_top_k=limit)
                )
                # The store reports exp(-distance) of the cosine distance.
                pairs = zip(found.ids or (), found.similarities or (), strict=True)
                ids |= {i: 1.0 + float(np.log(max(s, 1e-12))) for i, s in pairs}
        best = sorted(ids.items(), key=lambda item: (-item[1], item[0]))[:limit]
        with self._catalog.read() as connection:
            seqs = passages.sequences(connection, (i for i, _ in best))
        return {seqs[i]: score for i, score in best if i in seqs}

    # -- keeping it equal to the catalog

    def sync(self, scopes: Iterable[str] | None = None) -> SyncReport:
        """Add what the catalog has and the index lacks, remove what only the index has."""
        with self._catalog.read() as connection:
            live = embeddings.hardware_scopes(connection)
        if scopes is None:
            self._drop_unknown(live)
        added = removed = 0
        wanted = live if scopes is None else sorted(set(scopes))
        for scope in wanted:
            with self._catalog.read() as connection:
                vectors = embeddings.of_scope(connection, self._model, scope, ALL_ACCESS)
            with self._lock:
                new, gone = self._sync_scope(scope, vectors)
            added, removed = added + new, removed + gone
        return SyncReport(len(wanted), added, removed)

    def _sync_scope(self, scope: str, vectors: ScopeVectors) -> tuple[int, int]:
        from llama_index.core.schema import TextNode

        store = self._store(scope, ALL_ACCESS)
        collection = store.client
        present = set(collection.get(include=[])["ids"])
        gone = sorted(present - set(vectors.ids))
        for start in range(0, len(gone), BATCH):
            collection.delete(ids=gone[start : start + BATCH])
        new = [n for n, passage_id in enumerate(vectors.ids) if passage_id not in present]
        for start in range(0, len(new), BATCH):
            nodes = [
                TextNode(
                    id_=vectors.ids[n],
                    text=vectors.ids[n],  # the text itself is the catalog's
                    embedding=vectors.matrix[n].tolist(),
                    metadata={"hardware": scope},
                )
                for n in new[start : start + BATCH]
            ]
            store.add(nodes)
        return len(new), len(gone)

    def _drop_unknown(self, live: Sequence[str]) -> None:
        """Collections of scopes, models or dimensions that nothing refers to any more."""
        keep = {self._name(scope, ALL_ACCESS) for scope in live}
        with self._lock:
            for collection in self._client.list_collections():
                if collection.name not in keep:
                    self._client.delete_collection(collection.name)
                    self._stores.pop(collection.name, None)

    def probe(self) -> bool:
        """Whether every collection answers a query with the passage whose own vector is asked for."""
        from chromadb.errors import ChromaError

        with self._catalog.read() as connection:
            scopes = embeddings.hardware_scopes(connection)
        for scope in scopes:
            with self._catalog.read() as connection:
                vectors = embeddings.of_scope(connection, self._model, scope, ALL_ACCESS)
            if not vectors.ids:
                continue
            try:
                found = self.query([scope], vectors.matrix[0], 5)
            except (ChromaError, ValueError, OSError, RuntimeError) as error:
                log.warning("vector index cannot be read", scope=scope, error=str(error))
                return False
            nearest = max(found.values(), default=0.0)
            if nearest < 0.99:
                log.warning("vector index lost a passage", scope=scope, nearest=nearest)
                return False
        return True

    def rebuild(self) -> SyncReport:
        """A fresh index from the catalog's vectors; nothing is embedded again."""
        with self._lock:
            self._stores.clear()
            if self._url:
                for collection in self._client.list_collections():
                    self._client.delete_collection(collection.name)
            else:
                self._client.clear_system_cache()
                shutil.rmtree(self._directory, ignore_errors=True)
                self._client = self._connect()
        return self.sync()

    def close(self) -> None:
        with self._lock:
            self._stores.clear()
            if not self._url:
                self._client.clear_system_cache()

    # -- collections

    def _name(self, scope: str, access_scope: str) -> str:
        """Letters and digits of the scope for people, a hash of scope, model and access for identity."""
        key = hashlib.sha256(f"{scope}\x1f{self._model}\x1f{access_scope}".encode()).hexdigest()
        return f"kl-{re.sub(r'[^a-z0-9]+', '-', scope.lower())[:40].strip('-')}-{key[:16]}"

    def _existing_store(self, scope: str, access_scope: str) -> Any:
        from chromadb.errors import NotFoundError

        name = self._name(scope, access_scope)
        if name not in self._stores:
            try:
                self._stores[name] = _store_of(
                    self._client.get_collection(name, embedding_function=None)
                )
            except NotFoundError:
                return None
        return self._stores[name]

    def _store(self, scope: str, access_scope: str) -> Any:
        name = self._name(scope, access_scope)
        if name not in self._stores:
            collection = self._client.get_or_create_collection(
                name,
                embedding_function=None,
                configuration={"hnsw": {"space": "cosine", "ef_search": SEARCH_BREADTH}},
                metadata={"hardware": scope, "model": self._model},
            )
            self._stores[name] = _store_of(collection)
        return self._stores[name]


def _store_of(collection: Any) -> Any:
    from llama_index.vector_stores.chroma import ChromaVectorStore

    return ChromaVectorStore(chroma_collection=collection)
