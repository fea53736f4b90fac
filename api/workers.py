"""Worker processes of a service, which answer retrievals in parallel.

All processes accept connections of one socket. On Linux a worker is forked from
the service before the service starts threads, so that both share the memory of imports and tables.
A worker answers `/retrieve` from the snapshot that it maps, like the service, and forwards other
requests to the service over a socket in the data directory. The service replaces workers that end
by new processes, and stops them when it stops.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import io
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import structlog

from api.http.authorisation import CLIENT_HEADER, WORKER_PATHS
from api.http.errors import respond
from kb.errors import InvalidRequest, Unavailable
from kb.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Receive, Scope, Send

SOCKET = "service.sock"
NAME = "kernlore-worker"  # of a forked process, at most 15 bytes
_PR_SET_NAME = 15
RESTART_SECONDS = 1.0  # between the end of a worker and its restart
ORPHAN_SECONDS = 1.0  # for the answers of a worker whose service was killed
log = structlog.get_logger(__name__)


def socket_path(settings: Settings) -> Path:
    """The socket for forwarded requests. Its path may have at most 107 bytes."""
    return settings.data_dir.absolute() / SOCKET


def listen_for_workers(settings: Settings) -> socket.socket:
    """Listen for forwarded requests. Raises InvalidRequest if the socket's path is too long."""
    path = socket_path(settings)
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
    except OSError as error:
        listening.close()
        raise InvalidRequest(
            f"several processes cannot share {path}: {error}",
            hint="The path of a socket has at most 107 bytes: use a shorter --data-dir, or leave"
            " --workers out.",
        ) from error
    path.chmod(0o600)
    listening.listen(2048)
    return listening


class _Forked:
    """A forked worker, with the part of the interface of `subprocess.Popen` that `Workers` uses."""

    def __init__(self, pid: int, stdin: IO[bytes]) -> None:
        self.pid, self.stdin, self.returncode = pid, stdin, 0
        self._ended = False

    def poll(self) -> int | None:
        """The exit status of the process, or None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> None:
        """Wait for the end of the process."""
        self._wait(0)

    def _wait(self, options: int) -> int | None:
        if not self._ended:
            pid, status = os.waitpid(self.pid, options)
            if not pid:
                return None
            self._ended, self.returncode = True, os.waitstatus_to_exitcode(status)
        return self.returncode

    def terminate(self) -> None:
        """Ask the process to end."""
        if not self._ended:
            os.kill(self.pid, signal.SIGTERM)


class Workers:
    """The worker processes of a service between `start` and `stop`."""

    def __init__(self, settings: Settings, listening: socket.socket) -> None:
        self._settings = settings
        self._listening = listening
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"worker {n}", daemon=True)
            for n in range(1, settings.workers)
        ]
        self._complete: Callable[[], bool] = lambda: True
        self._forked: list[_Forked] = []

    def fork(self, close: Callable[[], None]) -> None:
        """Fork the workers, which wait for `start`. No other thread may run. `close` closes in a
        worker what belongs to the service alone."""
        import onnxruntime  # noqa: F401

        from kb.embedding import open_embedder
        from kb.prompt_tokens import count_tokens

        count_tokens("")  # reads the table
        open_embedder(self._settings.embedder, self._settings.models_dir).count_tokens("")
        gc.collect()
        gc.freeze()  # a collection would copy the pages of all objects
        for _ in self._threads:
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(writing)
                for other in self._forked:
                    other.stdin.close()
                _run_forked(reading, self._listening, close)
            os.close(reading)
            self._forked.append(_Forked(pid, os.fdopen(writing, "wb")))

    def start(self, complete: Callable[[], bool]) -> None:
        """Start the workers in the background, once `complete` returns true: the service answers
        with all its knowledge."""
        self._complete = complete
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the workers after their current requests."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._complete() and not self._stop.wait(0.1):
            pass
        while True:
            process = self._forked.pop() if self._forked else self._started()
            assert process.stdin is not None
            # The worker reads the pipe to its end, which is the end of the service.
            with suppress(BrokenPipeError):  # a worker that was killed at its start
                process.stdin.write(self._settings.model_dump_json().encode() + b"\n")
                process.stdin.flush()
            while process.poll() is None and not self._stop.wait(0.1):
                pass
            if self._stop.is_set():
                process.terminate()
                process.wait()
                return
            log.error("a worker has ended and is restarted", status=process.returncode)
            if self._stop.wait(RESTART_SECONDS):
                return

    def _started(self) -> subprocess.Popen[bytes]:
        descriptor = self._listening.fileno()
        return subprocess.Popen(
            [sys.executable, "-m", "api.workers", str(descriptor)],
            stdin=subprocess.PIPE,
            pass_fds=(descriptor,),
        )


def _run_forked(reading: int, listening: socket.socket, close: Callable[[], None]) -> NoReturn:
    """Run a worker in this forked process, which gets its settings from `reading`."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service ends its workers
        close()
        os.dup2(reading, 0)
        os.close(reading)
        sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb", closefd=False))
        ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME.encode())
        _main(os.dup(listening.fileno()))
        status = 0
    except BaseException:  # the end of the process: its stack is that of the service
        log.exception("a worker has failed")
    finally:
        os._exit(status)


