"""How many requests a caller may send a minute. Counted in memory.

A caller may save up to a minute's share; then each request waits for the next one to come free.
Replicas over one catalog tell each other what they counted once in EXCHANGE_SECONDS, so all of them
together give a caller one share, and a second of its requests.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

from api.http.roles import Kind
from kb.addresses import is_loopback
from kb.catalog.keys import Counts
from kb.errors import TooManyRequests
from kb.settings import Settings

MINUTE = 60.0
EXCHANGE_SECONDS = 1.0
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
        self._own: Counter[tuple[str, str]] = Counter()  # since the last exchange
        self._totals: dict[tuple[str, str], int] = {}  # as last seen, of all replicas

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
        if len(self._own) < MOST_CALLERS:  # one service alone exchanges nothing
            self._own[(who, kind)] += 1
        if len(self._left) > MOST_CALLERS:
            self._forget(now)

    def own(self) -> Counts:
        """What was counted here since the last call, for the other replicas."""
        own, self._own = self._own, Counter()
        return own

    def keep(self, own: Counts) -> None:
        """The exchange failed: count these again the next time."""
        if len(self._own) < MOST_CALLERS:
            self._own.update(own)

    def learn(self, totals: Counts, own: Counts) -> None:
        """Take what others have counted off the shares. `totals` are those of all replicas, with
        `own`.
        """
        now = self._clock()
        for key, total in totals.items():
            # Of one that was never seen here, nobody knows since when its total counts.
            others = total - self._totals.get(key, total - own.get(key, 0)) - own.get(key, 0)
            most = self._most[key[1]]
            if others > 0 and most:
                left, since = self._left.get(key, (float(most), now))
                left = min(float(most), left + (now - since) * most / MINUTE)
                self._left[key] = (max(left - others, -float(most)), now)
        known = self._totals if len(self._totals) < MOST_CALLERS else {}
        self._totals = {**known, **totals}

    def _forget(self, now: float) -> None:
        self._left = {key: (n, at) for key, (n, at) in self._left.items() if now - at < MINUTE}
        while len(self._left) > MOST_CALLERS:  # all within a minute: the oldest go
            del self._left[min(self._left, key=lambda key: self._left[key][1])]
