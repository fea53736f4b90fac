"""The tools at /mcp of the service, where the SDK is loaded at the first request for them, and over
standard input and output.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio
import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kb.errors import Unavailable
from kb.settings import Settings

if TYPE_CHECKING:
    import httpx

    from api.mcp.routes import Open, Opening

PATH = "/mcp"

log = structlog.get_logger(__name__)


def check_installed() -> None:
    """Raise Unavailable where the extra is missing."""
    if find_spec("mcp") is None:
        raise Unavailable(
            "the tools for coding agents are not installed",
            hint="Install the extra: pip install 'kernlore[mcp]'.",
        )


class Mounted:
    """The ASGI application at `PATH`. Host names and origins are checked before."""

    def __init__(self) -> None:
        self._app: asyncio.Future[ASGIApp] | None = None  # None while the service does not run
        self._requested = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises Unavailable where the extra is missing."""
        if self._app is None:
            check_installed()
            raise Unavailable("the service is starting or ending", hint="Repeat the request.")
        if scope["method"] == "GET":
            # The SDK would open an endless stream, on which a service without sessions sends
            # nothing. The protocol defines 405 for this; clients then work without the stream.
            await Response(status_code=405, headers={"allow": "POST"})(scope, receive, send)
            return
        self._requested.set()
        app = await asyncio.shield(self._app)  # continues for other callers if one cancels
        await app(scope, receive, send)

    @asynccontextmanager
    async def open(self, app: ASGIApp, settings: Settings) -> AsyncIterator[None]:
        """Serve the routes of the application as tools, within its lifespan."""
        if find_spec("mcp") is None:
            yield
            return
        self._app, ending = asyncio.get_running_loop().create_future(), asyncio.Event()
        self._requested.clear()
        serving = asyncio.create_task(self._serve(self._app, app, settings, ending))
        try:
            yield
        finally:
            self._app = None
            ending.set()
            self._requested.set()
            await serving

    async def _serve(
        self,
        opened: asyncio.Future[ASGIApp],
        app: ASGIApp,
        settings: Settings,
        ending: asyncio.Event,
    ) -> None:
        """Open the tools at the first request for them; loading the SDK takes a second."""
        await self._requested.wait()
        if ending.is_set():
            opened.cancel()
            return
        try:
            await asyncio.to_thread(import_module, "api.mcp.server")
            from mcp.server.transport_security import TransportSecuritySettings

            from api.mcp.routes import Routes, client_of
            from api.mcp.server import build

            async with client_of(app) as client:

                async def ready() -> httpx.AsyncClient:
                    return client

                server = await asyncio.to_thread(build, Routes(ready))
                # Without sessions, clients survive a restart of the service. The middleware of the
                # service checks names and origins.
                server.streamable_http_app(
                    stateless_http=True,
                    json_response=True,
                    max_request_body_size=settings.max_body_bytes,
                    transport_security=TransportSecuritySettings(
                        enable_dns_rebinding_protection=False
                    ),
                )
                async with server.session_manager.run():
                    opened.set_result(server.session_manager.asgi_app)
                    await ending.wait()
        except Exception as error:  # reported to every caller until the service restarts
            log.exception("the tools cannot be opened")
            if not opened.done():
                opened.set_exception(
                    Unavailable(
                        f"the tools for agents cannot be opened: {type(error).__name__}",
                        hint="The log has the reason; correct it and restart the service.",
                    )
                )


# -- over standard input and output, for a coding agent that starts this process


def serve(opened: Open) -> None:
    """Serve until standard input ends. The client of the routes is opened in the background."""
    anyio.run(_serve, opened)


async def _serve(opened: Open) -> None:
    from api.mcp.routes import Opening, Routes
    from api.mcp.server import build

    opening = Opening()
    server = build(Routes(opening.client))
    async with anyio.create_task_group() as group:
        group.start_soon(opening.hold, opened)
        group.start_soon(_end_on_sigterm, opening)
        await server.run_stdio_async()
        group.cancel_scope.cancel()


async def _end_on_sigterm(opening: Opening) -> None:
    """On SIGTERM, end runs and other children, then the process, which the thread that reads
    standard input would otherwise keep alive."""
    with anyio.open_signal_receiver(signal.SIGTERM) as received:
        async for _ in received:
            await opening.close()
            os._exit(0)
