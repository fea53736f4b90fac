"""A server that the tests of a process share: started by the first who asks, removed at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import pytest


class Unstartable(Exception):
    """Why there is no server."""


class Removable(Protocol):
    def remove(self) -> None:
        """Stop it and remove all that it has."""


S = TypeVar("S", bound=Removable)


class OneServer(Generic[S]):
    """`start` raises Unstartable; it is tried once."""

    def __init__(self, start: Callable[[], S]) -> None:
        self._start = start
        self._server: S | None = None
        self._reason: Unstartable | None = None

    def get(self) -> S:
        """The server of this process. Raises Unstartable."""
        if self._reason is not None:
            raise self._reason
        if self._server is None:
            try:
                self._server = self._start()
            except Unstartable as reason:
                self._reason = reason
                raise
        return self._server

    def get_or_skip(self) -> S:
        """The server; where it cannot be started, the test is skipped."""
        try:
            return self.get()
        except Unstartable as reason:
            pytest.skip(str(reason))

    def stop(self) -> None:
        """At the end of the process."""
        if self._server is not None:
            self._server.remove()
