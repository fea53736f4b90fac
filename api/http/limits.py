"""How many requests a caller may send a minute. Counted in memory, for this process.

A caller may save up to a minute's share; then each request waits for the next one to come free.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from api.http.roles import Kind
from kb.addresses import is_loopback
from kb.errors import TooManyRequests
from kb.settings import Settings

MINUTE = 60.0
MOST_CALLERS = 10_000  # remembered at once; those that have their whole share again go first

_SETTINGS = {"request": "KERNLORE_REQUESTS_PER_MINUTE", "upload": "KERNLORE_UPLOADS_PER_MINUTE"}


class Limits:
    """The shares of one service's callers; used from its event loop alone."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._most = {
            "request": settings.requests_per_minute,
            "upload": settings.uploads_per_minute,
        }
        self._local = is_loopback(settings.host)
        self._left: dict[tuple[str, str], tuple[float, float]] = {}  # share, and when it was so

    def take(self, who: str, kind: Kind, *, with_key: bool) -> None:
        """Count a request. Nobody is limited without a key on loopback: that is one's own machine.
        Raises TooManyRequests.
        """
        if kind == "free" or (self._local and not with_key):
            return
        self._take(who, "request")
        if kind == "upload":
            self._take(who, "upload")

    def _take(self, who: str, kind: str) -> None:
        most = self._most[kind]
        if not most:
            return
        now = self._clock()
        left, since = self._left.get((who, kind), (float(most), now))
        left = min(float(most), left + (now - since) * most / MINUTE)
        if left < 1:
            self._left[(who, kind)] = (left, now)
            seconds = math.ceil((1 - left) * MINUTE / most)
            raise TooManyRequests(
                f"more than {most:,} {kind}s a minute",
                hint=f"Send the request again after {seconds} s; {_SETTINGS[kind]} sets the limit.",
                details={"retry_after_seconds": seconds, "limit": most},
            )
        self._left[(who, kind)] = (left - 1, now)
        if len(self._left) > MOST_CALLERS:
            self._forget(now)

    def _forget(self, now: float) -> None:
        self._left = {key: (n, at) for key, (n, at) in self._left.items() if now - at < MINUTE}
        while len(self._left) > MOST_CALLERS:  # all within a minute: the oldest go
            del self._left[min(self._left, key=lambda key: self._left[key][1])]
