"""Keeps the lease on a trajectory that is being evaluated."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from sqlalchemy.exc import OperationalError

from kb.catalog.search.trajectories import Trajectories

log = structlog.get_logger(__name__)


@contextmanager
def renewed(
    store: Trajectories, identity: str, owner: str, seconds: float
) -> Iterator[threading.Event]:
    """Renew it from a thread of its own, however long a step takes. The event is set once the
    trajectory is somebody else's, as after the machine slept longer than the lease."""
    done, lost = threading.Event(), threading.Event()

    def beat() -> None:
        while not lost.is_set() and not done.wait(seconds / 4):
            try:
                if not store.renew(identity, owner, seconds):
                    lost.set()
            except OperationalError:  # locked: the lease lasts for more than one beat
                log.warning("lease not renewed", trajectory=identity, exc_info=True)

    thread = threading.Thread(target=beat, name="trajectory-lease", daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        done.set()
        thread.join()
