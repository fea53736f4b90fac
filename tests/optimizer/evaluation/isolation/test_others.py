"""What other work took while ours was timed, with real other work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from optimizer.evaluation.isolation.machine import KNOWN_NS, Others

pytestmark = [
    pytest.mark.slow(seconds=4),
    pytest.mark.skipif(sys.platform != "linux", reason="the account is Linux's"),
]
SPIN = [sys.executable, "-c", "while True: pass"]
ALL = float("inf")
ELSEWHERE = 1 << 30  # no process


@contextmanager
def spinning(*command: str) -> Iterator[int]:
    process = subprocess.Popen(command or SPIN)
    try:
        time.sleep(0.3)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def after(seconds: float) -> Others:
    others = Others()
    time.sleep(seconds)
    return others


def used_ns(pid: int) -> int:
    return time.clock_gettime_ns(~pid << 3 | 2)


def test_a_process_counts_as_others_work_but_where_it_is_ours() -> None:
    with spinning() as pid:
        others = after(KNOWN_NS / 1e9)
        then, before = others.now(), used_ns(pid)
        time.sleep(0.5)
        took = used_ns(pid) - before
        without = others.since(then, pid, ALL)  # the later of the two sees more
        seen = others.since(then, ELSEWHERE, ALL)
    assert seen is not None and without is not None
    assert seen - without >= 0.9 * took > 0


def test_children_of_ours_are_ours() -> None:
    """As of a runner that starts processes; this process is the parent here."""
    with spinning() as pid:
        others = after(KNOWN_NS / 1e9)
        then, before = others.now(), used_ns(pid)
        time.sleep(0.3)
        took = used_ns(pid) - before
        ours = others.since(then, os.getpid(), ALL)
        theirs = others.since(then, ELSEWHERE, ALL)
    assert theirs is not None and ours is not None
    assert theirs - ours >= 0.9 * took > 0


def test_the_calling_thread_is_ours_and_other_threads_of_this_process_are_not() -> None:
    others = after(KNOWN_NS / 1e9)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            sum(range(1_000))

    then, own = others.now(), time.thread_time_ns()
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        pass
    own = time.thread_time_ns() - own
    alone = others.since(then, ELSEWHERE, ALL)
    beside = threading.Thread(target=work)
    then, process, thread = others.now(), time.process_time_ns(), time.thread_time_ns()
    beside.start()
    time.sleep(0.3)
    with_thread = others.since(then, ELSEWHERE, ALL)
    theirs = (time.process_time_ns() - process) - (time.thread_time_ns() - thread)
    stop.set()
    beside.join()
    assert alone is not None and with_thread is not None and own > 0
    assert with_thread > 0.5 * theirs


def test_too_short_a_while_says_nothing_unless_enough_is_seen() -> None:
    with spinning() as pid:
        others = Others()
        then = others.now()
        time.sleep(0.1)
        assert others.since(then, pid, ALL) is None
        took = others.since(then, ELSEWHERE, 1.0)
    assert took is not None and took > 0
