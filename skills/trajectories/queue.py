"""The service's thread that evaluates told trajectories, one after the other. What waits is rows of
the catalog, so a restart goes on with it, and so it does with what another process left.
"""

from __future__ import annotations

import os
import threading

import structlog
from sqlalchemy.exc import DBAPIError

from kb.catalog.search.trajectories import StoredTrajectory, Trajectories
from kb.errors import Unavailable
from kb.ids import new_id
from optimizer.evaluation.queue import EvaluationQueue
from retrieval.knowledge_base import KnowledgeBase

WAITING = 20  # each is many minutes of measuring
STOP_SECONDS = 15.0

log = structlog.get_logger(__name__)


class TrajectoryQueue:
    """The thread looks for work when it is woken, and once in a lease: a worker that was killed
    wakes nobody."""

    def __init__(self, base: KnowledgeBase, evaluations: EvaluationQueue) -> None:
        self._base = base
        self._evaluations = evaluations
        # Not `accept.trajectory_store`: what that imports takes seconds.
        self._store = Trajectories(base.catalog, base.blobs)
        self._owner = new_id(f"service{os.getpid()}")
        self._changing = threading.Lock()  # protects _thread
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def check_room(self) -> None:
        """Unavailable when too many wait already."""
        waiting = len(self._store.latest(WAITING, ("queued",)))
        if waiting >= WAITING:
            raise Unavailable(
                f"{waiting} trajectories are waiting already",
                hint="Send it again when one of them has ended.",
            )

    def wake(self) -> None:
        """Look for work now; starts the thread where there is none that lives."""
        self._wake.set()
        with self._changing:
            alive = self._thread is not None and self._thread.is_alive()
            if not alive and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._work, name="trajectories", daemon=True)
                self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _work(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            if not self._worked():
                self._wake.wait(self._base.settings.lease_seconds)

    def _worked(self) -> bool:
        """Whether there may be more to do at once."""
        row = None
        try:
            row = self._next()
            if row is not None:
                self._carry_out(row)
            return row is not None
        except Exception:  # the job boundary: the thread serves whoever comes next
            if not self._stopped.is_set():  # else the catalog is being closed
                log.exception("trajectory queue failed", trajectory=row.id if row else None)
            return False

    def _next(self) -> StoredTrajectory | None:
        """The oldest, with those that a dead worker left."""
        for identity in self._store.expire():
            log.warning("trajectory queued again", trajectory=identity, reason="lease_expired")
        waiting = self._store.latest(10 * WAITING, ("queued",))
        return waiting[-1] if waiting else None

    def _carry_out(self, row: StoredTrajectory) -> None:
        from skills.trajectories.reevaluate import Reevaluation, verify

        work = Reevaluation(self._base, self._evaluations, self._stopped.is_set)
        try:
            verify(work, row, self._owner)
        except DBAPIError:  # the catalog's failure, not the trajectory's, which is queued again
            raise  # once its lease has run out
        except Exception:  # the job boundary: recorded, never swallowed
            if self._stopped.is_set():  # the catalog is being closed
                return
            log.exception("trajectory failed", trajectory=row.id)
            told = {
                "code": "internal_error",
                "message": "the service failed to evaluate this trajectory",
                "hint": "This is a defect of Kernlore; the log has it under the trajectory's id.",
                "details": {"trajectory": row.id},
            }
            self._store.end(row.id, self._owner, "failed", error=told)
