"""`kernlore mcp`: tools for a coding agent, over standard input and output."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from api.cli.backends import read_settings, send_logs_to_stderr, service_at
from api.cli.options import DataDir, Url
from api.cli.output import note

if TYPE_CHECKING:
    import httpx
    from fastapi import FastAPI

    from api.cli.backends.local import LocalTarget
    from kb.settings import Settings


def mcp(url: Url = None, data_dir: DataDir = None) -> int:
    """Answer a coding agent through MCP tools. The agent starts this command and speaks to it over
    standard input and output; a running service has the same tools at /mcp. Where the service
    has keys, KERNLORE_KEY holds one."""
    from api.mcp.mounted import check_installed

    check_installed()
    where = service_at(data_dir, url)
    send_logs_to_stderr("warning")
    if sys.stdin.isatty():
        note("this speaks MCP with the agent that starts it; Ctrl-D ends it. See docs/agents.md")
    from api.mcp.routes import client_at
    from api.mcp.stdio import serve

    serve(partial(client_at, where) if where else partial(_here, read_settings(data_dir)))
    return 0


@asynccontextmanager
async def _here(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """The routes in this process over a data directory, where no service runs."""
    import anyio

    from api.cli.backends.local import LocalTarget
    from api.mcp.routes import client_of

    # Nothing listens, so nobody but the agent of this process can ask.
    local = LocalTarget(settings.model_copy(update={"host": "127.0.0.1"}))
    try:
        app = await anyio.to_thread.run_sync(_application, local)
        async with app.router.lifespan_context(app), client_of(app) as client:
            yield client
    finally:
        local.close()


def _application(local: LocalTarget) -> FastAPI:
    from api.app import create_app

    if not local.services.documents.find():
        local.load_knowledge(note)
    return create_app(local.settings, local.services)
