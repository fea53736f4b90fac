"""CPU time of other work during a timing, measured with real other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from optimizer.evaluation.isolation import machine
from optimizer.evaluation.isolation.machine import (
    KNOWN_NS,
    OtherWork,
    ProcessorAccount,
    account,
    left_between,
    too_busy,
    usable_processors,
    wait_until_quiet,
)

pytestmark = [
    pytest.mark.slow(seconds=7),
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


def after(seconds: float) -> OtherWork:
    others = OtherWork()
    time.sleep(seconds)
    return others


def used_ns(pid: int) -> int:
    return time.clock_gettime_ns(~pid << 3 | 2)


def test_other_process_counts_as_other_work_unless_listed() -> None:
    with spinning() as pid:
        others = after(KNOWN_NS / 1e9)
        then, before = others.now(), used_ns(pid)
        time.sleep(0.5)
        took = used_ns(pid) - before
        without = others.since(then, pid, ALL)  # before the other, so that it counts less
        seen = others.since(then, ELSEWHERE, ALL)
    assert seen is not None and without is not None
    assert seen - without >= 0.9 * took > 0


def test_children_of_own_processes_are_own() -> None:
    """As a runner that starts processes; here this process is the parent."""
    with spinning() as pid:
        others = after(KNOWN_NS / 1e9)
        then, before = others.now(), used_ns(pid)
        time.sleep(0.3)
        took = used_ns(pid) - before
        ours = others.since(then, os.getpid(), ALL)
        theirs = others.since(then, ELSEWHERE, ALL)
    assert theirs is not None and ours is not None
    assert theirs - ours >= 0.9 * took > 0


def test_only_calling_thread_is_own() -> None:
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
    nearby = threading.Thread(target=work)
    then, process, thread = others.now(), time.process_time_ns(), time.thread_time_ns()
    nearby.start()
    time.sleep(0.3)
    with_thread = others.since(then, ELSEWHERE, ALL)
    theirs = (time.process_time_ns() - process) - (time.thread_time_ns() - thread)
    stop.set()
    nearby.join()
    assert alone is not None and with_thread is not None and own > 0
    assert with_thread > 0.5 * theirs


def test_short_period_is_inconclusive_unless_enough_is_measured() -> None:
    with spinning() as pid:
        others = OtherWork()
        then = others.now()
        time.sleep(0.1)
        assert others.since(then, pid, ALL) is None
        took = others.since(then, ELSEWHERE, 1.0)
    assert took is not None and took > 0


def test_only_work_of_others_takes_processors() -> None:
    count = len(os.sched_getaffinity(0))
    hogs = [subprocess.Popen(SPIN) for _ in range(2 * count)]
    try:
        time.sleep(0.3)
        before = account([])
        time.sleep(1.0)
        foreign = left_between(before, account([]))
        ours = [hog.pid for hog in hogs]
        before = account(ours)
        time.sleep(1.0)
        after = account(ours)
        own = left_between(before, after)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert foreign is not None and own is not None
    assert before is not None and after is not None
    assert foreign < 0.5
    used = (after.own - before.own) / (after.at - before.at)
    assert used > 0.2 and own > 0.9 * used  # other processes may run too


def test_short_period_has_no_result() -> None:
    assert left_between(account([]), account([])) is None


def test_busy_machine_is_reported() -> None:
    others = [subprocess.Popen(SPIN) for _ in range(2 * usable_processors())]
    try:
        message = too_busy(usable_processors())
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert "most get no figure" in message and "begins with the correct candidates" in message
    assert any(f"({other.pid}): " in message for other in others) and "--wait" in message


def test_wait_until_other_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "WAIT_SECONDS", 0.05)
    messages: list[str] = []
    work = iter(["python (7): 1.9", "python (7): 1.9", ""])
    monkeypatch.setattr(machine, "too_busy", lambda threads: next(work))
    assert wait_until_quiet(2, 30.0, messages.append)
    assert len(messages) == 1 and "at most 1 minutes: python (7)" in messages[0]
    monkeypatch.setattr(machine, "too_busy", lambda threads: "always")
    assert not wait_until_quiet(2, 0.1, messages.append)


def test_idle_machine_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = iter([ProcessorAccount(5.0, 1.0, 10.0, 2), ProcessorAccount(5.1, 1.0, 11.0, 2)])
    monkeypatch.setattr(machine, "account", lambda processes: next(accounts))
    assert too_busy(2, seconds=0.0) == ""
