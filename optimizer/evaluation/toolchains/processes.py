"""Runs a command, or a Python program in a fork of an interpreter that has its imports done, under
limits and with a deadline, and ends its whole process group.

No shell. Packages that take seconds to import (torch, triton) are imported once for all candidates;
forks are for Linux only. A process that starts its own session leaves the group and is not found
here. Standard library only.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from optimizer.evaluation.isolation.launch import Forked, ForkServer, Launched
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.runner.wire import WireClosed

LAUNCHER = Path(__file__).with_name("limited.py")
KILL_SECONDS = 5.0  # for the kernel to end a group after SIGKILL
DRAIN_SECONDS = 0.5  # for output that is still in the pipes when the command has ended
CHUNK = 65_536
PASSED_ENV = (
    *("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH"),
    *("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"),
)


@dataclass(frozen=True)
class CommandLimits:
    """Limits of a command; None sets none.

    `seconds` is wall time. `cpu_seconds`, `memory_bytes` (of address space) and `file_bytes` apply
    to each process. `processes` counts those of the user, because the kernel counts no finer.
    `output_bytes` is the length that is captured of each stream, from its start.
    """

    seconds: float = 60.0
    cpu_seconds: int | None = None
    memory_bytes: int | None = 8 << 30
    file_bytes: int | None = 1 << 30
    processes: int | None = None
    output_bytes: int = 1 << 20

    @property
    def resources(self) -> dict[str, int]:
        """The limits by the names of the module `resource`."""
        limits = {
            "RLIMIT_CPU": self.cpu_seconds or int(2 * self.seconds) + 1,
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_CORE": 0,
        }
        return {name: value for name, value in limits.items() if value is not None}


@dataclass(frozen=True)
class FinishedCommand:
    """An ended command. `code` is the exit status, negative for a signal. `truncated`: output
    exceeded its limit. `survivors` are processes of the group that SIGKILL did not end in time."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool = False
    truncated: bool = False
    survivors: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it ended with status 0 within its deadline."""
        return self.code == 0 and not self.timed_out

    @property
    def log(self) -> str:
        """Its output, errors first."""
        return "\n".join(text for text in (self.stderr.rstrip(), self.stdout.rstrip()) if text)


def run(
    command: Sequence[str],
    *,
    cwd: Path,
    limits: CommandLimits,
    env: Mapping[str, str] | None = None,
) -> FinishedCommand:
    """Run `command` with an empty standard input, and wait. A program that does not exist is a
    result with a code, like any other failure."""
    began = time.monotonic()
    settings = json.dumps({"resources": limits.resources, "parent": os.getpid()})
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(LAUNCHER), settings, *command],
        cwd=cwd,
        env=dict(env) if env is not None else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        pipes = (process.stdout.fileno(), process.stderr.fileno())
        return follow(_Opened(process), pipes, limits, began)


def clean_env(workdir: Path, **extra: str) -> dict[str, str]:
    """The environment of a compiler, without the service's keys."""
    passed = {name: os.environ[name] for name in PASSED_ENV if name in os.environ}
    folders = {"HOME": str(workdir), "TMPDIR": str(workdir), "LC_ALL": "C.UTF-8"}
    return {**passed, **folders, **extra}


def follow(
    process: Launched, pipes: tuple[int, int], limits: CommandLimits, began: float
) -> FinishedCommand:
    """Wait for the leader of a process group, and end the group. `pipes` are the read ends of its
    output and errors; `began` is `time.monotonic` at its start."""
    try:
        captured, timed_out = _collect(process, pipes, began + limits.seconds, limits.output_bytes)
    finally:
        survivors = end_group(process.pid)
        code = process.wait(KILL_SECONDS)
    if code is None:  # the kernel has not ended it yet
        code = -signal.SIGKILL
    return FinishedCommand(
        code=code,
        stdout=captured.text(0),
        stderr=captured.text(1),
        seconds=time.monotonic() - began,
        timed_out=timed_out or -code in (signal.SIGXCPU, signal.SIGALRM),
        truncated=captured.truncated,
        survivors=survivors,
    )


class _Opened:
    """A `Popen` as `Launched`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def wait(self, seconds: float) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


class _Captured:
    """The start of each stream; the rest is read and dropped, so that the writer never blocks."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streams = (bytearray(), bytearray())
        self.truncated = False

    def add(self, stream: int, data: bytes) -> None:
        captured = self._streams[stream]
        room = self._limit - len(captured)
        captured += data[:room]
        self.truncated |= len(data) > room

    def text(self, stream: int) -> str:
        return self._streams[stream].decode("utf-8", "replace")


