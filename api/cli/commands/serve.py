"""`kernlore serve` and `kernlore mcp`: the HTTP service, and the tools of a coding agent.

A service has one port, one data directory, and one process or several. The port and the directory
are claimed before anything heavy is loaded, so that a mistake is reported at once; requests that
arrive while the application loads wait in the socket's queue.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from api.cli.command import DataDir, Url, command
from api.cli.output import note
from api.cli.target import CommandTarget, read_settings, send_logs_to_stderr, service_at
from kb.addresses import from_elsewhere, from_here, is_loopback
from kb.data_dir import access_of_others, private_files
from kb.errors import Conflict
from kb.plain import Doc

if TYPE_CHECKING:
    import httpx
    from fastapi import FastAPI

    from api.services import Services
    from api.workers import Workers
    from kb.data_dir import ServiceLock
    from kb.settings import Settings

QUEUE = 2048
WITH_KEYS = (
    "Warning: it listens on {host}, and keys are sent unencrypted: on a shared network, put it"
    " behind a proxy with TLS."
)
WITHOUT_KEYS = (
    "Warning: it listens on {host} and needs no key: everyone who reaches this machine can read and"
    " change everything in it. Put it behind a proxy that checks who its users are."
)
LOG_EXAMPLE = (
    '{"hardware": "h100", "log": "ptxas error : Entry function uses too much shared data'
    ' (0x41000 bytes, 0x38c00 max)"}'
)


@command()
def serve(
    host: Annotated[str | None, Doc("Address to listen on. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, Doc("Port to listen on. Default: 8321.")] = None,
    allowed_host: Annotated[
        list[str] | None,
        Doc("Further host name of the service, such as that of a proxy; repeat for each."),
    ] = None,
    workers: Annotated[
        int | None, Doc("Processes that answer retrievals, one for each processor. Default: 1.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run the HTTP service, which also reads uploads. Ctrl-C stops it."""
    from api.workers import configure_logs
    from kb.data_dir import ServiceLock
    from kb.settings import unknown_settings

    names = ",".join(allowed_host) if allowed_host else None
    settings = read_settings(data_dir, host=host, port=port, allowed_hosts=names, workers=workers)
    for unknown in unknown_settings(os.environ):
        note(f"Warning: {unknown}")
    send_logs_to_stderr(settings.log_level)  # checks the level
    configure_logs(settings.log_level)
    with _listen(settings.host, settings.port) as listening:
        own_url = f"http://{from_here(settings.host)}:{settings.port}"
        with (
            private_files(),
            ServiceLock(settings.data_dir, own_url) as lock,
            ThreadPoolExecutor(1) as pool,
        ):
            checked = pool.submit(_check, settings)  # while the application is imported
            if settings.workers == 1:
                pool.submit(_load_model, settings)
                _run_service(settings, [listening], checked)
            else:
                checked.result()
                pool.shutdown()  # its thread ends before the workers are forked
                _run_workers(settings, listening, checked, lock)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises Conflict where another program has the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(QUEUE)
    except OSError as error:
        listening.close()
        raise Conflict(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            hint="Another program has the port, perhaps Kernlore. Stop it, or give another --port.",
            details={"host": host, "port": port},
        ) from error
    return listening


def _check(settings: Settings) -> bool:
    """Whether it has keys. Raises StoreError for a damaged catalog, and InvalidKnowledge without
    built-in knowledge or skills."""
    from api.prepared import copy_prepared
    from ingestion.builtin import check_knowledge_folder
    from kb.catalog import open_catalog
    from kb.catalog.keys import Keys
    from skills.importing import shipped_folders

    check_knowledge_folder(settings.knowledge_dir)
    shipped_folders(settings.skills_dir)
    copy_prepared(settings)
    catalog = open_catalog(settings.data_dir, settings.catalog)
    try:
        catalog.check()
        return Keys(catalog).any()
    finally:
        catalog.close()


def _load_model(settings: Settings) -> None:
    """Load the query model if it exists. An error is raised again, and reported, at its use."""
    from kb.embedding import open_embedder

    embedder = open_embedder(settings.embedder, settings.models_dir)
    if embedder.onnx_file.exists():
        embedder.wait()


