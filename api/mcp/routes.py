"""How the tools reach the product: through the routes of the HTTP interface.

So an agent is held to the same rules as any other caller: what it may see, who may have code run
here, how much may be sent, how many may ask at once. The routes are those of a service by its URL,
or of an application in this process; neither is asked which it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Any, Protocol
from urllib.parse import quote

import anyio
import httpx
from starlette.types import ASGIApp

from kb.errors import KernloreError, Unavailable
from retrieval.client import key_header

LOOPBACK = "http://127.0.0.1"
SECONDS = 120.0  # for one request; the longest hand in megabytes
# What of a request to the tools says who asks. It is passed on to the routes, which decide by it.
ASKING = ("host", "authorization", "x-request-id")

Json = Mapping[str, Any]
Open = Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]
asking: ContextVar[Mapping[str, str]] = ContextVar("asking")


class Refusal(KernloreError):
    """An error that a route has answered."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(str(body["message"]), hint=str(body["hint"]), details=body["details"])
        self.code = str(body["code"])
        self.status = status


class Routes(Protocol):
    """The routes of one service."""

    async def get(self, path: str, **parameters: Any) -> Any:
        """The answer to a GET; parameters that are None are left out. Raises KernloreError."""
        ...

    async def post(self, path: str, body: Json) -> Any:
        """The answer to a POST of JSON. Raises KernloreError."""
        ...

    async def download(self, path: str) -> bytes:
        """The bytes that a GET answers. Raises KernloreError."""
        ...


class HttpRoutes:
    """The routes behind an HTTP client, which is opened when it is first needed."""

    def __init__(self, client: Callable[[], Awaitable[httpx.AsyncClient]]) -> None:
        self._client = client

    async def get(self, path: str, **parameters: Any) -> Any:
        """The answer to a GET; parameters that are None are left out. Raises KernloreError."""
        given = {name: value for name, value in parameters.items() if value is not None}
        return _json(await self._send("GET", path, params=given))

    async def post(self, path: str, body: Json) -> Any:
        """The answer to a POST of JSON. Raises KernloreError."""
        return _json(await self._send("POST", path, json=dict(body)))

    async def download(self, path: str) -> bytes:
        """The bytes that a GET answers. Raises KernloreError."""
        answer = await self._send("GET", path)
        return answer.content if answer.is_success else bytes(_json(answer))

    async def _send(self, method: str, path: str, **carried: Any) -> httpx.Response:
        client = await self._client()
        try:
            return await client.request(method, path, headers=asking.get({}), **carried)
        except httpx.RequestError as error:
            raise Unavailable(
                f"no answer from {client.base_url}: {error or type(error).__name__}",
                hint="Check that the service runs (`kernlore serve`) and that the URL is its own.",
            ) from error


def _json(answer: httpx.Response) -> Any:
    """The body of an answer. Raises the error that it is."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    if answer.is_success and body is not None:
        return body
    if isinstance(body, dict) and {"code", "message", "hint", "details"} <= body.keys():
        raise Refusal(answer.status_code, body)
    raise Unavailable(
        f"{answer.request.method} {answer.request.url.path} answered {answer.status_code} without"
        " what Kernlore answers",
        hint="Check that the URL is Kernlore's and that both are of one version.",
    )


def at(*parts: str) -> str:
    """A path whose parts after the first are quoted."""
    first, *rest = parts
    return "/".join([first, *(quote(part, safe="") for part in rest)])


def client_of(app: ASGIApp) -> httpx.AsyncClient:
    """A client of an application in this process."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=LOOPBACK, timeout=SECONDS)


@asynccontextmanager
async def client_at(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service by its URL; it sends the key of the environment, if there is one."""
    # A proxy named in the environment cannot reach this machine's own loopback.
    near = httpx.URL(url).host in ("127.0.0.1", "localhost", "::1")
    client = httpx.AsyncClient(
        base_url=url, headers=key_header(), timeout=SECONDS, trust_env=not near
    )
    async with client:
        yield client


class Opening:
    """A client that is being opened while others are answered already: a coding agent gives a
    server a few seconds to say what it offers.
    """

    def __init__(self) -> None:
        self._settled, self._closed = anyio.Event(), anyio.Event()
        self._held = anyio.CancelScope()
        self._result: httpx.AsyncClient | KernloreError | None = None

    async def client(self) -> httpx.AsyncClient:
        """The client, as soon as it is open. Raises what kept it from opening."""
        await self._settled.wait()
        if not isinstance(self._result, httpx.AsyncClient):
            raise self._result or Unavailable("it is closed", hint="Start it again.")
        return self._result

    async def hold(self, opened: Open) -> None:
        """Open it and keep it open until it is closed, or this is cancelled."""
        try:
            with self._held:
                async with opened() as client:
                    self._settle(client)
                    await anyio.sleep_forever()
        except KernloreError as error:
            self._settle(error)
        finally:
            self._closed.set()

    async def close(self) -> None:
        """Close it, with all that works for it; returns when that is done."""
        self._held.cancel()
        await self._closed.wait()

    def _settle(self, result: httpx.AsyncClient | KernloreError) -> None:
        self._result = result
        self._settled.set()
