"""Two ways to start a runner's process: a fresh interpreter, or a fork of one that has torch
imported. Both give a `Launched`: its process number, and later its exit code. Also the environment
variables that every measuring process runs with.

A fork takes milliseconds where an interpreter with torch takes seconds. CUDA cannot be used in a
fork of a process that has used it: the process that is forked from only imports.
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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from optimizer.evaluation.isolation.levels import Level, command
from optimizer.evaluation.runner.confine import can_forbid_writing
from optimizer.evaluation.runner.wire import Wire

# glibc hands freed arrays back to the system when they lie at the end of its heap or were mapped by
# themselves; whether they do is chance. A process in which they do pays for every page again in
# every call: the same code was seen to take 3.5 times as long. So nothing is handed back.
# https://man7.org/linux/man-pages/man3/mallopt.3.html
STEADY_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 26),
}


# For torch's compiler on a CPU. Processes that it starts in advance, to compile for GPUs, disturb
# the timing. A header that it compiles beforehand, in every evaluation anew, takes longer than the
# few kernels of a candidate save by it: a zygote compiles it for all (`runner.inductor`).
COMPILER = {
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
}


# A candidate on a CPU sees no GPU of its machine. Torch's compiler looks for one when it is
# imported, after which forks cannot use it, and then asks it for the state of its random numbers.
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
ON_CPU = {**COMPILER, **NO_GPU}


def threads_and_memory(threads: int) -> dict[str, str]:
    """Environment variables of every measuring process. `threads` is for OpenMP and MKL."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **STEADY_MEMORY}


def kept_folder() -> str:
    """Where what g++ made for torch's compiler stays for later zygotes of this user: about 160 MB.
    Beside the locks of devices, where libraries can be loaded from; gone when that is cleaned.
    Empty where no system call would be refused to a candidate that writes there.
    """
    if not can_forbid_writing():
        return ""
    return str(Path(tempfile.gettempdir()) / f"kernlore-compiler-{os.getuid()}")


RUNNER = Path(__file__).resolve().parents[1] / "runner"
START_SECONDS = 240.0  # the first with the compiler waits for several runs of g++
_STATUS = struct.Struct("=ii")


class Launched(Protocol):
    """A started process. `pid` is that of the runner itself, as this process sees it."""

    pid: int

    def wait(self, seconds: float) -> int | None:
        """The exit code, negative for a signal; None where it still runs after `seconds`."""
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
        argv = [sys.executable, "-I", str(RUNNER / "__main__.py"), *arguments]
        self._level = level
        self._process = subprocess.Popen(
            command(level, argv),
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
        """Find the runner's number: behind `unshare` the runner is that command's only child."""
        if self._level == "namespaces":
            children = _children(self._process.pid)
            self.pid = children[0] if children else self._process.pid

    def wait(self, seconds: float) -> int | None:
        """As `Launched.wait`."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


class Forked:
    """A fork of a `Zygote`."""

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
            except EOFError:  # what it was forked from was ended, and it with that
                self._code = -signal.SIGKILL
            os.close(self._status)
            self._status = -1
        return self._code


class Zygote:
    """An interpreter that has imported what its forks need. For any thread."""

    def __init__(
        self,
        program: Path,
        arguments: Sequence[str],
        level: Level,
        environment: Mapping[str, str],
    ) -> None:
        """`program` is a file that serves forks (see `runner.forks`). It gets the number of its
        socket, whether its forks get process namespaces, and the arguments."""
        ours, theirs = socket.socketpair()
        own = "1" if level == "namespaces" else "0"
        argv = [sys.executable, "-I", str(program), str(theirs.fileno()), own, *arguments]
        # Forks get process namespaces of their own; network and user are shared from here.
        shell = ["unshare", "--user", "--map-root-user", "--net", "--"] if own == "1" else []
        kept = {n: os.environ[n] for n in ("PATH", "LD_LIBRARY_PATH") if n in os.environ}
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [*shell, *argv],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env={**kept, **environment},
            start_new_session=True,
        )
        theirs.close()
        self._converse(ours)

    def _converse(self, sock: socket.socket) -> None:
        sock.settimeout(START_SECONDS)
        self._wire = Wire(sock, "")
        self._asking = threading.Lock()  # protects _wire and _ready
        self._ready = False

    @classmethod
    def lent(cls, sock: socket.socket) -> Zygote:
        """The one at the other end of a socket that another process got from `lend`."""
        zygote = cls.__new__(cls)
        zygote._process = None
        zygote._converse(sock)
        return zygote

    @classmethod
    def of_runners(cls, threads: int, level: Level, device: str = "cpu") -> Zygote:
        """A zygote for all runners of the same settings. A request carries what a runner needs at
        its start, with socket, tokens and log, and whether torch's compiler is to be imported."""
        arguments = [str(threads), device, kept_folder()]
        environment = {**threads_and_memory(threads), **(ON_CPU if device == "cpu" else {})}
        return cls(RUNNER / "zygote.py", arguments, level, environment)

    @classmethod
    def kept(cls, threads: int, level: Level, device: str = "cpu") -> Zygote:
        """The one of these settings that this process keeps until it ends: importing torch takes
        seconds, and no candidate ever runs in it. One that has ended is replaced.
        """
        key = _key(threads, level, device)
        with _keeping:
            known = _kept.get(key)
            if known is None or known.ended:
                known = _kept[key] = cls.of_runners(threads, level, device)
            return known

    def keep(self, threads: int, level: Level, device: str) -> None:
        """Make this the one that `kept` answers with in this process."""
        with _keeping:
            _kept[_key(threads, level, device)] = self

    @property
    def ended(self) -> bool:
        """Whether it has ended, so that nothing can be forked from it any more."""
        if self._process is not None:
            return self._process.poll() is not None
        readable, _, _ = select.select([self._wire], [], [], 0)
        return bool(readable) and self._ready  # nothing but its end comes unasked

    def lend(self) -> socket.socket:
        """A socket through which another process gets forks of it (see `lent`). What is forked
        through it ends when it is closed, or when this zygote ends. Raises as `fork` does."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._ask({"serve": True}, [theirs.fileno()])
        return ours

    def fork(self, message: Mapping[str, Any], fds: Sequence[int]) -> Forked:
        """A process that answers this message. Raises WireClosed or EOFError where the zygote has
        ended, TimeoutError if it does not answer, OSError where no process could be made."""
        readable, status = os.pipe()
        with ExitStack() as undo:
            undo.callback(os.close, readable)
            try:
                self._ask(message, (*fds, status))
            finally:
                os.close(status)
            undo.pop_all()
        return Forked(readable)

    def _ask(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        with self._asking:
            if not self._ready:
                self._wire.receive()
                self._ready = True
            self._wire.send(message, fds)

    def close(self) -> None:
        """End it; runners that are still alive end with it."""
        self._wire.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


_keeping = threading.Lock()  # protects _kept
_kept: dict[tuple[object, ...], Zygote] = {}


def _key(threads: int, level: Level, device: str) -> tuple[object, ...]:
    """By what zygotes of this process are told apart; its last part is this process."""
    inherited = (os.environ.get("PATH"), os.environ.get("LD_LIBRARY_PATH"), os.getpid())
    return threads, level, device, frozenset(os.sched_getaffinity(0)), *inherited


@atexit.register
def _end_kept() -> None:
    for key, zygote in list(_kept.items()):
        if key[-1] == os.getpid():
            zygote.close()


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(child) for child in text.split()]
