"""How long to wait: between calls, before another try, and for an answer at all.

Standard library only. Knows nothing of models.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

LONGEST_WAIT_S = 120.0


class DeadlinePassed(Exception):
    """The work did not end in time; it goes on in a thread nobody waits for."""


class RateLimit:
    """Starts at most `per_minute` calls a minute, evenly spaced; None for any number."""

    def __init__(
        self,
        per_minute: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._clock, self._sleep = clock, sleep
        self._next = 0.0
        self._lock = threading.Lock()  # protects _next: several searches may share one limit

    def wait(self) -> None:
        with self._lock:
            now = self._clock()
            start = max(now, self._next)
            self._next = start + self._gap
        if start > now:
            self._sleep(start - now)


def pause(attempt: int, asked: str | None, chance: random.Random) -> float | None:
    """Seconds before try number `attempt` + 1. asked: a Retry-After header; None where it asks for
    longer than anybody should wait."""
    told = _seconds(asked) if asked else None
    if told is not None:
        return told if told <= LONGEST_WAIT_S else None
    # 1, 2, 4 ... s, spread so that several callers do not come back together
    return min(LONGEST_WAIT_S, 2.0**attempt) * chance.uniform(0.75, 1.25)


def _seconds(header: str) -> float | None:
    """Of a number or an HTTP date; None for neither."""
    try:
        seconds = float(header)
    except ValueError:
        try:
            when = parsedate_to_datetime(header)
        except ValueError:
            return None
        aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        seconds = (aware - datetime.now(UTC)).total_seconds()
    return max(0.0, seconds) if seconds == seconds else None


def within(seconds: float, work: Callable[[], Any]) -> Any:
    """What `work` returns or raises. A provider that sends a byte now and then never meets a read
    time-out, so the whole call has a deadline of its own. Raises DeadlinePassed."""
    done: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def go() -> None:
        try:
            done.put((True, work()))
        except BaseException as problem:  # handed over to whoever waits
            done.put((False, problem))

    threading.Thread(target=go, name="model-call", daemon=True).start()
    try:
        fine, value = done.get(timeout=seconds)
    except queue.Empty:
        raise DeadlinePassed(f"no answer within {seconds:g} s") from None
    if not fine:
        raise value
    return value
