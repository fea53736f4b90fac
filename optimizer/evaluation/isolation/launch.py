"""Ways to start processes: a runner in a fresh interpreter, a fork of an interpreter that has its
imports done (`ForkServer`), and forks that call one function (`PreparedProcesses`). Each gives a
`Launched`: a process number, and later an exit code. Also the environment of measuring processes.

A fork takes milliseconds where an interpreter with torch takes seconds. CUDA cannot be used in a
fork of a process that has used it, so an interpreter that is forked from only imports.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

from optimizer.evaluation.isolation.levels import Level, command, level_for
from optimizer.evaluation.isolation.machine import usable_processors
from optimizer.evaluation.runner.confine import can_forbid_writing
from optimizer.evaluation.runner.wire import Wire, WireClosed

RUNNER = str(Path(__file__).resolve().parents[1] / "runner" / "__main__.py")
START_SECONDS = 240.0  # the first start with the compiler waits for several runs of g++
_STATUS = struct.Struct("=ii")

# glibc returns freed arrays to the system if they are at the end of its heap or were mapped singly,
# by chance. A process in which it does pays for every page again in every call: the same code took
# 3.5 times as long. So nothing is returned. https://man7.org/linux/man-pages/man3/mallopt.3.html
STEADY_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
# For torch's compiler on a CPU. Processes that it starts in advance, to compile for GPUs, disturb
# the timing. Precompiling a header in every evaluation takes longer than a candidate's few kernels
# save by it; the fork server compiles it for all (`runner.inductor`).
COMPILER = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
# A candidate on a CPU sees no GPU. Torch's compiler looks for one at import, after which forks
# cannot use it, and then asks it for the state of its random numbers.
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
ON_CPU = {**COMPILER, **NO_GPU}


def threads_and_memory(threads: int) -> dict[str, str]:
    """Environment variables of every measuring process; `threads` is for OpenMP and MKL."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **STEADY_MEMORY}


def compiler_cache() -> str:
    """The folder that caches what g++ built for torch's compiler, for this user's later fork
    servers: about 160 MB among temporary files. Empty if the system cannot forbid candidates to
    write there."""
    if not can_forbid_writing():
        return ""
    return str(Path(tempfile.gettempdir()) / f"kernlore-compiler-{os.getuid()}")


class Launched(Protocol):
    """A started process. `pid` is its number as this process sees it."""

    pid: int

    def wait(self, seconds: float) -> int | None:
        """The exit code, negative for a signal; None if it still runs after `seconds`."""
        ...


