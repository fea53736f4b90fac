"""The vector index in Chroma, embedded in this process or on a server, filled from the catalog.

One collection per hardware scope and embedding model: metadata filters make a query 20-40 times
slower. The index is derived: `sync` makes it equal to the catalog, `probe` detects an unreadable
one, `rebuild` replaces it; none of them computes embeddings. The id of an entry is the passage's id
and a digest of its vector, so a corrected text is another entry. Two processes on one directory
would return deleted vectors, so only the service opens it. On a server, services of one catalog
share collections, and those of another catalog have names with another prefix.
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

from kb.catalog.engine import Catalog
from kb.catalog.knowledge import embeddings
from kb.catalog.knowledge.embeddings import ScopeVectors, Vector
from kb.data_dir import private_folder
from kb.errors import InvalidRequest, KernloreError, StoreAway
from kb.ids import new_id
from kb.memory import return_freed_memory
from kb.scope import ALL_ACCESS, AccessScope

BATCH = 5_000  # Chroma accepts at most 5,461 rows per call
SERVER_BATCH = 1_000  # a server accepts at most 40 MB
OPEN_SCOPES = 64  # whose graphs are in memory while all scopes are visited
PAGE, COLLECTIONS = 50_000, 500  # entries, and collections, per listing
SEARCH_BREADTH = 200  # of the HNSW graph: at least the limit of a query
PROBED = 100  # passages of a scope among which the probe looks for an indexed one
PORT = 8000
# Timeouts in seconds. Writing takes longest if a server builds the graph of new entries.
CONNECT_SECONDS, READ_SECONDS, WRITE_SECONDS = 3.0, 5.0, 120.0
MAX_REASON = 200  # characters
_EXAMPLE = "http://HOST:8000, https://USER:PASSWORD@HOST/?tenant=T&database=D"

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class IndexSyncReport:
    """Result of a synchronisation: visited collections, added and removed entries."""

    collections: int
    added: int
    removed: int


class ChromaIndex:
    """The vector index on the server at `url`, which other services may use too, or else in a
    directory.

    Connects at the first use; a service starts with `open_or_rebuild`. Every method raises
    StoreAway if a server does not respond.
    """

    def __init__(
        self, catalog: Catalog, model: str, directory: Path, url: str | None = None
    ) -> None:
        self._catalog = catalog
        self._model = model
        self._server = ServedChroma(url) if url else None
        self._directory = EmbeddedChroma(directory)
        self._chroma: ChromaConnection = self._server or self._directory
        self._collections: dict[tuple[str, bool], Any] = {}  # by name and whether for writing
        self._prefix = ""

    def open_or_rebuild(self) -> IndexSyncReport:
        """Make the index equal to the catalog; an unreadable one is replaced."""
        if self._server is not None:
            self._collections.clear()  # another service may have replaced them
            return self.sync() if self.probe() else self.rebuild()
        try:
            with self._chroma.faults():
                return self.sync() if self.probe() else self.rebuild()
        except UnreadableIndex as error:
            log.warning("vector index cannot be opened, rebuilding it", error=str(error))
            return self.rebuild()

    def check(self) -> None:
        """Raise StoreAway if a server does not answer."""
        if self._server is not None:
            self._server.check()

    def query(
        self, scopes: Sequence[str], vector: Vector, limit: int, access_scope: AccessScope
    ) -> dict[str, float]:
        """The `limit` entries of each scope nearest to a unit vector: passage id -> cosine. Some
        may be of deleted passages."""
        try:
            with self._chroma.faults():
                entries = self._nearest(scopes, vector, limit, access_scope)
        except UnreadableIndex as error:
            log.warning("vector index cannot be read, rebuilding it", error=str(error))
            self.rebuild()
            entries = self._nearest(scopes, vector, limit, access_scope)
        cosines: dict[str, float] = {}
        for entry, cosine in entries.items():
            passage_id = entry.partition(".")[0]
            cosines[passage_id] = max(cosine, cosines.get(passage_id, -1.0))
        return cosines

    def _nearest(
        self,
        scopes: Sequence[str],
        vector: Vector,
        limit: int,
        access_scope: AccessScope,
        writing: bool = False,
    ) -> dict[str, float]:
        """The nearest entries of the scopes, also of deleted passages: entry id -> cosine.

        Queries the collection directly: llama-index's store would also parse a node for each hit,
        which doubles the time.
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
        """Raise StoreAway if a server has lost a collection, instead of finding nothing."""
        if self._server is None:
            return
        with self._catalog.read() as connection:
            stored = embeddings.of_scope(connection, self._model, scope, ALL_ACCESS)
        if stored.ids:
            raise self._server.away(f"it has no collection for {scope}")

    def sync(self, scopes: Iterable[str] | None = None) -> IndexSyncReport:
        """Add the entries that the index lacks, and remove those that the catalog lacks."""
        with self._catalog.read() as connection:
            live = embeddings.hardware_scopes(connection)
        if scopes is None:
            self._drop_unknown(live)
        added = removed = 0
        wanted = live if scopes is None else sorted(set(scopes))
        for done, scope in enumerate(wanted, 1):
            # Entries are listed before passages, so that an entry that another service adds
            # meanwhile is not removed.
            present = self._present(scope)
            with self._catalog.read() as connection:
                vectors = embeddings.of_scope(connection, self._model, scope, ALL_ACCESS)
            with self._chroma.guard, self._served_faults():
                new, gone = self._sync_scope(scope, vectors, present)
            added, removed = added + new, removed + gone
            self._release_graphs(done)
        return IndexSyncReport(len(wanted), added, removed)

    def _present(self, scope: str) -> set[str]:
        """The entries in the collection of a scope."""
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
            # The first query builds the graph of new entries, which a request should not wait for.
            collection.query(query_embeddings=[vectors.matrix[new[0]]], n_results=1, include=[])
        return len(new), len(gone)

    def _drop_unknown(self, live: Sequence[str]) -> None:
        """Delete the collections of former scopes, models and dimensions."""
        keep = {self._name(scope, ALL_ACCESS) for scope in live}
        for name in self._own_collections():
            if name not in keep:
                self._delete(name)

    def _own_collections(self) -> list[str]:
        """The names of the collections of this catalog."""
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
            with suppress(not_found()):  # another service deleted it
                self._chroma.client(writing=True).delete_collection(name)
            for writing in (False, True):
                self._collections.pop((name, writing), None)

    def probe(self) -> bool:
        """Whether every collection can be read and finds one of its passages by the vector. Missing
        entries are no damage: `sync` adds them."""
        with self._catalog.read() as connection:
            scopes = embeddings.hardware_scopes(connection)
        for done, scope in enumerate(scopes, 1):
            with self._catalog.read() as connection:
                vectors = embeddings.of_scope(connection, self._model, scope, ALL_ACCESS)
            try:
                with self._chroma.faults():
                    nearest = self._probe_scope(scope, vectors)
            except UnreadableIndex as error:
                log.warning("vector index cannot be read", scope=scope, error=str(error))
                return False
            if nearest is not None and nearest < 0.99:
                log.warning("vector index lost a passage", scope=scope, nearest=nearest)
                return False
            self._release_graphs(done)
        return True

    def _release_graphs(self, done: int) -> None:
        """Close the client after every OPEN_SCOPES scopes, because it retains every graph it has
        opened."""
        if done % OPEN_SCOPES == 0 and not self._chroma.served:
            self.close()
            return_freed_memory()

    def _probe_scope(self, scope: str, vectors: ScopeVectors) -> float | None:
        """The cosine at which a collection finds one of its entries; None for an empty one."""
        with self._chroma.guard:
            collection = self._existing(scope, ALL_ACCESS, writing=True)
            if collection is None or not vectors.ids:
                return None
            entries = _entries(vectors, PROBED)
            present = set(collection.get(ids=entries, include=[])["ids"])
        for entry, vector in zip(entries, vectors.matrix, strict=False):
            if entry in present:
                scores = self._nearest([scope], vector, 5, ALL_ACCESS, writing=True)
                return max(scores.values(), default=0.0)
        return None

    def rebuild(self) -> IndexSyncReport:
        """Replace the index by one made from the catalog's vectors."""
        with self._chroma.guard:
            self._collections.clear()
            if self._chroma.served:
                for name in self._own_collections():
                    self._delete(name)
            else:
                self._directory.discard()
        return self.sync()

    def close(self) -> None:
        """Close the index; the next use opens it again."""
        with self._chroma.guard:
            self._collections.clear()
            self._chroma.disconnect()

    def _served_faults(self) -> AbstractContextManager[None]:
        """Convert errors of a server. Callers handle those of a directory."""
        return self._chroma.faults() if self._chroma.served else nullcontext()

    def _own_prefix(self) -> str:
        """Prefix of the names of this catalog's collections on a server, "" in a directory."""
        if self._chroma.served and not self._prefix:
            self._prefix = f"{self._catalog.store_id()}-"
        return self._prefix

    def _name(self, scope: str, access_scope: AccessScope) -> str:
        """The name of a collection: a readable part and a hash of scope, model and owner."""
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
    """The entry ids of the (first `most`) passages, in order."""
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
    # llama-index takes seconds to import, which a start without new entries avoids.
    from llama_index.core.schema import BaseNode, TextNode
    from llama_index.vector_stores.chroma import ChromaVectorStore

    nodes: list[BaseNode] = [
        TextNode(
            id_=entries[n],
            text=vectors.ids[n],  # the text is in the catalog
            embedding=vectors.matrix[n].tolist(),
            metadata={"hardware": scope},
        )
        for n in places
    ]
    ChromaVectorStore(chroma_collection=collection).add(nodes)