_SERVICE_GONE = Unavailable(
    "the service has ended or is being restarted", hint="Send the request again in a second."
)


class Forward:
    """ASGI application that forwards requests to the service of the data directory."""

    def __init__(self, settings: Settings) -> None:
        import httpx

        # Connections have no limit, because each is held as long as its client sends a body.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        transport = httpx.AsyncHTTPTransport(uds=str(socket_path(settings)), limits=limits)
        self._client = httpx.AsyncClient(transport=transport, timeout=None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        import httpx

        async def body() -> AsyncIterator[bytes]:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
                yield message.get("body", b"")
                if not message.get("more_body"):
                    return

        host, port = scope.get("client") or ("unknown", 0)
        headers = [pair for pair in scope["headers"] if pair[0] != CLIENT_HEADER]
        headers.append((CLIENT_HEADER, f"{host}:{port}".encode()))
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)
        url = httpx.URL(scheme="http", host="service", raw_path=_raw_path(scope))
        request = self._client.build_request(
            scope["method"], url, headers=headers, content=body() if has_body else None
        )
        try:
            answer = await self._client.send(request, stream=True)
        except httpx.TransportError:
            await respond(_SERVICE_GONE, {"Retry-After": "1"})(scope, receive, send)
            return
        try:
            raw = [(n.lower(), v) for n, v in answer.headers.raw if n.lower() != b"connection"]
            start = {"type": "http.response.start", "status": answer.status_code, "headers": raw}
            await send(start)
            async for chunk in answer.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await answer.aclose()


def _raw_path(scope: Scope) -> bytes:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return path + b"?" + query if query else path


class OwnPaths:
    """The application of a worker: `own` for `WORKER_PATHS`, `others` for the rest."""

    def __init__(self, own: ASGIApp, others: ASGIApp) -> None:
        self._own, self._others = own, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        own = scope["type"] != "http" or scope["path"] in WORKER_PATHS
        await (self._own if own else self._others)(scope, receive, send)


@asynccontextmanager
async def worker_lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Opens what answers need, and follows the catalog."""
    from api.app import exchange_counts, flush_uses
    from api.http.admission import Admission
    from api.services import Follower, open_services

    settings: Settings = app.state.settings
    services = open_services(settings)
    services.metrics = app.state.metrics
    app.state.services = services
    app.state.admission = Admission(settings)
    periodic = [asyncio.create_task(flush_uses(services))]
    periodic.append(asyncio.create_task(exchange_counts(services, app.state.limits)))
    services.embedder.prepare()
    services.retriever.warm(settings.models_dir, settings.knowledge_dir)
    follower = Follower(services)
    follower.start()
    try:
        yield
    finally:
        for task in periodic:
            task.cancel()
        services.keys.flush()
        follower.stop()
        services.close()


def configure_logs(level: str) -> None:
    """Log one JSON object a line on standard error, from `level` up, with the request's id."""
    import structlog

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _main(descriptor: int) -> None:
    given = sys.stdin.buffer.readline()
    if not given:  # the service has ended before it was complete
        return
    settings = Settings.model_validate_json(given)
    servers: list[Any] = []  # the imports below take seconds on a busy machine
    threading.Thread(target=_end_with_the_service, args=(servers,), daemon=True).start()
    import uvicorn

    from api.app import create_app
    from api.http.bodies import BodyDeadline

    configure_logs(settings.log_level)
    listening = socket.socket(fileno=descriptor)
    others = BodyDeadline(Forward(settings), settings.body_seconds)
    app = OwnPaths(create_app(settings, lifespan=worker_lifespan), others)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, timeout_graceful_shutdown=10, lifespan="on"
    )
    server = uvicorn.Server(config)
    servers.append(server)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service ends its workers
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listening])


def _end_with_the_service(servers: list[Any]) -> None:
    """End with a service that was killed, at the latest ORPHAN_SECONDS after it or the imports of
    this module: the next service needs the port on which this process listens."""
    sys.stdin.buffer.read()
    for server in servers:
        server.should_exit = True
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _main(int(sys.argv[1]))