class Spawned:
    """A runner in a fresh interpreter."""

    def __init__(
        self,
        level: Level,
        arguments: list[str],
        environment: Mapping[str, str],
        scratch: Path,
        log: int,
        fds: tuple[int, ...],
    ) -> None:
        self._level = level
        self._process = subprocess.Popen(
            command(level, [sys.executable, "-I", RUNNER, "run", *arguments]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=fds,
            env=dict(environment),
            cwd=scratch,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def settle(self) -> None:
        """Find the runner's number: `unshare` has it as its only child."""
        if self._level == "namespaces":
            children = _children(self._process.pid)
            self.pid = children[0] if children else self._process.pid

    def wait(self, seconds: float) -> int | None:
        """As `Launched.wait`."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(child) for child in text.split()]


class Forked:
    """A fork of a `ForkServer`."""

    def __init__(self, status: int) -> None:
        self._status = status
        self._code: int | None = None
        try:
            self.pid, problem = self._read(START_SECONDS)
        except (TimeoutError, EOFError):
            os.close(status)
            raise
        if self.pid < 0:
            os.close(status)
            raise OSError(problem, os.strerror(problem))

    def _read(self, seconds: float) -> tuple[int, int]:
        ready, _, _ = select.select([self._status], [], [], seconds)
        if not ready:
            raise TimeoutError
        data = os.read(self._status, _STATUS.size)
        if len(data) < _STATUS.size:
            raise EOFError
        pid, value = _STATUS.unpack(data)
        return pid, value

    def wait(self, seconds: float) -> int | None:
        """As `Launched.wait`."""
        if self._code is None and self._status >= 0:
            try:
                self._code = self._read(seconds)[1]
            except TimeoutError:
                return None
            except EOFError:  # its fork server was ended, and it with that
                self._code = -signal.SIGKILL
            os.close(self._status)
            self._status = -1
        return self._code


class ForkServer:
    """An interpreter that has imported what its forks need. Thread-safe."""

    def __init__(
        self,
        program: Sequence[str],
        arguments: Sequence[str],
        level: Level,
        environment: Mapping[str, str],
    ) -> None:
        """`program` is a file that serves forks (see `runner.forks`), with its first arguments. It
        gets the number of its socket, whether forks get process namespaces, and `arguments`."""
        ours, theirs = socket.socketpair()
        own = "1" if level == "namespaces" else "0"
        argv = [sys.executable, "-I", *program, str(theirs.fileno()), own, *arguments]
        # Each fork gets its own process namespace; network and user namespaces are shared.
        shell = ["unshare", "--user", "--map-root-user", "--net", "--"] if own == "1" else []
        inherited = {n: os.environ[n] for n in ("PATH", "LD_LIBRARY_PATH") if n in os.environ}
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [*shell, *argv],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env={**inherited, **environment},
            start_new_session=True,
        )
        theirs.close()
        self._connect(ours)

    def _connect(self, sock: socket.socket) -> None:
        sock.settimeout(START_SECONDS)
        self._wire = Wire(sock, "")
        self._asking = threading.Lock()  # protects _wire and _ready
        self._ready = False

    @classmethod
    def lent(cls, sock: socket.socket) -> ForkServer:
        """The server at the other end of a socket that another process got from `lend`."""
        server = cls.__new__(cls)
        server._process = None
        server._connect(sock)
        return server

    @classmethod
    def for_runners(cls, threads: int, level: Level, device: str = "cpu") -> ForkServer:
        """A new server for runners of the same settings. A request carries the start values of a
        runner, with socket, tokens and log, and whether to import torch's compiler."""
        arguments = [str(threads), device, compiler_cache()]
        environment = {**threads_and_memory(threads), **(ON_CPU if device == "cpu" else {})}
        return cls([RUNNER, "serve"], arguments, level, environment)

    @classmethod
    def shared(cls, threads: int, level: Level, device: str = "cpu") -> ForkServer:
        """The server of these settings that this process reuses until it ends. No candidate ever
        runs in it. One that has ended is replaced."""
        key = _key(threads, level, device)
        with _sharing:
            known = _shared.get(key)
            if known is None or known.ended:
                known = _shared[key] = cls.for_runners(threads, level, device)
            return known

    def share(self, threads: int, level: Level, device: str) -> None:
        """Make this the server that `shared` returns in this process."""
        with _sharing:
            _shared[_key(threads, level, device)] = self

    @property
    def ended(self) -> bool:
        if self._process is not None:
            return self._process.poll() is not None
        readable, _, _ = select.select([self._wire], [], [], 0)
        return bool(readable) and self._ready  # it sends nothing unrequested but its end

    def lend(self) -> socket.socket:
        """A socket through which another process gets forks (see `lent`). They end when it is
        closed, or with this server. Raises as `fork` does."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._send({"serve": True}, [theirs.fileno()])
        return ours

    def fork(self, message: Mapping[str, Any], fds: Sequence[int]) -> Forked:
        """A process that answers this message. Raises WireClosed or EOFError if the server has
        ended, TimeoutError if it does not answer, OSError if no process could be made."""
        readable, status = os.pipe()
        with ExitStack() as undo:
            undo.callback(os.close, readable)
            try:
                self._send(message, (*fds, status))
            finally:
                os.close(status)
            undo.pop_all()
        return Forked(readable)

    def _send(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        with self._asking:
            if not self._ready:
                self._wire.receive()
                self._ready = True
            self._wire.send(message, fds)

    def close(self) -> None:
        """End it, and forks that are still alive."""
        self._wire.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


_sharing = threading.Lock()  # protects _shared
_shared: dict[tuple[object, ...], ForkServer] = {}


def _key(threads: int, level: Level, device: str) -> tuple[object, ...]:
    """Key of a shared fork server; its last part is this process."""
    inherited = (os.environ.get("PATH"), os.environ.get("LD_LIBRARY_PATH"), os.getpid())
    return threads, level, device, frozenset(os.sched_getaffinity(0)), *inherited


@atexit.register
def _end_shared() -> None:
    for key, server in list(_shared.items()):
        if key[-1] == os.getpid():
            server.close()


# -- forks that call one function

FUNCTION_SERVER = str(Path(__file__).with_name("fork_server.py"))
AVAILABLE = sys.platform.startswith("linux")
POLL_SECONDS = 0.1
KILL_SECONDS = 5.0  # for the kernel to end a group after SIGKILL


class PreparedProcess:
    """A running fork, the leader of a session."""

    def __init__(self, forked: Forked) -> None:
        self._forked = forked
        self._waiting = threading.Lock()  # protects _forked
        self.pid = forked.pid

    def wait(self, seconds: float) -> int | None:
        """As `Launched.wait`."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            with self._waiting:  # briefly, because another thread may end it meanwhile
                code = self._forked.wait(min(left, POLL_SECONDS))
            if code is not None or not left:
                return code

    def end(self, grace_seconds: float = 0.0) -> None:
        """End it and its process group, with SIGTERM `grace_seconds` before SIGKILL if given."""
        if self.wait(0.0) is None and grace_seconds:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)
            self.wait(grace_seconds)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(KILL_SECONDS)


class PreparedProcesses:
    """Starts forks that call one function, each with a fork server for runners on the CPU.
    Thread-safe, for Linux.

    Importing torch and the evaluation takes four seconds of a processor, and torch for the runners
    three more. A fork leaves nothing for the next. All end with the process that started them.
    """

    def __init__(self, entry: str) -> None:
        """`entry` is `module:function`, called with command-line arguments, returning an exit code.
        Importing its module must neither start a thread nor touch a device."""
        self._entry = entry
        self._preparing = threading.Lock()  # protects the rest
        self._server: ForkServer | None = None
        self._runners: ForkServer | None = None
        self._last: PreparedProcess | None = None
        self._used = time.monotonic()

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        output: tuple[int, int],
    ) -> PreparedProcess:
        """A new fork. `folder` is its working directory; `output` are the descriptors of its
        standard output and error. Raises OSError if no process could be made."""
        threads, level = usable_processors(), level_for("auto", "cpu")
        message = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(folder),
            "runners": {"threads": threads, "level": level, "device": "cpu"},
        }
        with self._preparing:
            server, runners = self._server, self._runners
            if server is None or runners is None or server.ended or runners.ended:
                self._close()
                server = ForkServer([FUNCTION_SERVER], [self._entry], "process", environment)
                runners = ForkServer.for_runners(threads, level)
                self._server, self._runners = server, runners
            try:
                with runners.lend() as lent:
                    forked = server.fork(message, [*output, lent.fileno()])
            except (WireClosed, EOFError, TimeoutError) as gone:
                self._close()
                raise OSError("the process that others are forked from has ended") from gone
            self._last, self._used = PreparedProcess(forked), time.monotonic()
            return self._last

    def release(self, idle_seconds: float) -> None:
        """End the servers if no fork is running and none was started for `idle_seconds`."""
        with self._preparing:
            idle = time.monotonic() - self._used > idle_seconds
            if idle and (self._last is None or self._last.wait(0.0) is not None):
                self._close()

    def close(self) -> None:
        """End the servers, and every fork with them."""
        with self._preparing:
            self._close()

    def _close(self) -> None:
        for server in (self._server, self._runners):
            if server is not None:
                server.close()
        self._server = self._runners = None
