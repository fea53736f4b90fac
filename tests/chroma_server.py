"""A real Chroma server for the tests, started by `chroma run`. One per process, with a separate
database for each user. Its data survives a kill. With KERNLORE_TEST_CHROMA=server every vector
index is on it (`make test-stores`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from tests.one_server import LoopbackServer, OneServer, Unstartable
from tests.ports import free_ports

EVERYWHERE = os.environ.get("KERNLORE_TEST_CHROMA", "") == "server"
# The program of `chroma`, without three seconds of imports.
_RUN = "import sys, chromadb_rust_bindings as chroma; chroma.cli(['chroma', *sys.argv[1:]])"


class ChromaServer(LoopbackServer):
    """`url` is that of its first database."""

    name = "the Chroma server"

    def __init__(self) -> None:
        super().__init__("kl-chroma-")
        self.port = free_ports(1)[0]
        self._databases: dict[Path, str] = {}
        try:
            self.start()
        except Unstartable:
            self.remove()
            raise

    def command(self) -> list[str]:
        place = ["--path", str(self.folder / "data"), "--port", str(self.port)]
        return [sys.executable, "-c", _RUN, "run", "--host", "127.0.0.1", *place]

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/v2/heartbeat", timeout=2).is_success
        except httpx.HTTPError:
            return False

    def database(self, base: str | None = None) -> str:
        """A new database; its URL. `base` is that of a proxy in front of the server."""
        name = f"t{uuid4().hex}"
        httpx.post(self._databases_route, json={"name": name}, timeout=10).raise_for_status()
        return f"{base or self.url}/?database={name}"

    def of_directory(self, data_dir: Path) -> str:
        """The URL of the database of a data directory, created if missing."""
        place = data_dir.absolute()
        if place not in self._databases:
            self._databases[place] = self.database()
        return self._databases[place]

    def collections(self, url: str) -> list[str]:
        """The names of the collections in a database of `database`."""
        return sorted(collection["name"] for collection in self._listed(url))

    def entries(self, url: str) -> int:
        """The number of entries of the collections in a database of `database`."""
        route = self._route(url)
        counts = (
            httpx.get(f"{route}/{collection['id']}/count", timeout=10).raise_for_status().json()
            for collection in self._listed(url)
        )
        return sum(map(int, counts))

    def empty(self, url: str) -> None:
        """Remove the collections in a database of `database`."""
        for name in self.collections(url):
            httpx.delete(f"{self._route(url)}/{name}", timeout=10).raise_for_status()

    def _listed(self, url: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = (
            httpx.get(self._route(url), timeout=10).raise_for_status().json()
        )
        return listed

    def _route(self, url: str) -> str:
        """The route of the collections in a database of `database`."""
        return f"{self._databases_route}/{url.rpartition('=')[2]}/collections"

    @property
    def _databases_route(self) -> str:
        return f"{self.url}/api/v2/tenants/default_tenant/databases"


_one = OneServer(ChromaServer)
server, server_or_skip, stop = _one.get, _one.get_or_skip, _one.stop
