"""The service's thread that evaluates external trajectories, one after the other.

What waits is rows of the catalog, so a restart goes on with it, and with what another process left.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import structlog
from sqlalchemy.exc import DBAPIError

from kb.catalog.search.trajectories import StoredTrajectory, Trajectories
from kb.errors import Unavailable
from kb.ids import new_id
from kb.jobs import WorkerThread
from optimizer.evaluation.queue import EvaluationProcesses, EvaluationQueue
from retrieval.knowledge_base import KnowledgeBase

WAITING = 20  # each is many minutes of measuring
STOP_SECONDS = 15.0

log = structlog.get_logger(__name__)


class TrajectoryQueue:
    """Evaluates what is queued. It looks for work when it is woken, and once in a lease."""

    def __init__(self, base: KnowledgeBase, evaluations: EvaluationQueue) -> None:
        self._base = base
        self._evaluations = evaluations
        # Not `accept.trajectory_store`: what that imports takes seconds.
        self._store = Trajectories(base.catalog, base.blobs)
        self._owner = new_id(f"service{os.getpid()}")
        self._worker = WorkerThread("trajectories", self._work, base.settings.lease_seconds)

    def check_room(self) -> None:
        """Raise Unavailable where too many wait already."""
        waiting = len(self._store.latest(WAITING, ("queued",)))
        if waiting >= WAITING:
            raise Unavailable(
                f"{waiting} trajectories are waiting already",
                hint="Send it again when one of them has ended.",
            )

    def wake(self) -> None:
        """Look for work now."""
        self._worker.wake()

    def close(self) -> None:
        """Begin nothing new; what is being evaluated is queued again for the next service."""
        self._worker.stop(STOP_SECONDS)

    def _work(self) -> bool:
        """Evaluate the oldest trajectory that is queued; False where there is none."""
        row = self._next()
        if row is None:
            return False
        return self._carried_out(row)

    def _next(self) -> StoredTrajectory | None:
        """The oldest, with those that a dead worker left; it is this queue's now."""
        for identity in self._store.expire():
            log.warning("trajectory queued again", trajectory=identity, reason="lease_expired")
        return self._store.claim(self._owner, self._base.settings.lease_seconds)

    def _carried_out(self, row: StoredTrajectory) -> bool:
        """False where the catalog failed: the trajectory is queued again once its lease ran out."""
        from skills.trajectories.reevaluate import Reevaluation, verify_taken

        work = Reevaluation(self._base, self._evaluations, lambda: self._worker.stopped)
        try:
            verify_taken(work, row, self._owner)
        except DBAPIError:
            if not self._worker.stopped:  # else the catalog is being closed
                log.exception("trajectory not recorded", trajectory=row.id)
            return False
        except Exception:  # the job boundary: recorded, never swallowed
            if self._worker.stopped:
                return False
            log.exception("trajectory failed", trajectory=row.id)
            error = {
                "code": "internal_error",
                "message": "the service failed to evaluate this trajectory",
                "hint": "This is a defect of Kernlore; the log has it under the trajectory's id.",
                "details": {"trajectory": row.id},
            }
            self._store.end(row.id, self._owner, "failed", error=error)
        return True


def evaluate_now(
    base: KnowledgeBase,
    row: StoredTrajectory,
    processes: EvaluationProcesses,
    listener: Callable[[str], None],
) -> StoredTrajectory:
    """Evaluate a trajectory in this process, without a service; its row as it is afterwards.

    One that is not queued, or that another process is evaluating, is left as it is. `processes`
    are closed at the end; `listener` gets a line for each step.
    """
    from skills.trajectories.reevaluate import Reevaluation, verify

    if row.state != "queued":
        return row
    evaluations = EvaluationQueue(base, processes)
    try:
        work = Reevaluation(base, evaluations, report=listener)
        return verify(work, row, new_id(f"command{os.getpid()}"))
    finally:
        evaluations.close()
