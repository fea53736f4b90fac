"""Calls in spans of a millisecond or more, each with how long this process stood ready without a
processor meanwhile: so a disturbed stretch of a block can be told from the quiet rest of it."""

from __future__ import annotations

from pathlib import Path

SPAN_NS = 1_000_000
_TASKS = Path("/proc/self/task")


class Spans:
    """`rows`: calls, their time and the wait, in nanoseconds, of each span."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self._calls = self._ns = 0
        self._waited = waited_ns()

    def add(self, took: int) -> None:
        self._calls += 1
        self._ns += took
        if self._ns >= SPAN_NS:
            self.close()

    def close(self) -> None:
        if not self._calls:
            return
        waited = waited_ns()
        self.rows.append((self._calls, self._ns, waited - self._waited))
        self._calls, self._ns, self._waited = 0, 0, waited


def waited_ns() -> int:
    """Run-queue wait of all threads so far, by the kernel's account (schedstat's second field)."""
    total = 0
    for task in _TASKS.glob("*/schedstat"):
        try:
            total += int(task.read_text(encoding="ascii").split()[1])
        except (OSError, IndexError, ValueError):
            continue  # the thread has ended, or the kernel does not keep account
    return total
