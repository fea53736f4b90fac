"""How Chroma is reached: in this process, over a directory that nobody else opens, or on a server.
The only module that imports chromadb.

A directory that cannot be read raises Unreadable: it is derived data, and made again. A server that
does not answer raises StoreAway: it may be back in a moment, with what it had.
"""

from __future__ import annotations

import base64
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import httpx

from kb.errors import InvalidRequest, KernloreError, StoreAway
from kb.ids import new_id
from kb.private import private_folder

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
