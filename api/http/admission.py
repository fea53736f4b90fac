"""Admission of retrievals: how many run at once, and how many may wait.

Retrievals are bound by the processor, so that more of them than processors would delay all. A
waiting request holds no thread and no database connection. Requests beyond the limit are refused at
once with a time to retry, so that a loaded service still answers.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from functools import wraps
from typing import Annotated, Any

from fastapi import Depends, Request, Response

from kb.errors import Overloaded
from kb.settings import Settings

WAIT_SECONDS = 30.0  # longest wait before a request is refused
RETRY_SECONDS = 1


class Admission:
    """Limits the retrievals of one service. Not thread-safe: for its event loop only."""

    def __init__(self, settings: Settings) -> None:
        self._places = asyncio.Semaphore(settings.retrievals_at_once)
        self._most = settings.retrievals_waiting
        self._waiting = 0

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

    def leave(self) -> None:
        """Give the place back."""
        self._places.release()


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
    none is held while a client sends the body.
    """

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
