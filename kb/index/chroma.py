"""Nearest passages through Chroma, filled from the catalog with llama-index's vector-store and node
types.

One collection per hardware scope and embedding model: Chroma's metadata filters cost 20-40 times an
unfiltered query. Everything in it is derived: `sync` makes it equal to the catalog without
embedding anything, `probe` finds a directory that can no longer be read and `rebuild` makes a new
one. An entry's id is the passage's id and a digest of its vector, so a corrected text is another
entry. Two processes on one directory serve deleted vectors, so only the service opens it
(`kb.service_lock`).
"""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from kb.catalog.engine import Catalog
from kb.catalog.knowledge import embeddings, passages
from kb.catalog.knowledge.embeddings import ScopeVectors, Vector
from kb.errors import Unavailable
from kb.ids import new_id
from kb.private import private_folder
from kb.scope import ALL_ACCESS, AccessScope

BATCH = 5_000  # Chroma takes at most 5,461 rows a call
SEARCH_BREADTH = 200  # of the HNSW graph: no less than the rows that ranking asks for
PROBED = 100  # passages of a scope among which the probe looks for one that is indexed

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class SyncReport:
    """What a synchronisation did: scopes looked at, entries added and removed."""

    collections: int
    added: int
    removed: int


class _Unreadable(Exception):
    """Chroma cannot read what it wrote."""


@contextmanager
def _reading() -> Iterator[None]:
    """Turns everything that an unreadable directory makes Chroma raise into `_Unreadable`."""
    from chromadb.errors import ChromaError

    try:
        yield
    # A missing table or a half-started system surfaces as any of these.
    except (ChromaError, AttributeError, KeyError, ValueError, OSError, RuntimeError) as error:
        raise _Unreadable(f"{type(error).__name__}: {error}") from error
    except BaseException as error:
        # A panic in Chroma's Rust part is no Exception and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise _Unreadable(f"panic: {error}") from error


