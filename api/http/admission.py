"""Admission of retrievals: how many run at once, and how many may wait.

Retrievals are bound by the processor, so that more of them than processors would delay all. A
waiting request holds no thread and no database connection. Requests beyond the limit are refused at
once with a time to retry, so that a loaded service still answers.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import wraps
from typing import Annotated, Any, Literal

from fastapi import Depends, Request, Response

from kb.addresses import is_loopback
from kb.catalog.keys import Counts
from kb.errors import Overloaded, TooManyRequests
from kb.settings import Settings

WAIT_SECONDS = 30.0  # longest wait before a request is refused
RETRY_SECONDS = 1


class Admission:
    """Limits the retrievals of one service. Not thread-safe: for its event loop only."""

    def __init__(self, settings: Settings) -> None:
        # Threads of one process compute one after the other; more than two delay each other.
        self._places = asyncio.Semaphore(-(-settings.retrievals_at_once // settings.workers))
        self._most = settings.retrievals_waiting
        self._waiting = 0
        self._running = 0

    async def enter(self) -> None:
        """Wait for a free place and take it. Raises Overloaded."""
        if self._places.locked() and self._waiting >= self._most:
            raise _refused(f"{self._waiting} retrievals are waiting already")
        self._waiting += 1
        try:
            await asyncio.wait_for(self._places.acquire(), WAIT_SECONDS)
        except TimeoutError:
            raise _refused(f"no turn came within {WAIT_SECONDS:.0f} seconds") from None
        finally:
            self._waiting -= 1
        self._running += 1

    def leave(self) -> None:
        """Give the place back."""
        self._running -= 1
        self._places.release()

    @property
    def busy(self) -> bool:
        """Whether any retrieval runs or waits."""
        return self._running + self._waiting > 0


def _refused(reason: str) -> Overloaded:
    return Overloaded(
        f"the service is busy: {reason}",
        hint=f"Repeat the request in {RETRY_SECONDS} second or later, with fewer at once.",
        details={"retry_after_seconds": RETRY_SECONDS},
    )


async def admitted(request: Request) -> AsyncIterator[None]:
    """FastAPI dependency: hold a place while the route runs. For requests without a body."""
    admission: Admission = request.app.state.admission
    await admission.enter()
    try:
        yield
    finally:
        admission.leave()


# With this scope it ends when the function of the route does: no place is held while a client reads
# the response.
Place = Annotated[None, Depends(admitted, scope="function")]


def with_place(endpoint: Callable[..., Response]) -> Callable[..., Response]:
    """The function of a route, which holds a place while it runs. The place is its last dependency:
    none is held while a client sends the body."""

    @wraps(endpoint)
    def holding(*, place_of_request: None, **given: Any) -> Response:
        return endpoint(**given)

    signature = inspect.signature(endpoint, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    place = inspect.Parameter("place_of_request", keyword, annotation=Place)
    parameters = [p.replace(kind=keyword) for p in signature.parameters.values()]
    holding.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*parameters, place]
    )
    return holding


# -- rate limits of callers, as token buckets in memory
#
# A bucket holds the requests of one minute. Replicas over one catalog exchange their counts every
# EXCHANGE_SECONDS, so that all of them together allow one caller its limit, plus the requests of
# one such interval.

Kind = Literal["request", "upload", "free"]  # how the rate limits count a request
MINUTE = 60.0
EXCHANGE_SECONDS = 1.0
MOST_CALLERS = 10_000  # buckets in memory; full ones are dropped first

_SETTINGS = {"request": "KERNLORE_REQUESTS_PER_MINUTE", "upload": "KERNLORE_UPLOADS_PER_MINUTE"}


class Limits:
    """The buckets of one service. Not thread-safe: for its event loop only."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._most = {
            "request": settings.requests_per_minute,
            "upload": settings.uploads_per_minute,
        }
        self._local = is_loopback(settings.host)
        self._left: dict[
            tuple[str, str], tuple[float, float]
        ] = {}  # remaining requests, and their time
        self._own: Counter[tuple[str, str]] = Counter()  # since the last exchange
        self._totals: dict[tuple[str, str], int] = {}  # of all replicas, at the last exchange

    def take(self, who: str, kind: Kind, *, with_key: bool) -> None:
        """Count a request. Requests without a key on loopback are not limited. Raises
        TooManyRequests."""
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
        if len(self._own) < MOST_CALLERS:  # bounded: a single service never exchanges them
            self._own[(who, kind)] += 1
        if len(self._left) > MOST_CALLERS:
            self._forget(now)

    def own(self) -> Counts:
        """Counts of this replica since the last call."""
        own, self._own = self._own, Counter()
        return own

    def keep(self, own: Counts) -> None:
        """Keep counts of a failed exchange for the next one."""
        if len(self._own) < MOST_CALLERS:
            self._own.update(own)

    def learn(self, totals: Counts, own: Counts) -> None:
        """Subtract the requests of other replicas from the buckets. `totals` are the counts of all
        replicas, including `own`."""
        now = self._clock()
        for key, total in totals.items():
            # The first total of a caller may be old, so that it does not count.
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
        while len(self._left) > MOST_CALLERS:  # all used within a minute: drop the oldest
            del self._left[min(self._left, key=lambda key: self._left[key][1])]
