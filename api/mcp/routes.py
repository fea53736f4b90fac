"""How the tools reach the product: through the HTTP routes of a service, or of an application in
this process.

So tools are subject to the same authorisation, size limits and rate limits as every other caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import httpx
from starlette.types import ASGIApp

from kb.errors import KernloreError, Unavailable
from kb.routes import routes
from retrieval.client import key_header

LOOPBACK = "http://127.0.0.1"
SECONDS = 120.0  # for one request; the longest upload megabytes
# Headers that identify the caller; forwarded to the routes, which authorise by them.
FORWARDED = ("host", "authorization", "x-request-id")

Json = Mapping[str, Any]
Open = Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]
caller_headers: ContextVar[Mapping[str, str]] = ContextVar("caller_headers")


class Refusal(KernloreError):
    """An error response of a route."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(str(body["message"]), hint=str(body["hint"]), details=body["details"])
        self.code = str(body["code"])
        self.status = status


class Routes:
    """Carries out operations over HTTP. The client is opened when it is first needed."""

    def __init__(self, client: Callable[[], Awaitable[httpx.AsyncClient]]) -> None:
        self._client = client

    async def call(self, operation: str, **given: Any) -> Any:
        """The JSON output of an operation. Raises KernloreError."""
        return _json(await self._send(operation, given))

    async def download(self, operation: str, **given: Any) -> bytes:
        """The bytes of an operation whose output is a file. Raises KernloreError."""
        answer = await self._send(operation, given)
        return answer.content if answer.is_success else bytes(_json(answer))

    async def _send(self, operation: str, given: Json) -> httpx.Response:
        client = await self._client()
        sent = routes()[operation].request(given)
        try:
            return await client.request(
                sent.method,
                sent.path,
                params=sent.query,
                **({"data": sent.form, "files": sent.files} if sent.files else {"json": sent.body}),
                headers=caller_headers.get({}),
            )
        except httpx.RequestError as error:
            raise Unavailable(
                f"no answer from {client.base_url}: {error or type(error).__name__}",
                hint="Check that the service runs (`kernlore serve`) and that the URL is its own.",
            ) from error


def _json(answer: httpx.Response) -> Any:
    """The JSON body of a response. Raises an error response as KernloreError."""
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
        " JSON of Kernlore",
        hint="Check that the URL is Kernlore's and that both are of one version.",
    )


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
    """A client that is opened in the background, so that the server can list its tools at once:
    coding agents wait only a few seconds for that."""

    def __init__(self) -> None:
        self._settled, self._closed = anyio.Event(), anyio.Event()
        self._held = anyio.CancelScope()
        self._result: httpx.AsyncClient | KernloreError | None = None

    async def client(self) -> httpx.AsyncClient:
        """The client, once it is open. Raises the error of a failed opening."""
        await self._settled.wait()
        if not isinstance(self._result, httpx.AsyncClient):
            raise self._result or Unavailable("it is closed", hint="Start it again.")
        return self._result

    async def hold(self, opened: Open) -> None:
        """Open the client, and keep it open until `close` or a cancellation."""
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
        """Close the client and everything that it opened; returns when that is done."""
        self._held.cancel()
        await self._closed.wait()

    def _settle(self, result: httpx.AsyncClient | KernloreError) -> None:
        self._result = result
        self._settled.set()