class UnreadableIndex(Exception):
    """The index is damaged."""


class ChromaConnection(ABC):
    """A connection to Chroma. `guard` must be held during every use of a client."""

    served: bool
    guard: AbstractContextManager[Any]

    @abstractmethod
    def client(self, writing: bool = False) -> Any:
        """Chroma's client, connected at the first call."""

    @abstractmethod
    def faults(self) -> AbstractContextManager[None]:
        """Turns what Chroma raises into Unreadable or StoreAway."""

    @abstractmethod
    def disconnect(self) -> None:
        """Disconnect; the next use connects again."""


class EmbeddedChroma(ChromaConnection):
    """Chroma in this process."""

    served = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._connected: Any = None
        # The embedded client does not support deleting a collection during a query.
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
        # A missing table or an incomplete start can raise any of these.
        except (ChromaError, AttributeError, KeyError, ValueError, OSError, RuntimeError) as error:
            raise UnreadableIndex(f"{type(error).__name__}: {error}") from error
        except BaseException as error:
            # A panic of Chroma's Rust code is no Exception, and its class cannot be imported.
            if type(error).__name__ != "PanicException":
                raise
            raise UnreadableIndex(f"panic: {error}") from error

    def disconnect(self) -> None:
        from chromadb.api.shared_system_client import SharedSystemClient

        if self._connected is not None:
            self._connected.close()
            self._connected = None
        # Chroma would return a client that failed to start again from its cache.
        SharedSystemClient.clear_system_cache()

    def discard(self) -> None:
        """Delete the directory. It is renamed first, so that open files cannot affect a new one."""
        self.disconnect()
        if self._folder.exists():
            broken = self._folder.with_name(f"{self._folder.name}.{new_id('old')}")
            self._folder.rename(broken)
            shutil.rmtree(broken, ignore_errors=True)


