"""The tools at /mcp of the service. What the SDK needs is loaded when the service starts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec

import httpx
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.mcp.routes import HttpRoutes, client_of
from kb.errors import Unavailable
from kb.settings import Settings

PATH = "/mcp"


def check_installed() -> None:
    """Raise Unavailable where the extra is missing."""
    if find_spec("mcp") is None:
        raise Unavailable(
            "the tools for coding agents are not installed",
            hint="Install the extra: pip install 'kernlore[mcp]'.",
        )


class Mounted:
    """The ASGI application at `PATH`. Names and pages that may not call are refused before."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises Unavailable where the extra is missing."""
        if self._app is None:
            check_installed()
            raise Unavailable("the service is starting or ending", hint="Ask again.")
        if scope["method"] == "GET":
            # The SDK would open a stream that never ends. Without sessions the service has nothing
            # to send on it; the protocol's answer for that is 405, and clients go on without.
            await Response(status_code=405, headers={"allow": "POST"})(scope, receive, send)
            return
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def open(self, app: ASGIApp, settings: Settings) -> AsyncIterator[None]:
        """Within the application's lifespan: serve its routes as tools."""
        if find_spec("mcp") is None:
            yield
            return
        from mcp.server.transport_security import TransportSecuritySettings

        from api.mcp.server import build

        async with client_of(app) as client:

            async def ready() -> httpx.AsyncClient:
                return client

            server = build(HttpRoutes(ready))
            # No session is kept, so a restart of the service is not noticed. The middleware of
            # the service has checked names and origins, by its own settings.
            server.streamable_http_app(
                stateless_http=True,
                json_response=True,
                max_request_body_size=settings.max_body_bytes,
                transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            )
            async with server.session_manager.run():
                self._app = server.session_manager.asgi_app
                try:
                    yield
                finally:
                    self._app = None
