"""`kernlore serve`: one port, one data directory, one process or several.

The port and the directory are claimed before anything heavy is loaded, so that a mistake is
reported at once; requests that arrive while the application loads wait in the socket's queue.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.backends import read_settings, send_logs_to_stderr
from api.cli.options import DataDir
from kb.addresses import from_elsewhere, from_here, is_loopback
from kb.data_dir import access_of_others, private_files
from kb.errors import Conflict

if TYPE_CHECKING:
    from api.services import Services
    from api.workers import Workers
    from kb.settings import Settings

QUEUE = 2048
CLOSED = (
    "Warning: it listens on {host}, and keys travel as they are: put a proxy with TLS in front of"
    " it where the network is not yours alone."
)
OPEN = (
    "Warning: it listens on {host}, and nobody is asked for a key: whoever reaches this machine can"
    " read and change everything in it. Put it behind something that asks who is there."
)
LOG_EXAMPLE = (
    '{"hardware": "h100", "log": "ptxas error : Entry function uses too much shared data'
    ' (0x41000 bytes, 0x38c00 max)"}'
)


def serve(
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on. Default: 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Port to listen on. Default: 8321.")
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            help="Further name by which it may be called, such as that of a proxy; repeat for"
            " each.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            help="Processes that answer retrievals, one for each processor. Default: 1.",
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run the HTTP service, which also reads uploads. Ctrl-C stops it."""
    from kb.data_dir import ServiceLock
    from kb.settings import unknown_settings

    names = ",".join(allowed_host) if allowed_host else None
    settings = read_settings(data_dir, host=host, port=port, allowed_hosts=names, workers=workers)
    for unknown in unknown_settings(os.environ):
        print(f"Warning: {unknown}", file=sys.stderr, flush=True)
    send_logs_to_stderr(settings.log_level)  # checks the level
    from api.workers import configure_logs

    configure_logs(settings.log_level)
    with listen(settings.host, settings.port) as listening:
        own_url = f"http://{from_here(settings.host)}:{settings.port}"
        with private_files(), ServiceLock(settings.data_dir, own_url):
            keys = _check(settings)
            address = f"{from_elsewhere(settings.host)}:{settings.port}"
            print(greeting(address, settings.data_dir, keys), flush=True)
            if (wide := access_of_others(settings.data_dir)) is not None:
                print(f"Warning: {wide}.", file=sys.stderr, flush=True)
            if not is_loopback(settings.host):
                where = settings.host or "every address"
                text = CLOSED if keys else OPEN
                print(text.format(host=where), file=sys.stderr, flush=True)
            _run(settings, listening)


def _check(settings: Settings) -> bool:
    """Whether it has keys. Raises StoreError for a damaged catalog, InvalidKnowledge where there is
    no built-in knowledge or no skill, before anything heavy is loaded.
    """
    from ingestion.builtin import check_knowledge_folder
    from kb.catalog import open_catalog
    from kb.catalog.keys import Keys
    from skills.importing import shipped_folders

    check_knowledge_folder(settings.knowledge_dir)
    shipped_folders(settings.skills_dir)
    catalog = open_catalog(settings.data_dir, settings.catalog)
    try:
        catalog.check()
        return Keys(catalog).any()
    finally:
        catalog.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises Conflict where another program has the port."""
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


def greeting(address: str, data_dir: Path, keys: bool) -> str:
    """What the service does and who may use it, then three commands to try."""
    header = ' -H "authorization: Bearer $KERNLORE_KEY"' if keys else ""
    who = (
        "Every request needs a key: commands and the client take it from KERNLORE_KEY."
        if keys
        else "It has no keys, so whoever reaches it may do everything; `kernlore keys create` makes"
        " the first."
    )
    return "\n".join(
        [
            f"Kernlore serves http://{address} from {data_dir.absolute()}.",
            who,
            "The built-in knowledge is read in the background, and answers grow with it;"
            " GET /readyz says how far that is.",
            "Try:",
            f"curl{header} '{address}/retrieve?signal=memory_bound'",
            f"curl{header} '{address}/retrieve?signal=memory_bound&hardware=h100'",
            f"curl{header} {address}/retrieve -H 'content-type: application/json'"
            f" -d '{LOG_EXAMPLE}'",
        ]
    )


def _run(settings: Settings, listening: socket.socket) -> None:
    sockets = [listening]
    if settings.workers == 1:
        _run_service(settings, sockets)
        return
    from api.workers import Workers, listen_for_workers

    with tempfile.TemporaryDirectory(prefix="kernlore-counts-") as counts:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = counts  # read when the application is imported
        _run_service(
            settings, [*sockets, listen_for_workers(settings)], Workers(settings, listening)
        )


def _run_service(
    settings: Settings, sockets: list[socket.socket], workers: Workers | None = None
) -> None:
    import uvicorn

    from api.app import create_app

    # uvicorn hands a caught signal on when it has shut down; being stopped is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        log_config=None,  # its own would write the access log to standard output
        access_log=settings.log_level == "debug",
        timeout_graceful_shutdown=10,
    )

    def complete() -> bool:
        services: Services | None = app.state.services  # None until the application has started
        return services is not None and services.knowledge_loaded

    try:
        if workers is not None:
            workers.start(complete)
        uvicorn.Server(config).run(sockets=sockets)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        if workers is not None:
            workers.stop()