def _greeting(address: str, data_dir: Path, keys: bool) -> str:
    """The address, who may use the service, and three commands to try."""
    header = ' -H "authorization: Bearer $KERNLORE_KEY"' if keys else ""
    who = (
        "Every request needs a key: commands and the client take it from KERNLORE_KEY."
        if keys
        else "It has no keys, so everyone who reaches it may do everything; `kernlore keys create`"
        " makes the first."
    )
    return "\n".join(
        [
            f"Kernlore serves http://{address} from {data_dir.absolute()}.",
            who,
            "The built-in knowledge is read in the background, and answers grow with it;"
            " GET /readyz shows the progress.",
            "Try:",
            f"curl{header} '{address}/retrieve?signal=memory_bound'",
            f"curl{header} '{address}/retrieve?signal=memory_bound&hardware=h100'",
            f"curl{header} {address}/retrieve -H 'content-type: application/json'"
            f" -d '{LOG_EXAMPLE}'",
        ]
    )


def _greet(settings: Settings, keys: bool) -> None:
    address = f"{from_elsewhere(settings.host)}:{settings.port}"
    print(_greeting(address, settings.data_dir, keys), flush=True)
    if (wide := access_of_others(settings.data_dir)) is not None:
        note(f"Warning: {wide}.")
    if not is_loopback(settings.host):
        warning = WITH_KEYS if keys else WITHOUT_KEYS
        note(warning.format(host=settings.host or "every address"))


def _run_workers(
    settings: Settings, listening: socket.socket, checked: Future[bool], lock: ServiceLock
) -> None:
    from api.workers import Workers, listen_for_workers

    forwarded = listen_for_workers(settings)

    def close() -> None:
        forwarded.close()
        lock.close()

    with tempfile.TemporaryDirectory(prefix="kernlore-counts-") as counts:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = counts  # read when the application is imported
        workers = Workers(settings, listening)
        _run_service(settings, [listening, forwarded], checked, workers, close)


def _run_service(
    settings: Settings,
    sockets: list[socket.socket],
    checked: Future[bool],
    workers: Workers | None = None,
    close: Callable[[], None] = lambda: None,
) -> None:
    """Run the service. Raises the error of the check, which returns whether there are keys. `close`
    closes in a forked process what belongs to the service alone."""
    import uvicorn

    from api.app import create_app

    # uvicorn hands a caught signal on when it has shut down; being stopped is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    app = create_app(settings)
    _greet(settings, checked.result())
    config = uvicorn.Config(
        app,
        log_config=None,  # its own would write the access log to standard output
        access_log=settings.log_level == "debug",
        timeout_graceful_shutdown=10,
    )

    def complete() -> bool:
        services: Services | None = app.state.services  # None until the application has started
        return services is not None and services.knowledge_loaded

    if workers is not None and sys.platform == "linux":  # elsewhere, libraries may not be forked
        workers.fork(close)
    try:
        if workers is not None:
            workers.start(complete)
        uvicorn.Server(config).run(sockets=sockets)
    except KeyboardInterrupt:
        note("stopped")
    finally:
        if workers is not None:
            workers.stop()


# -- tools of a coding agent


@command()
def mcp(url: Url = None, data_dir: DataDir = None) -> int:
    """Answer a coding agent through MCP tools. The agent starts this command and speaks to it over
    standard input and output; a running service has the same tools at /mcp. Where the service
    has keys, KERNLORE_KEY holds one."""
    from api.mcp.mounted import check_installed

    check_installed()
    service = service_at(data_dir, url)
    send_logs_to_stderr("warning")
    if sys.stdin.isatty():
        note("this speaks MCP with the agent that starts it; Ctrl-D ends it. See docs/agents.md")
    from api.mcp.mounted import serve
    from api.mcp.routes import client_at

    serve(partial(client_at, service) if service else partial(_in_process, read_settings(data_dir)))
    return 0


@asynccontextmanager
async def _in_process(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the routes in this process, over a data directory without a running service."""
    import anyio

    from api.mcp.routes import client_of

    # Nothing listens, so only the agent of this process can send requests.
    local = CommandTarget(settings.model_copy(update={"host": "127.0.0.1"}))
    try:
        app = await anyio.to_thread.run_sync(_application, local)
        async with app.router.lifespan_context(app), client_of(app) as client:
            yield client
    finally:
        local.close()


def _application(local: CommandTarget) -> FastAPI:
    from api.app import create_app

    if not local.services.documents.find(limit=1):
        local.load_knowledge(note)
    return create_app(local.settings, local.services)
