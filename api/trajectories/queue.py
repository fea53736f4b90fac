"""The service's thread that evaluates told trajectories, one after the other. What waits is rows of
the catalog, so a restart goes on with it.
"""

from __future__ import annotations

import threading

import structlog

from api.evaluation_queue import EvaluationQueue
from api.services import Services
from kb.catalog.trajectories import State, StoredTrajectory
from kb.errors import Unavailable

WORKER = "service"
WAITING = 20  # each is many minutes of measuring
STOP_SECONDS = 15.0

log = structlog.get_logger(__name__)


class TrajectoryQueue:
    """The thread starts with the first trajectory, or with one that an earlier service left."""

    def __init__(self, services: Services, evaluations: EvaluationQueue) -> None:
        self._services = services
        self._evaluations = evaluations
        self._changing = threading.Lock()  # protects _thread
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def resume(self) -> None:
        """Queue anew what the service was working on when it ended."""
        from api.trajectories.accept import trajectory_store

        store = trajectory_store(self._services)
        for row in store.latest(WAITING, ("running",)):
            if row.summary.get("worker") == WORKER:
                store.change(row.id, "queued")
        if store.latest(1, ("queued",)):
            self.wake()

    def check_room(self) -> None:
        """Unavailable when too many wait already."""
        from api.trajectories.accept import trajectory_store

        waiting = len(trajectory_store(self._services).latest(WAITING, ("queued",)))
        if waiting >= WAITING:
            raise Unavailable(
                f"{waiting} trajectories are waiting already",
                hint="Send it again when one of them has ended.",
            )

    def wake(self) -> None:
        self._wake.set()
        with self._changing:
            if self._thread is None and not self._stopped.is_set():
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
            row = self._next()
            if row is None:
                self._wake.wait()
                continue
            self._carry_out(row)

    def _next(self) -> StoredTrajectory | None:
        """The oldest."""
        from api.trajectories.accept import trajectory_store

        states: tuple[State, ...] = ("queued",)
        waiting = trajectory_store(self._services).latest(10 * WAITING, states)
        return waiting[-1] if waiting else None

    def _carry_out(self, row: StoredTrajectory) -> None:
        from api.trajectories.accept import trajectory_store
        from api.trajectories.reevaluate import Reevaluation, verify

        work = Reevaluation(self._services, self._evaluations, self._stopped.is_set)
        try:
            verify(work, row, WORKER)
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
            trajectory_store(self._services).change(row.id, "failed", error=told)
