"""The tools over standard input and output, for a coding agent that starts this process."""

from __future__ import annotations

import os
import signal

import anyio

from api.mcp.routes import Open, Opening, Routes
from api.mcp.server import build


def serve(opened: Open) -> None:
    """Serve until standard input ends. The client of the routes is opened in the background."""
    anyio.run(_serve, opened)


async def _serve(opened: Open) -> None:
    opening = Opening()
    server = build(Routes(opening.client))
    async with anyio.create_task_group() as group:
        group.start_soon(opening.hold, opened)
        group.start_soon(_end_on_sigterm, opening)
        await server.run_stdio_async()
        group.cancel_scope.cancel()


async def _end_on_sigterm(opening: Opening) -> None:
    """On SIGTERM, end runs and other children, then the process, which the thread that reads
    standard input would otherwise keep alive.
    """
    with anyio.open_signal_receiver(signal.SIGTERM) as received:
        async for _ in received:
            await opening.close()
            os._exit(0)
