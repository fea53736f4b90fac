"""The tools over standard input and output, for a coding agent that starts this process."""

from __future__ import annotations

import os
import signal

import anyio

from api.mcp.routes import Open, Opening, Routes
from api.mcp.server import build


def serve(opened: Open) -> None:
    """Answer requests from standard input until it ends. `opened` gives the routes, which are
    opened in the background.
    """
    anyio.run(_serve, opened)


async def _serve(opened: Open) -> None:
    opening = Opening()
    server = build(Routes(opening.client))
    async with anyio.create_task_group() as group:
        group.start_soon(opening.hold, opened)
        group.start_soon(_end_when_told, opening)
        await server.run_stdio_async()
        group.cancel_scope.cancel()


async def _end_when_told(opening: Opening) -> None:
    """On SIGTERM, end what was started here, such as runs, and then the process: the thread that
    waits for standard input would keep it alive.
    """
    with anyio.open_signal_receiver(signal.SIGTERM) as told:
        async for _ in told:
            await opening.close()
            os._exit(0)
