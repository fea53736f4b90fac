"""Processes that begin with everything imported: forks of one that did it once (`fork_server`),
each with a zygote of runners for the CPU that has done so too.

Importing torch and what evaluates takes four seconds of a processor, and torch for the runners
three more; a fork takes milliseconds. Nothing that a fork does is seen by the next: what they are
forked from only imports. They end with the process that started them. For Linux.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from optimizer.evaluation.isolation.launch import Forked, Zygote
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.processors import usable_processors
from optimizer.evaluation.runner.wire import WireClosed

PROGRAM = Path(__file__).with_name("fork_server.py")
AVAILABLE = sys.platform.startswith("linux")
POLL_SECONDS = 0.1
KILL_SECONDS = 5.0  # for the kernel to end a group that was sent SIGKILL


class PreparedProcess:
    """One fork at work, the leader of a session of its own."""

    def __init__(self, forked: Forked) -> None:
        self._forked = forked
        self._waiting = threading.Lock()  # protects _forked
        self.pid = forked.pid

    def wait(self, seconds: float) -> int | None:
        """The exit code, negative for a signal; None where it still runs after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            with self._waiting:  # for a moment: another thread may end it meanwhile
                code = self._forked.wait(min(left, POLL_SECONDS))
            if code is not None or not left:
                return code

    def end(self, grace_seconds: float = 0.0) -> None:
        """End it and its process group; `grace_seconds` is how long it may take to leave by itself
        after SIGTERM."""
        if self.wait(0.0) is None and grace_seconds:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)
            self.wait(grace_seconds)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(KILL_SECONDS)


class PreparedProcesses:
    """Starts forks that call one function. For any thread."""

    def __init__(self, entry: str) -> None:
        """`entry` is `module:function`, which gets the arguments of a command line and answers with
        an exit code. Its module must neither start a thread nor touch a device when it is imported.
        """
        self._entry = entry
        self._preparing = threading.Lock()  # protects what follows
        self._server: Zygote | None = None
        self._runners: Zygote | None = None
        self._last: PreparedProcess | None = None
        self._asked = time.monotonic()

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        output: tuple[int, int],
    ) -> PreparedProcess:
        """A fork that has begun. `folder` is its working directory; `output` are the descriptors of
        its standard output and error. Raises OSError where no process could be made.
        """
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
                self._server = server = Zygote(PROGRAM, [self._entry], "process", environment)
                self._runners = runners = Zygote.of_runners(threads, level)
            try:
                with runners.lend() as lent:
                    forked = server.fork(message, [*output, lent.fileno()])
            except (WireClosed, EOFError, TimeoutError) as gone:
                self._close()
                raise OSError("the process that others are forked from has ended") from gone
            self._last, self._asked = PreparedProcess(forked), time.monotonic()
            return self._last

    def rest(self, seconds: float) -> None:
        """End what is prepared where nothing was asked for since `seconds`, and none is at work."""
        with self._preparing:
            idle = time.monotonic() - self._asked > seconds
            if idle and (self._last is None or self._last.wait(0.0) is not None):
                self._close()

    def close(self) -> None:
        """End what is prepared, and every fork with it."""
        with self._preparing:
            self._close()

    def _close(self) -> None:
        for zygote in (self._server, self._runners):
            if zygote is not None:
                zygote.close()
        self._server = self._runners = None
