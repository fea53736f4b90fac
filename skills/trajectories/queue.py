"""External trajectories on their way to be evaluated: checked, stored as rows, and carried out one
at a time by a thread of the service or by the command that sent them.

What waits is rows of the catalog, so a restart continues with them, and with those of a worker that
died.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import structlog
from sqlalchemy.exc import DBAPIError

from kb.catalog.trajectories import State, StoredTrajectory
from kb.errors import InvalidRequest, Unavailable
from kb.ids import new_id
from kb.workers import WorkerThread
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.queue import EvaluationProcesses, EvaluationQueue
from optimizer.evaluation.targets import AUTO
from retrieval.knowledge_base import KnowledgeBase
from skills.trajectories.external import (
    ExternalTrajectory,
    about_step,
    external_trajectory_from_json,
    problem_of,
)
from skills.trajectories.reading import trajectory_store, untimed_steps

WAITING = 20  # each is many minutes of measuring
STOP_SECONDS = 15.0
RETRIED: tuple[State, ...] = ("failed", "unverified")

log = structlog.get_logger(__name__)


def accept(
    base: KnowledgeBase, external: ExternalTrajectory, problem: Problem, origin: str
) -> StoredTrajectory:
    """Store an external trajectory: `queued`, or `unverified` if this machine cannot measure it.

    `origin` is `told` (another optimizer), `export` (the lines of an exported run), `session` (of
    another tool) or `history` (of a repository). A trajectory
    that was sent before keeps its row; `requeue` selects those that are tried again. Raises
    InvalidRequest for a step that no machine could evaluate.
    """
    obstacle = evaluation_obstacle(base, external, problem)
    store = trajectory_store(base)
    state: State = "unverified" if obstacle else "queued"
    summary = {
        "problem": problem.name,
        "problem_sha256": problem.sha256,
        "hardware": external.hardware,
        "languages": sorted({step.bundle.language for step in external.steps}),
        "steps": len(external.steps),
        "actor": external.actor,
        "licence": external.licence,
        "reason": obstacle,
    }
    store.expire()
    store.add(external.id, origin, state, external.as_json(), summary)
    return requeue(base, store.find(external.id))


def requeue(base: KnowledgeBase, row: StoredTrajectory) -> StoredTrajectory:
    """Queue a trajectory again if this machine has its hardware, and it failed, was not verified,
    or has a step that the machine was too busy to time. Returns the row as it is then."""
    untimed = row.state == "ready" and bool(untimed_steps(row.summary))
    if row.state not in RETRIED and not untimed:
        return row
    store = trajectory_store(base)
    external = external_trajectory_from_json(store.report(row))
    obstacle = evaluation_obstacle(base, external, problem_of(external.problem))
    if untimed and obstacle:
        return row  # its measurements stay
    state: State = "unverified" if obstacle else "queued"
    from_states: tuple[State, ...] = ("ready",) if untimed else RETRIED
    store.change(row.id, state, only_from=from_states, reason=obstacle, error=None)
    return store.find(row.id)


def evaluation_obstacle(base: KnowledgeBase, external: ExternalTrajectory, problem: Problem) -> str:
    """The reason why this machine cannot measure a trajectory, or "". Raises InvalidRequest for a
    step that no machine could evaluate."""
    from optimizer.evaluation.evaluate import check_request  # seconds to import

    obstacles: dict[str, str] = {}  # by language
    searched = [case.name for case in problem.searched]
    for step in external.steps:
        for name in step.cases:
            if name not in searched:  # held-out cases cannot be chosen
                raise InvalidRequest(
                    f"step {step.number}: {problem.name} has no case {name[:80]!r}",
                    hint=f"It has {', '.join(searched)}.",
                )
        language = step.bundle.language
        if language in obstacles:
            continue
        try:
            request = check_request(base, problem, step.bundle, hardware=external.hardware)
        except Unavailable as error:
            obstacles[language] = error.message
            continue
        except InvalidRequest as error:
            if not _lacks_toolchain(base, external.hardware, language):
                raise about_step(step.number, error) from None
            obstacles[language] = error.message
            continue
        target = request.chosen.target
        here = target.device is not None or target.templates
        obstacles[language] = "" if here else f"no {target.hardware} in this machine"
    return next((obstacle for obstacle in obstacles.values() if obstacle), "")


def _lacks_toolchain(base: KnowledgeBase, hardware: str, language: str) -> bool:
    """Whether the chip has this language but no toolchain for it yet; one may be registered
    later."""
    known = base.registry.all()
    specs = [known[name] for name in base.registry.lineage(hardware) if name in known]
    stated = any(language in spec.languages for spec in specs)
    return stated and not any(language in spec.toolchains for spec in specs)


def resolved_hardware(base: KnowledgeBase, name: str) -> str:
    """The id of a hardware name or alias; for `auto`, the id of this machine's hardware. Raises
    UnknownHardware."""
    if name == AUTO:
        from optimizer.evaluation.evaluate import choose_target  # seconds to import

        return choose_target(base, AUTO, "torch").target.hardware
    return str(base.registry.resolve(name))


class TrajectoryQueue:
    """Evaluates queued trajectories in a thread, which looks for work on `wake` and once per
    lease."""

    def __init__(self, base: KnowledgeBase, evaluations: EvaluationQueue) -> None:
        self._base = base
        self._evaluations = evaluations
        self._store = trajectory_store(base)
        self._owner = new_id(f"service{os.getpid()}")
        self._worker = WorkerThread("trajectories", self._work, base.settings.lease_seconds)

    def check_room(self) -> None:
        """Raise Unavailable if too many trajectories are waiting."""
        waiting = len(self._store.latest(WAITING, ("queued",)))
        if waiting >= WAITING:
            raise Unavailable(
                f"{waiting} trajectories are waiting already",
                hint="Send it again when one of them has ended.",
            )

    def wake(self) -> None:
        self._worker.wake()

    def close(self) -> None:
        """Start nothing new; a running trajectory is queued again for the next service."""
        self._worker.stop(STOP_SECONDS)

    def _work(self) -> bool:
        """Evaluate the oldest queued trajectory. False if the queue is empty, or the catalog
        failed: then the trajectory is queued again once its lease runs out."""
        for identity in self._store.expire():
            log.warning("trajectory queued again", trajectory=identity, reason="lease_expired")
        row = self._store.claim(self._owner, self._base.settings.lease_seconds)
        if row is None:
            return False
        from skills.trajectories.reevaluate import Reevaluation, verify_claimed

        work = Reevaluation(self._base, self._evaluations, lambda: self._worker.stopped)
        try:
            verify_claimed(work, row, self._owner)
        except DBAPIError:
            if not self._worker.stopped:  # else the catalog is being closed
                log.exception("trajectory not recorded", trajectory=row.id)
            return False
        except Exception:  # the job boundary: recorded, never swallowed
            if self._worker.stopped:
                return False
            log.exception("trajectory failed", trajectory=row.id)
            error: dict[str, Any] = {
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
    """Evaluate a queued trajectory in this process; returns its row afterwards.

    A trajectory that is not queued, or that another process is evaluating, is left alone.
    `processes` are closed at the end; `listener` gets a line for each step.
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
