"""Nearest passages through Chroma, filled from the catalog with llama-index's vector-store and node
types.

One collection per hardware scope and embedding model: Chroma's metadata filters cost 20-40 times an
unfiltered query. Everything in it is derived: `sync` makes it equal to the catalog without
embedding anything, `probe` finds a directory that can no longer be read and `rebuild` makes a new
one. An entry's id is the passage's id and a digest of its vector, so a corrected text is another
entry. Two processes on one directory serve deleted vectors, so only the service opens it
(`kb.service_lock`). On a server, services of one catalog share its collections, and those of
another catalog are left alone. `kb.index.chroma_client` connects.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Connection

from kb.catalog.engine import Catalog
from kb.catalog.knowledge import embeddings, passages
from kb.catalog.knowledge.embeddings import ScopeVectors, Vector
from kb.catalog.store_id import store_id
from kb.index.chroma_client import Chroma, Directory, Server, Unreadable, not_found
from kb.process_memory import give_back
from kb.scope import ALL_ACCESS, AccessScope

BATCH = 5_000  # Chroma takes at most 5,461 rows a call
SERVER_BATCH = 1_000  # and a server at most 40 MB
SCOPES_AT_ONCE = 64  # whose graphs are in memory while all are looked through
PAGE, COLLECTIONS = 50_000, 500  # ids, and collections, that are listed at once
SEARCH_BREADTH = 200  # of the HNSW graph: no less than the rows that ranking asks for
PROBED = 100  # passages of a scope among which the probe looks for one that is indexed

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class SyncReport:
    """What a synchronisation did: scopes looked at, entries added and removed."""

    collections: int
    added: int
    removed: int


class ChromaIndex:
    """The service's vector index. `url` names a Chroma server, which other services may use too;
    without it the directory is opened in this process.

    Connects when it is first used; `open_or_rebuild` is how a service starts it. On a server,
    everything here raises StoreAway where that does not answer.
    """

    def __init__(
        self, catalog: Catalog, model: str, directory: Path, url: str | None = None
    ) -> None:
        self._catalog = catalog
        self._model = model
        self._server = Server(url) if url else None
        self._directory = Directory(directory)
        self._chroma: Chroma = self._server or self._directory
        self._collections: dict[
            tuple[str, bool], Any
        ] = {}  # by collection and whether it is written to
        self._prefix = ""

    def open_or_rebuild(self) -> SyncReport:
        """Make the index readable and equal to the catalog; an unreadable directory is replaced."""
        if self._server is not None:
            self._collections.clear()  # somebody may have made the collections anew
            return self.sync() if self.probe() else self.rebuild()
        try:
            with self._chroma.faults():
                return self.sync() if self.probe() else self.rebuild()
        except Unreadable as error:
            log.warning("vector index cannot be opened, rebuilding it", error=str(error))
            return self.rebuild()

    def check(self) -> None:
        """Raise StoreAway where a server does not answer."""
        if self._server is not None:
            self._server.check()

    # -- asking

    def query(
        self,
        scopes: Sequence[str] | None,
        vector: Vector,
        limit: int,
        access_scope: AccessScope = ALL_ACCESS,
        transaction: Connection | None = None,
    ) -> dict[int, float]:
        """The nearest passages of the scopes (None: all), best first: seq -> cosine."""
        with self._catalog.within(transaction) as connection:
            wanted = scopes if scopes is not None else embeddings.hardware_scopes(connection)
        try:
            with self._chroma.faults():
                scores = self._nearest(wanted, vector, limit, access_scope)
        except Unreadable as error:
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
        self,
        scopes: Sequence[str],
        vector: Vector,
        limit: int,
        access_scope: AccessScope,
        writing: bool = False,
    ) -> dict[str, float]:
        """The nearest entries of the scopes, their passages live or not: entry id -> cosine.

        The collection is asked itself: llama-index's store would fetch and parse a node for each
        hit, which takes as long as finding them, and only ids and distances are wanted.
        """
        ids: dict[str, float] = {}
        with self._chroma.guard, self._served_faults():
            for scope in scopes:
                collection = self._existing(scope, access_scope, writing)
                if collection is None:
                    self._check_unknown(scope)
                    continue
                result = collection.query(
                    query_embeddings=[vector], n_results=limit, include=["distances"]
                )
                pairs = zip(result["ids"][0], result["distances"][0], strict=True)
                ids |= {entry: 1.0 - distance for entry, distance in pairs}
        return ids

    def _check_unknown(self, scope: str) -> None:
        """Raise StoreAway where a server has lost what it was given: nothing found there would be
        taken for nothing there.
        """
        if self._server is None:
            return
        with self._catalog.read() as connection:
            held = embeddings.of_scope(connection, self._model, scope, ALL_ACCESS)
        if held.ids:
            raise self._server.away(f"it has no collection for {scope}")

    # -- keeping it equal to the catalog

    def sync(self, scopes: Iterable[str] | None = None) -> SyncReport:
        """Add what the catalog has and the index lacks, remove what only the index has."""
        with self._catalog.read() as connection:
            live = embeddings.hardware_scopes(connection)
        if scopes is None:
            self._drop_unknown(live)
        added = removed = 0
        wanted = live if scopes is None else sorted(set(scopes))
        for done, scope in enumerate(wanted, 1):
            # What is there is looked at before the catalog: of an entry that another service has
            # added, the passage is then seen too, and the entry stays.
            present = self._present(scope)
            with self._catalog.read() as connection:
                vectors = embeddings.of_scope(connection, self._model, scope, ALL_ACCESS)
            with self._chroma.guard, self._served_faults():
                new, gone = self._sync_scope(scope, vectors, present)
            added, removed = added + new, removed + gone
            self._let_go(done)
        return SyncReport(len(wanted), added, removed)

    def _present(self, scope: str) -> set[str]:
        """The entries of a scope's collection."""
        entries: set[str] = set()
        with self._chroma.guard, self._served_faults():
            collection = self._collection(scope, ALL_ACCESS)
            while page := collection.get(include=[], limit=PAGE, offset=len(entries))["ids"]:
                before = len(entries)
                entries.update(page)
                if len(page) < PAGE or len(entries) == before:
                    break
        return entries

    def _sync_scope(
        self, scope: str, vectors: ScopeVectors, present: Collection[str]
    ) -> tuple[int, int]:
        collection = self._collection(scope, ALL_ACCESS)
        entries = _entries(vectors)
        gone = sorted(set(present) - set(entries))
        batch = SERVER_BATCH if self._chroma.served else BATCH
        for start in range(0, len(gone), batch):
            collection.delete(ids=gone[start : start + batch])
        new = [n for n, entry in enumerate(entries) if entry not in present]
        for start in range(0, len(new), batch):
            _add(collection, scope, entries, vectors, new[start : start + batch])
        if new and self._chroma.served:
            # The graph of what was added is made by the first who asks, which may take longer than
            # a request waits.
            collection.query(query_embeddings=[vectors.matrix[new[0]]], n_results=1, include=[])
        return len(new), len(gone)

    def _drop_unknown(self, live: Sequence[str]) -> None:
        """Collections of scopes, models or dimensions that nothing refers to any more."""
        keep = {self._name(scope, ALL_ACCESS) for scope in live}
        for name in self._own_collections():
            if name not in keep:
                self._delete(name)

    def _own_collections(self) -> list[str]:
        """The names of what this index has made, on a server that others may use too."""
        names: list[str] = []
        with self._chroma.guard, self._served_faults():
            client = self._chroma.client(writing=True)
            while page := client.list_collections(limit=COLLECTIONS, offset=len(names)):
                names += [collection.name for collection in page]
                if len(page) < COLLECTIONS:
                    break
        return [name for name in names if name.startswith(f"kl-{self._own_prefix()}")]

    def _delete(self, name: str) -> None:
        with self._chroma.guard, self._served_faults():
            with suppress(not_found()):  # another service did
                self._chroma.client(writing=True).delete_collection(name)
            for writing in (False, True):
                self._collections.pop((name, writing), None)

    def probe(self) -> bool:
        """Whether every collection can be read and finds a passage it holds by its vector.

        What a collection does not hold yet is not a damage: `sync` adds it.
        """
        with self._catalog.read() as connection:
            scopes = embeddings.hardware_scopes(connection)
        for done, scope in enumerate(scopes, 1):
            with self._catalog.read() as connection:
                vectors = embeddings.of_scope(connection, self._model, scope, ALL_ACCESS)
            try:
                with self._chroma.faults():
                    nearest = self._probe_scope(scope, vectors)
            except Unreadable as error:
                log.warning("vector index cannot be read", scope=scope, error=str(error))
                return False
            if nearest is not None and nearest < 0.99:
                log.warning("vector index lost a passage", scope=scope, nearest=nearest)
                return False
            self._let_go(done)
        return True

    def _let_go(self, done: int) -> None:
        """After so many scopes, release the graphs that are in memory by now: a graph stays with
        the client that has opened it, and those of a thousand chips take as much as all else.
        """
        if done % SCOPES_AT_ONCE == 0 and not self._chroma.served:
            self.close()
            give_back()

    def _probe_scope(self, scope: str, vectors: ScopeVectors) -> float | None:
        """How near the scope's collection finds an entry it holds; None when it holds none."""
        with self._chroma.guard:
            collection = self._existing(scope, ALL_ACCESS, writing=True)
            if collection is None or not vectors.ids:
                return None
            entries = _entries(vectors, PROBED)
            held = set(collection.get(ids=entries, include=[])["ids"])
        for entry, vector in zip(entries, vectors.matrix, strict=False):
            if entry in held:
                scores = self._nearest([scope], vector, 5, ALL_ACCESS, writing=True)
                return max(scores.values(), default=0.0)
        return None

    def rebuild(self) -> SyncReport:
        """A fresh index from the catalog's vectors; nothing is embedded again."""
        with self._chroma.guard:
            self._collections.clear()
            if self._chroma.served:
                for name in self._own_collections():
                    self._delete(name)
            else:
                self._directory.discard()
        return self.sync()

    def close(self) -> None:
        """Release the index; the next use opens it again."""
        with self._chroma.guard:
            self._collections.clear()
            self._chroma.disconnect()

    def _served_faults(self) -> AbstractContextManager[None]:
        """What a server raises, as StoreAway. Of a directory, its callers see to it."""
        return self._chroma.faults() if self._chroma.served else nullcontext()

    # -- collections

    def _own_prefix(self) -> str:
        """What the names on a server begin with: several catalogs may have collections there."""
        if self._chroma.served and not self._prefix:
            self._prefix = f"{store_id(self._catalog)}-"
        return self._prefix

    def _name(self, scope: str, access_scope: AccessScope) -> str:
        """Letters and digits of the scope for people, a hash of all three parts for identity."""
        key = hashlib.sha256(
            f"{scope}\x1f{self._model}\x1f{access_scope.owner}".encode()
        ).hexdigest()
        readable = re.sub(r"[^a-z0-9]+", "-", scope.lower())[:40].strip("-")
        return f"kl-{self._own_prefix()}{readable}-{key[:16]}"

    def _existing(self, scope: str, access_scope: AccessScope, writing: bool) -> Any:
        name = self._name(scope, access_scope)
        if (name, writing) not in self._collections:
            try:
                client = self._chroma.client(writing)
                collection = client.get_collection(name, embedding_function=None)
            except not_found():
                return None
            self._collections[name, writing] = collection
        return self._collections[name, writing]

    def _collection(self, scope: str, access_scope: AccessScope) -> Any:
        name = self._name(scope, access_scope)
        if (name, True) not in self._collections:
            self._collections[name, True] = self._chroma.client(
                writing=True
            ).get_or_create_collection(
                name,
                embedding_function=None,
                configuration={"hnsw": {"space": "cosine", "ef_search": SEARCH_BREADTH}},
                metadata={"hardware": scope, "model": self._model},
            )
        return self._collections[name, True]


def _entries(vectors: ScopeVectors, most: int | None = None) -> list[str]:
    """Entry ids of the passages, in order; of the first `most` alone."""
    return [
        f"{passage_id}.{hashlib.blake2b(vector.tobytes(), digest_size=6).hexdigest()}"
        for passage_id, vector in zip(vectors.ids[:most], vectors.matrix[:most], strict=True)
    ]


def _add(
    collection: Any,
    scope: str,
    entries: Sequence[str],
    vectors: ScopeVectors,
    places: Sequence[int],
) -> None:
    """Add the entries in these places. llama-index takes seconds to load, and an index that has
    all of its entries, which is the usual start, does without it.
    """
    from llama_index.core.schema import BaseNode, TextNode
    from llama_index.vector_stores.chroma import ChromaVectorStore

    nodes: list[BaseNode] = [
        TextNode(
            id_=entries[n],
            text=vectors.ids[n],  # the text itself is the catalog's
            embedding=vectors.matrix[n].tolist(),
            metadata={"hardware": scope},
        )
        for n in places
    ]
    ChromaVectorStore(chroma_collection=collection).add(nodes)