@dataclass(frozen=True)
class ChromaAddress:
    """The address of a server. `name` is for messages, without a password."""

    name: str
    host: str
    port: int
    ssl: bool
    tenant: str | None
    database: str | None
    headers: dict[str, str] = field(repr=False)


def parse_address(url: str) -> ChromaAddress:
    """The address in a URL. Raises InvalidRequest, which does not quote the URL: it may contain a
    password."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        raise _invalid_url("cannot be parsed") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _invalid_url("has no host")
    if parts.path not in ("", "/") or options.keys() - {"tenant", "database"}:
        raise _invalid_url("has a path or unknown parameters")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    ssl = parts.scheme == "https"
    port = port or (443 if ssl else PORT)
    return ChromaAddress(
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


def _invalid_url(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"the URL of the Chroma server {reason}",
        hint=f"Give KERNLORE_CHROMA_URL as one of: {_EXAMPLE}. Characters such as @ and / in a"
        " password are written as %40 and %2F.",
    )


class ServedChroma(ChromaConnection):
    """Chroma on a server. Clients for reading and for writing have different timeouts."""

    served = True

    def __init__(self, url: str) -> None:
        """Does not connect yet. Raises InvalidRequest for a malformed URL."""
        self.address = parse_address(url)
        self._connected: dict[bool, Any] = {}
        self._connecting = threading.Lock()  # protects _connected
        self.guard = nullcontext()  # its clients are thread-safe

    def client(self, writing: bool = False) -> Any:
        with self._connecting:
            if writing not in self._connected:
                self._connected[writing] = self._connect(WRITE_SECONDS if writing else READ_SECONDS)
            return self._connected[writing]

    def check(self) -> None:
        """Raise StoreAway if the server does not answer."""
        with self.faults():
            self.client().heartbeat()

    def _connect(self, seconds: float) -> Any:
        from chromadb.api.client import Client

        address = self.address
        limits = httpx.Timeout(seconds, connect=CONNECT_SECONDS)

        class Limited(Client):
            """Chroma's HTTP client, which has no setting for timeouts. This method makes the first
            request of a new one."""

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
        # The client raises ValueError if it cannot connect.
        except (ChromaError, httpx.HTTPError, ValueError, OSError) as error:
            raise self.away(f"{type(error).__name__}: {error}") from error
        except Exception as error:
            # It raises a bare Exception for an unexpected response, such as that of a proxy.
            if type(error) is not Exception:
                raise
            raise self.away(str(error)) from error

    def away(self, reason: str) -> StoreAway:
        """The error for a server that does not respond."""
        shown = " ".join(reason.split())[:MAX_REASON]
        return StoreAway(
            f"the Chroma server {self.address.name} does not answer ({shown})",
            hint="Start it, or correct KERNLORE_CHROMA_URL; without that the index is in the data"
            " directory. The index is updated when the server answers again.",
        )

    def disconnect(self) -> None:
        with self._connecting:
            for client in self._connected.values():
                _close(client)
            self._connected.clear()


def _close(client: Any) -> None:
    """Close an HTTP client and the connections of its two parts, which `close` leaves open."""
    for part in (client, client._admin_client):
        part._server._session.close()
    client.close()


def not_found() -> type[Exception]:
    """The exception that Chroma raises for a missing collection."""
    from chromadb.errors import NotFoundError

    return NotFoundError


def _settings() -> Any:
    from chromadb.config import Settings

    return Settings(anonymized_telemetry=False)
