"""Two ways to start a runner's process: a fresh interpreter, or a fork of one that has torch
imported. Both give a `Launched`: its process number, how it ended.

A fork takes milliseconds where an interpreter with torch takes seconds. CUDA cannot be used in a
fork of a process that has used it: the process that is forked from only imports.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from optimizer.isolation.levels import Level, command
from optimizer.runner.environment import threads_and_memory
from optimizer.runner.wire import Wire

RUNNER = Path(__file__).resolve().parents[1] / "runner"
START_SECONDS = 120.0
_STATUS = struct.Struct("=ii")


class Launched(Protocol):
    """pid: of the runner itself, as this process sees it."""

    pid: int

    def wait(self, seconds: float) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        ...


class Spawned:
    """A fresh interpreter."""

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
        """Behind `unshare` the runner is that command's only child."""
        if self._level == "namespaces":
            children = _children(self._process.pid)
            self.pid = children[0] if children else self._process.pid

    def wait(self, seconds: float) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


class Forked:
    """A fork of a `Zygote`."""

    def __init__(self, status: int) -> None:
        self._status = status
        self.pid, problem = self._read(START_SECONDS)
        if self.pid < 0:
            raise OSError(problem, os.strerror(problem))
        self._code: int | None = None

    def _read(self, seconds: float) -> tuple[int, int]:
        ready, _, _ = select.select([self._status], [], [], seconds)
        data = os.read(self._status, _STATUS.size) if ready else b""
        if len(data) < _STATUS.size:
            raise TimeoutError
        pid, value = _STATUS.unpack(data)
        return pid, value

    def wait(self, seconds: float) -> int | None:
        if self._code is None and self._status >= 0:
            try:
                self._code = self._read(seconds)[1]
            except TimeoutError:
                return None
            os.close(self._status)
            self._status = -1
        return self._code


class Zygote:
    """The interpreter that runners are forked from. One for all runners of the same settings."""

    def __init__(self, threads: int, level: Level, device: str = "cpu") -> None:
        ours, theirs = socket.socketpair()
        own = "1" if level == "namespaces" else "0"
        argv = [sys.executable, "-I", str(RUNNER / "zygote.py"), str(theirs.fileno())]
        # Its runners get process namespaces of their own; network and user are shared from here.
        shell = ["unshare", "--user", "--map-root-user", "--net", "--"] if own == "1" else []
        kept = {n: os.environ[n] for n in ("PATH", "LD_LIBRARY_PATH") if n in os.environ}
        self._process = subprocess.Popen(
            [*shell, *argv, str(threads), own, device],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env={**kept, **threads_and_memory(threads)},
            start_new_session=True,
        )
        theirs.close()
        ours.settimeout(START_SECONDS)
        self._wire = Wire(ours, "")
        self._ready = False

    def fork(
        self, secret: str, environment: Mapping[str, str], scratch: Path, fds: tuple[int, int, int]
    ) -> Forked:
        """fds: socket, tokens, log."""
        if not self._ready:
            self._wire.receive()
            self._ready = True
        readable, status = os.pipe()
        message = {"secret": secret, "environment": dict(environment), "scratch": str(scratch)}
        self._wire.send(message, (*fds, status))
        os.close(status)
        return Forked(readable)

    def close(self) -> None:
        """End it; runners that are still alive end with it."""
        self._wire.close()
        self._process.kill()
        self._process.wait()


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(child) for child in text.split()]