class ChromaIndex:
    """The service's vector index. `url` names a Chroma server; without it the directory is opened
    in this process.

    Connects when it is first used; `open_or_rebuild` is how a service starts it.
    """

    def __init__(
        self, catalog: Catalog, model: str, directory: Path, url: str | None = None
    ) -> None:
        self._catalog = catalog
        self._model = model
        self._directory = directory
        self._url = url
        self._stores: dict[str, Any] = {}
        # Chroma's embedded client is not safe against a collection deleted under a query.
        self._lock = threading.RLock()
        self._connected: Any = None

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._connected is None:
                self._connected = self._connect()
            return self._connected

    def open_or_rebuild(self) -> SyncReport:
        """Make the index readable and equal to the catalog; an unreadable directory is replaced."""
        try:
            with _reading():
                return self.sync() if self.probe() else self.rebuild()
        except _Unreadable as error:
            if self._url:
                raise Unavailable(
                    f"the Chroma server {self._url} does not answer: {error}",
                    hint="Start it, or unset KERNLORE_CHROMA_URL to use the embedded index.",
                ) from error
            log.warning("vector index cannot be opened, rebuilding it", error=str(error))
            return self.rebuild()

    def _connect(self) -> Any:
        import chromadb
        from chromadb.config import Settings

        settings = Settings(anonymized_telemetry=False)
        if self._url:
            host, _, port = re.sub(r"^https?://", "", self._url).rstrip("/").partition(":")
            return chromadb.HttpClient(host=host, port=int(port or 8000), settings=settings)
        private_folder(self._directory)
        return chromadb.PersistentClient(str(self._directory), settings=settings)

    # -- asking

    def query(
        self,
        scopes: Sequence[str] | None,
        vector: Vector,
        limit: int,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> dict[int, float]:
        """The nearest passages of the scopes (None: all), best first: seq -> cosine."""
        with self._catalog.read() as connection:
            wanted = scopes if scopes is not None else embeddings.hardware_scopes(connection)
        try:
            with _reading():
                scores = self._nearest(wanted, vector, limit, access_scope)
        except _Unreadable as error:
            log.warning("vector index cannot be read, rebuilding it", error=str(error))
            self.rebuild()
            scores = self._nearest(wanted, vector, limit, access_scope)
        live, stale = self._live(scores, limit)
        if stale:
            # Entries of deleted passages stand where live ones belong.
            self.sync(wanted)
            live, _ = self._live(self._nearest(wanted, vector, limit, access_scope), limit)
        ranked = sorted(live.items(), key=lambda item: (-item[1][0], item[0]))
        return {seq: score for seq, (_, score) in ranked[:limit]}

    def _live(
        self, entries: dict[str, float], limit: int
    ) -> tuple[dict[int, tuple[float, float]], int]:
        """Of the `limit` best entries and those as good as the last of them, the live ones: seq ->
        cosine, rounded and as it is; and how many are not live.
        """
        scores: dict[str, float] = {}
        for entry, score in entries.items():
            passage_id = entry.partition(".")[0]
            scores[passage_id] = max(score, scores.get(passage_id, -1.0))
        # Rounded as in exact search, so that equal texts come in the same order.
        rounded = {passage_id: round(score, 5) for passage_id, score in scores.items()}
        if len(rounded) > limit:
            least = sorted(rounded.values(), reverse=True)[limit - 1]
            rounded = {key: value for key, value in rounded.items() if value >= least}
        with self._catalog.read() as connection:
            seqs = passages.sequences(connection, rounded)
        live = {seq: (rounded[key], scores[key]) for key, seq in seqs.items()}
        return live, len(rounded) - len(live)

    def _nearest(
        self, scopes: Sequence[str], vector: Vector, limit: int, access_scope: AccessScope
    ) -> dict[str, float]:
        """The nearest entries of the scopes, their passages live or not: entry id -> cosine.

        The collection is asked itself: llama-index's store would fetch and parse a node for each
        hit, which takes as long as finding them, and only ids and distances are wanted.
        """
        ids: dict[str, float] = {}
        with self._lock:
            for scope in scopes:
                store = self._existing_store(scope, access_scope)
                if store is None:
                    continue
                result = store.client.query(
                    query_embeddings=[vector], n_results=limit, include=["distances"]
                )
                pairs = zip(result["ids"][0], result["distances"][0], strict=True)
                ids |= {entry: 1.0 - distance for entry, distance in pairs}
        return ids

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
        entries = _entries(vectors)
        gone = sorted(present - set(entries))
        for start in range(0, len(gone), BATCH):
            collection.delete(ids=gone[start : start + BATCH])
        new = [n for n, entry in enumerate(entries) if entry not in present]
        for start in range(0, len(new), BATCH):
            nodes = [
                TextNode(
                    id_=entries[n],
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
        """Whether every collection can be read and finds a passage it holds by its vector.

        What a collection does not hold yet is not a damage: `sync` adds it.
        """
        with self._catalog.read() as connection:
            scopes = embeddings.hardware_scopes(connection)
        for scope in scopes:
            with self._catalog.read() as connection:
                vectors = embeddings.of_scope(connection, self._model, scope, ALL_ACCESS)
            try:
                with _reading():
                    nearest = self._probe_scope(scope, vectors)
            except _Unreadable as error:
                log.warning("vector index cannot be read", scope=scope, error=str(error))
                return False
            if nearest is not None and nearest < 0.99:
                log.warning("vector index lost a passage", scope=scope, nearest=nearest)
                return False
        return True

    def _probe_scope(self, scope: str, vectors: ScopeVectors) -> float | None:
        """How near the scope's collection finds an entry it holds; None when it holds none."""
        with self._lock:
            store = self._existing_store(scope, ALL_ACCESS)
            if store is None or not vectors.ids:
                return None
            entries = _entries(vectors)[:PROBED]
            held = set(store.client.get(ids=entries, include=[])["ids"])
        for entry, vector in zip(entries, vectors.matrix, strict=False):
            if entry in held:
                scores = self._nearest([scope], vector, 5, ALL_ACCESS)
                return max(scores.values(), default=0.0)
        return None

    def rebuild(self) -> SyncReport:
        """A fresh index from the catalog's vectors; nothing is embedded again."""
        with self._lock:
            self._stores.clear()
            if self._url:
                for collection in self._client.list_collections():
                    self._client.delete_collection(collection.name)
            else:
                self._disconnect()
                self._discard_directory()
        return self.sync()

    def _disconnect(self) -> None:
        from chromadb.api.shared_system_client import SharedSystemClient

        if self._connected is not None:
            self._connected.close()
            self._connected = None
        # A client that failed to start stays in Chroma's cache and would be handed out again.
        SharedSystemClient.clear_system_cache()

    def _discard_directory(self) -> None:
        """Move the directory away first: whatever of it is still open cannot touch the new one."""
        if self._directory.exists():
            broken = self._directory.with_name(f"{self._directory.name}.{new_id('old')}")
            self._directory.rename(broken)
            shutil.rmtree(broken, ignore_errors=True)

    def close(self) -> None:
        """Release the index; the next use opens it again."""
        with self._lock:
            self._stores.clear()
            if not self._url:
                self._disconnect()

    # -- collections

    def _name(self, scope: str, access_scope: AccessScope) -> str:
        """Letters and digits of the scope for people, a hash of all three parts for identity."""
        key = hashlib.sha256(
            f"{scope}\x1f{self._model}\x1f{access_scope.owner}".encode()
        ).hexdigest()
        return f"kl-{re.sub(r'[^a-z0-9]+', '-', scope.lower())[:40].strip('-')}-{key[:16]}"

    def _existing_store(self, scope: str, access_scope: AccessScope) -> Any:
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

    def _store(self, scope: str, access_scope: AccessScope) -> Any:
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


def _entries(vectors: ScopeVectors) -> list[str]:
    """Entry ids of the passages, in order."""
    return [
        f"{passage_id}.{hashlib.blake2b(vector.tobytes(), digest_size=6).hexdigest()}"
        for passage_id, vector in zip(vectors.ids, vectors.matrix, strict=True)
    ]


def _store_of(collection: Any) -> Any:
    from llama_index.vector_stores.chroma import ChromaVectorStore

    return ChromaVectorStore(chroma_collection=collection)
