"""How many retrievals work at once, and how many may wait for their turn.

A retrieval is computing, so more at a time than there are processors makes all of them late. What
waits holds no thread and no connection; what is too much is refused at once with a time to come
back, so that a service under load stays one that answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import Request

from kb.errors import Overloaded
from kb.settings import Settings

WAIT_SECONDS = 30.0  # after which a request that still waits is refused
COME_BACK_SECONDS = 1


class Admission:
    """The turns of one service; used from its event loop alone."""

    def __init__(self, settings: Settings) -> None:
        self._places = asyncio.Semaphore(settings.retrievals_at_once)
        self._most = settings.retrievals_waiting
        self._waiting = 0

    async def enter(self) -> None:
        """Take a place, waiting for it. Raises Overloaded."""
        if self._places.locked() and self._waiting >= self._most:
            raise _refused(f"{self._waiting} retrievals are waiting already")
        self._waiting += 1
        try:
            await asyncio.wait_for(self._places.acquire(), WAIT_SECONDS)
        except TimeoutError:
            raise _refused(f"no turn came within {WAIT_SECONDS:.0f} seconds") from None
        finally:
            self._waiting -= 1

    def leave(self) -> None:
        """Give the place back."""
        self._places.release()


def _refused(reason: str) -> Overloaded:
    return Overloaded(
        f"the service is busy: {reason}",
        hint=f"Repeat the request in {COME_BACK_SECONDS} second or later, with fewer at once.",
        details={"retry_after_seconds": COME_BACK_SECONDS},
    )


async def admitted(request: Request) -> AsyncIterator[None]:
    """A dependency: the route runs while it holds a place."""
    admission: Admission = request.app.state.admission
    await admission.enter()
    try:
        yield
    finally:
        admission.leave()
