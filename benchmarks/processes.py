"""Processes that are killed on purpose, and their orphans. Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
GONE_SECONDS = 20.0  # for everything that a killed process had started, on a busy machine


def take_orphans() -> None:
    """Reparent orphaned descendants to this process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Processes below this one, as /proc has them."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if fields[0] != "Z":
            parents.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    children, waiting = [], [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        children += below
        waiting += below
    return children


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants, in any session. They are stopped first, so that none
    starts another meanwhile."""
    stopped: set[int] = set()
    while new := {pid, *descendants(pid)} - stopped:
        for number in new:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGSTOP)
        stopped |= new
    for number in stopped:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def orphans_gone() -> tuple[int, float]:
    """How many processes that were handed to this one still live after GONE_SECONDS (they are
    ended then), and when the last one was gone."""
    began = time.monotonic()
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return 0, time.monotonic() - began
        if time.monotonic() - began > GONE_SECONDS:
            left = descendants(os.getpid())
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            return len(left), GONE_SECONDS
        time.sleep(0.01)
