"""Nearest passages through Chroma, filled from the catalog with llama-index's vector-store and node
types.

One collection per hardware scope and embedding model: Chroma's metadata filters cost 20-40 times an
unfiltered query. Everything in it is derived: `sync` makes it equal to the catalog without
embedding anything, `probe` finds a directory that can no longer be read and `rebuild` makes a new
one. An entry's id is the passage's id and a digest of its vector, so a corrected text is another
entry. Two processes on one directory serve deleted vectors, so only the service opens it
(`kb.data_dir`). On a server, services of one catalog share its collections, and those of
another catalog are left alone. `kb.index.chroma` connects.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import httpx
import structlog
from sqlalchemy import Connection

from kb.catalog.engine import Catalog
from kb.catalog.knowledge import embeddings, passages
from kb.catalog.knowledge.embeddings import ScopeVectors, Vector
from kb.data_dir import private_folder
from kb.errors import InvalidRequest, KernloreError, StoreAway
from kb.ids import new_id
from kb.memory import return_freed_memory
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
            return_freed_memory()

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
            self._prefix = f"{self._catalog.store_id()}-"
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


# -- chroma client: How Chroma is reached: in this process, over a directory that nobody else open

# Seconds that a server is waited for: by who asks, and by who adds entries, of which a graph is
# made when they are first looked for.
CONNECT_SECONDS, ASKING_SECONDS, WRITING_SECONDS = 3.0, 5.0, 120.0
PORT = 8000
MOST_REASON = 200  # characters
_EXAMPLE = "http://HOST:8000, https://USER:PASSWORD@HOST/?tenant=T&database=D"


class Unreadable(Exception):
    """Chroma cannot read what it wrote."""


class Chroma(ABC):
    """Where the collections are. `guard` is held around every use of a client."""

    served: bool
    guard: AbstractContextManager[Any]

    @abstractmethod
    def client(self, writing: bool = False) -> Any:
        """Chroma's client, connected when it is first asked for."""

    @abstractmethod
    def faults(self) -> AbstractContextManager[None]:
        """Turns what Chroma raises into Unreadable or StoreAway."""

    @abstractmethod
    def disconnect(self) -> None:
        """Release it; the next use connects again."""


class Directory(Chroma):
    """Chroma in this process."""

    served = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._connected: Any = None
        # Chroma's embedded client is not safe against a collection deleted under a query.
        self.guard = threading.RLock()

    def client(self, writing: bool = False) -> Any:
        with self.guard:
            if self._connected is None:
                import chromadb

                private_folder(self._folder)
                self._connected = chromadb.PersistentClient(str(self._folder), settings=_settings())
            return self._connected

    @contextmanager
    def faults(self) -> Iterator[None]:
        from chromadb.errors import ChromaError

        try:
            yield
        # A missing table or a half-started system surfaces as any of these.
        except (ChromaError, AttributeError, KeyError, ValueError, OSError, RuntimeError) as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from error
        except BaseException as error:
            # A panic in Chroma's Rust part is no Exception and its class cannot be imported.
            if type(error).__name__ != "PanicException":
                raise
            raise Unreadable(f"panic: {error}") from error

    def disconnect(self) -> None:
        from chromadb.api.shared_system_client import SharedSystemClient

        if self._connected is not None:
            self._connected.close()
            self._connected = None
        # A client that failed to start stays in Chroma's cache and would be handed out again.
        SharedSystemClient.clear_system_cache()

    def discard(self) -> None:
        """Move the directory away first: whatever of it is still open cannot touch the new one."""
        self.disconnect()
        if self._folder.exists():
            broken = self._folder.with_name(f"{self._folder.name}.{new_id('old')}")
            self._folder.rename(broken)
            shutil.rmtree(broken, ignore_errors=True)


@dataclass(frozen=True)
class Address:
    """Of a server. `name` is for messages, without a password."""

    name: str
    host: str
    port: int
    ssl: bool
    tenant: str | None
    database: str | None
    headers: dict[str, str] = field(repr=False)


