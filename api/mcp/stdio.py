"""The tools over standard input and output, for a coding agent that starts this process."""

from __future__ import annotations

import signal
import sys

import anyio

from api.mcp.routes import HttpRoutes, Open, Opening
from api.mcp.server import build


def serve(opened: Open) -> None:
    """Answer until standard input ends. `opened` gives the routes; they are opened meanwhile."""
    # So that what was started here, such as runs, is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    anyio.run(_serve, opened)


async def _serve(opened: Open) -> None:
    opening = Opening()
    server = build(HttpRoutes(opening.client))
    async with anyio.create_task_group() as group:
        group.start_soon(opening.hold, opened)
        await server.run_stdio_async()
        group.cancel_scope.cancel()
