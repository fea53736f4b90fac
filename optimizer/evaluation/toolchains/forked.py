"""Runs a Python program in forks of an interpreter that has its imports done: what takes seconds to
import (torch, triton) is imported once for all candidates.

Same contract as `processes.run`: a group of its own, limits, a deadline, nothing left behind.
Linux only.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from optimizer.evaluation.isolation import levels
from optimizer.evaluation.isolation.launch import Forked, Zygote
from optimizer.evaluation.runner.wire import WireClosed
from optimizer.evaluation.toolchains.processes import Finished, Limits, follow

ATTEMPTS = 2  # one that ended because nobody asked for long is started again


def can_fork() -> bool:
    return sys.platform.startswith("linux")


class ForkServer:
    """program: a file that serves forks (`runner.forking`), whose forks get two pipes for what they
    print and run the request's `arguments` in `cwd`. Starts with the first request, with a folder
    for temporary files of its own. For several threads."""

    def __init__(self, program: Path, environment: Mapping[str, str]) -> None:
        self._program = program
        self._environment = dict(environment)
        self._folder = tempfile.TemporaryDirectory(prefix="kernlore-forks-")
        self._zygote: Zygote | None = None
        self._lock = threading.Lock()
        atexit.register(self.close)

    def run(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        limits: Limits,
        env: Mapping[str, str],
    ) -> Finished:
        """`arguments` for the program, which sees nothing of this process's environment."""
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
        """The end to read from is closed with `opened`, the other one by whoever passed it on."""
        readable, writable = os.pipe()
        opened.callback(os.close, readable)
        return readable, writable

    def _fork(self, message: Mapping[str, object], fds: tuple[int, int]) -> Forked:
        with self._lock:
            for attempt in range(ATTEMPTS):
                if self._zygote is None:
                    level = levels.level_for("auto")
                    environment = {**self._environment, "TMPDIR": self._folder.name}
                    self._zygote = Zygote(self._program, [], level, environment)
                try:
                    return self._zygote.fork(message, fds)
                except (WireClosed, EOFError):
                    self._end()
                    if attempt == ATTEMPTS - 1:
                        raise
        raise AssertionError("unreachable")

    def close(self) -> None:
        """End it and what it forked; the next request starts it again."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.close()
