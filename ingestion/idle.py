"""When a worker that found nothing to do looks again: once somebody has changed the catalog."""

from __future__ import annotations

import time
from collections.abc import Hashable

from kb.catalog.engine import Catalog

LOOK_SECONDS = 5.0  # a lease that runs out changes nothing in the catalog: so often at least


class Idle:
    """Spares looks through a catalog that is as it was when the last look found nothing.

    A look takes a write transaction and goes over all passages; `nothing_new` takes microseconds.
    """

    def __init__(self, catalog: Catalog, lease_seconds: float) -> None:
        self._catalog = catalog
        self._seconds = min(LOOK_SECONDS, lease_seconds)
        self._version: Hashable = None  # of the catalog, as it was before the last look
        self._until = 0.0  # what the last look found holds so long, by the monotonic clock

    def nothing_new(self) -> bool:
        """Whether a look would find what the last one found: nothing."""
        version = self._catalog.version()
        spared = version == self._version and time.monotonic() < self._until
        if not spared:
            self._version, self._until = version, 0.0
        return spared

    def found_nothing(self, *, for_now: bool = False) -> None:
        """The last look found nothing; with `for_now`, because it waits for something else than a
        change of the catalog.
        """
        if not for_now and not self._until:
            self._until = time.monotonic() + self._seconds