def parse_address(url: str) -> Address:
    """The address in a URL. Raises InvalidRequest, which does not repeat it: it may hold a
    password.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        raise _refused("cannot be read") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _refused("names no server")
    if parts.path not in ("", "/") or options.keys() - {"tenant", "database"}:
        raise _refused("has parts that say nothing about a server")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    ssl = parts.scheme == "https"
    port = port or (443 if ssl else PORT)
    return Address(
        name=f"{parts.scheme}://{host}:{port}",
        host=host,
        port=port,
        ssl=ssl,
        tenant=options.get("tenant", [None])[0],
        database=options.get("database", [None])[0],
        headers=_credentials(parts),
    )


def _credentials(parts: SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the URL of the Chroma server {why}",
        hint=f"Give KERNLORE_CHROMA_URL as one of: {_EXAMPLE}. Characters such as @ and / in a"
        " password are written as %40 and %2F.",
    )


class Server(Chroma):
    """Chroma on a server. Who asks and who adds have connections with limits of their own."""

    served = True

    def __init__(self, url: str) -> None:
        """Connects to nothing yet. Raises InvalidRequest for a URL that names no server."""
        self.address = parse_address(url)
        self._connected: dict[bool, Any] = {}
        self._connecting = threading.Lock()  # protects _connected
        self.guard = nullcontext()  # its clients may be shared between threads

    def client(self, writing: bool = False) -> Any:
        with self._connecting:
            if writing not in self._connected:
                self._connected[writing] = self._connect(
                    WRITING_SECONDS if writing else ASKING_SECONDS
                )
            return self._connected[writing]

    def check(self) -> None:
        """Raise StoreAway where the server does not answer."""
        with self.faults():
            self.client().heartbeat()

    def _connect(self, seconds: float) -> Any:
        from chromadb.api.client import Client

        address = self.address
        limits = httpx.Timeout(seconds, connect=CONNECT_SECONDS)

        class Limited(Client):
            """Chroma's own client for HTTP, which would wait for ever: it has no setting for it.
            This is the first that a new one asks.
            """

            def get_user_identity(self) -> Any:
                api: Any = self._server
                api._session.timeout = limits
                return super().get_user_identity()

        settings = _settings()
        settings.chroma_api_impl = "chromadb.api.fastapi.FastAPI"
        settings.chroma_server_host = address.host
        settings.chroma_server_http_port = address.port
        settings.chroma_server_ssl_enabled = address.ssl
        settings.chroma_server_headers = dict(address.headers)
        names = {"tenant": address.tenant, "database": address.database}
        return Limited(settings=settings, **{k: v for k, v in names.items() if v is not None})

    @contextmanager
    def faults(self) -> Iterator[None]:
        from chromadb.errors import ChromaError

        try:
            yield
        except KernloreError:
            raise
        # Its client raises ValueError where it cannot connect.
        except (ChromaError, httpx.HTTPError, ValueError, OSError) as error:
            raise self.away(f"{type(error).__name__}: {error}") from error
        except Exception as error:
            # And a bare Exception for an answer that it does not know, such as a proxy's.
            if type(error) is not Exception:
                raise
            raise self.away(str(error)) from error

    def away(self, reason: str) -> StoreAway:
        """The error that says so."""
        shown = " ".join(reason.split())[:MOST_REASON]
        return StoreAway(
            f"the Chroma server {self.address.name} does not answer ({shown})",
            hint="Start it, or correct KERNLORE_CHROMA_URL; without that the index is in the data"
            " directory. The index catches up by itself when the server answers.",
        )

    def disconnect(self) -> None:
        with self._connecting:
            for client in self._connected.values():
                _close(client)
            self._connected.clear()


def _close(client: Any) -> None:
    """Close a client for HTTP. Its own `close` leaves open the connections of its two parts, until
    they are collected as garbage.
    """
    for part in (client, client._admin_client):
        part._server._session.close()
    client.close()


def not_found() -> type[Exception]:
    """What Chroma raises for a collection that is not there."""
    from chromadb.errors import NotFoundError

    return NotFoundError


def _settings() -> Any:
    from chromadb.config import Settings

    return Settings(anonymized_telemetry=False)
