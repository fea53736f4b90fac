"""Calls in spans of a millisecond or more, each with how long this process stood ready without a
processor meanwhile: so a disturbed stretch of a block can be told from the quiet rest of it."""

from __future__ import annotations

import os
from pathlib import Path

SPAN_NS = 1_000_000
_TASKS = Path("/proc/self/task")


class Spans:
    """`rows`: calls, their time and the wait, in nanoseconds, of each span.

    The kernel's files are opened once: reading them costs microseconds, and what is spent between
    calls is held against a candidate. Threads that start later are not seen.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self._calls = self._ns = 0
        self._files = [os.open(task, os.O_RDONLY) for task in _TASKS.glob("*/schedstat")]
        self._waited = self._wait_ns()

    def add(self, took: int) -> None:
        self._calls += 1
        self._ns += took
        if self._ns >= SPAN_NS:
            self._next()

    def close(self) -> None:
        """The last span; nothing can be added afterwards."""
        if self._calls:
            self._next()
        for file in self._files:
            os.close(file)
        self._files = []

    def _next(self) -> None:
        waited = self._wait_ns()
        self.rows.append((self._calls, self._ns, waited - self._waited))
        self._calls, self._ns, self._waited = 0, 0, waited

    def _wait_ns(self) -> int:
        """Run-queue wait of the threads so far: schedstat's second field."""
        return sum(_second(file) for file in self._files)


def _second(file: int) -> int:
    try:
        return int(os.pread(file, 80, 0).split()[1])
    except (OSError, IndexError):
        return 0  # the thread has ended, or the kernel does not keep account