def _collect(
    process: Launched, pipes: tuple[int, int], deadline: float, limit: int
) -> tuple[_Captured, bool]:
    """Read until both streams end, the process ends, or the deadline passes."""
    captured = _Captured(limit)
    with selectors.DefaultSelector() as selector:
        for number, pipe in enumerate(pipes):
            os.set_blocking(pipe, False)
            selector.register(pipe, selectors.EVENT_READ, number)
        ended_by: float | None = None
        while selector.get_map():
            now = time.monotonic()
            if ended_by is None and process.wait(0.0) is not None:
                # A child that it left may hold the pipes open for ever.
                ended_by = now + DRAIN_SECONDS
            until = deadline if ended_by is None else min(deadline, ended_by)
            if now >= until:
                return captured, ended_by is None
            for key, _ in selector.select(min(until - now, 0.05)):
                data = os.read(key.fd, CHUNK)
                captured.add(key.data, data)
                if not data:
                    selector.unregister(key.fileobj)
    # A command that closed its streams may still end in time.
    return captured, process.wait(max(0.0, deadline - time.monotonic())) is None


def end_group(group: int) -> tuple[int, ...]:
    """Kill a process group and wait until all of it has ended. Returns the processes that have
    not."""
    until = time.monotonic() + KILL_SECONDS
    while True:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return ()
        except PermissionError:
            pass  # macOS: only zombies are left, or a process that changed its user
        alive = members(group)
        if not alive or time.monotonic() > until:
            return alive
        time.sleep(0.005)


def members(group: int) -> tuple[int, ...]:
    """Living processes of a group, without zombies. Empty without /proc (a Mac)."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            pids.append(int(entry.parent.name))
    return tuple(pids)


ATTEMPTS = 2  # a server that ended because it was idle is started again


def can_fork() -> bool:
    """Whether forks can be served here."""
    return sys.platform.startswith("linux")


class CompileServer:
    """Runs a Python program in forks of one interpreter, which starts with the first request and
    has a folder for temporary files. Thread-safe."""

    def __init__(self, program: Path, environment: Mapping[str, str]) -> None:
        """`program` is a file that serves forks (see `runner.forks`); each gets two pipes for its
        output, and the request's `arguments` and `cwd`."""
        self._program = program
        self._environment = dict(environment)
        self._folder = tempfile.TemporaryDirectory(prefix="kernlore-forks-")
        self._server: ForkServer | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)

    def start(self) -> None:
        """Start the interpreter, which does its imports in the background."""
        with self._lock:
            self._started()

    def run(
        self, arguments: Sequence[str], *, cwd: Path, limits: CommandLimits, env: Mapping[str, str]
    ) -> FinishedCommand:
        """Run the program with these arguments in a fork, and wait. It does not inherit this
        process's environment."""
        message = {
            "arguments": list(arguments),
            "cwd": str(cwd),
            "environment": dict(env),
            "resources": limits.resources,
        }
        with ExitStack() as opened:
            out, out_end = self._pipe(opened)
            err, err_end = self._pipe(opened)
            process = self._fork(message, (out_end, err_end))
            os.close(out_end)
            os.close(err_end)
            return follow(process, (out, err), limits, time.monotonic())

    @staticmethod
    def _pipe(opened: ExitStack) -> tuple[int, int]:
        """The read end is closed with `opened`, the other one by the caller."""
        readable, writable = os.pipe()
        opened.callback(os.close, readable)
        return readable, writable

    def _fork(self, message: Mapping[str, object], fds: tuple[int, int]) -> Forked:
        with self._lock:
            for attempt in range(ATTEMPTS):
                try:
                    return self._started().fork(message, fds)
                except (WireClosed, EOFError):
                    self._end()
                    if attempt == ATTEMPTS - 1:
                        raise
        raise AssertionError("unreachable")

    def _started(self) -> ForkServer:
        if self._server is None:
            environment = {**self._environment, "TMPDIR": self._folder.name}
            level = level_for("auto")
            self._server = ForkServer([str(self._program)], [], level, environment)
        return self._server

    def close(self) -> None:
        """End the server and its forks; the next request starts it again."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
