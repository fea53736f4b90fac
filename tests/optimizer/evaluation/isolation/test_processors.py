"""What other work leaves to us, with real other work."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from optimizer.evaluation.isolation.machine import account, left_between

pytestmark = pytest.mark.slow(seconds=3)

SPIN = [sys.executable, "-c", "while True: pass"]


@pytest.mark.skipif(sys.platform != "linux", reason="the account is Linux's")
def test_work_of_others_takes_processors_and_our_own_does_not() -> None:
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
    assert used > 0.2 and own > 0.9 * used  # whatever else runs here beside these


def test_too_short_a_while_says_nothing() -> None:
    assert left_between(account([]), account([])) is None
