"""Evaluates every step of a told trajectory here and stores what was found.

Each candidate goes through the evaluation queue as anything else that is sent; the journal's keys
see to it that what was evaluated before is not evaluated again. Claims play no part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from kb.catalog.search.trajectories import State, StoredTrajectory
from kb.errors import InvalidRequest, KernloreError, NotFound, Unavailable
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.evaluate import ask_for, choose_target
from optimizer.evaluation.problem.importing import substituted
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.queue import EvaluationQueue, Sent
from optimizer.evaluation.records import Evaluation, Interval, evaluation_from_json
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase
from skills.trajectories.accept import trajectory_store
from skills.trajectories.external_trajectory import Told, problem_of, told_from_json, tree_of
from skills.trajectories.lease import renewed
from skills.trajectories.reading import main_dtype, measured_sizes, steps_of, subject_of
from skills.trajectories.records import Trajectory

POLL_SECONDS = 0.2
FULL_SECONDS = 600.0  # how long to wait for a place in the queue

log = structlog.get_logger(__name__)


class Stopped(Exception):
    """The service ends, or the trajectory is somebody else's by now: they do the rest."""


@dataclass
class Results:
    """found: by bundle; problems: why there is no evaluation, by bundle."""

    found: dict[str, Evaluation] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    first: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Ended:
    """How it ended. summary: for lists; found: what was measured, where it is ready."""

    state: State
    summary: Mapping[str, Any]
    found: Mapping[str, Any] | None = None


@dataclass
class Reevaluation:
    """Of one trajectory. stopped: asked between polls; nothing is stored here but evaluations."""

    base: KnowledgeBase
    evaluations: EvaluationQueue
    stopped: Callable[[], bool] = lambda: False
    said: Callable[[str], None] = lambda message: None

    def carry_out(self, row: StoredTrajectory) -> Ended:
        """Ready, or failed where not a single step could be evaluated."""
        store = trajectory_store(self.base)
        told = told_from_json(store.told(row))
        problem = problem_of(told.problem)
        results = Results()
        for step in told.steps:
            sha256 = step.bundle.sha256
            if sha256 not in results.found and sha256 not in results.problems:
                self._evaluate(told, step.bundle, step.cases, results)
                self.said(f"step {step.number} of {len(told.steps)}: {_said(results, sha256)}")
        if not results.found:
            return Ended("failed", {"error": dict(results.first or {})})
        reference = self._reference(told, problem)
        tree = tree_of(told.steps, reference, results.found, results.problems)
        trajectory = self._trajectory(row, told, problem, tree)
        keys = {node.number: node.evaluation.key for node in tree if node.evaluation is not None}
        found = {
            "trajectory": trajectory.as_json(),
            "evaluations": {str(number): key for number, key in keys.items()},
        }
        return Ended("ready", {"reason": "", "error": None, **_outcome(told, tree)}, found)

    def _trajectory(
        self, row: StoredTrajectory, told: Told, problem: Problem, tree: Tree
    ) -> Trajectory:
        texts = {step.number: step.told for step in told.steps}
        return Trajectory(
            id=row.id,
            subject=subject_of(problem, main_dtype(self.base, problem), measured_sizes(tree)),
            hardware=told.hardware,
            lineage=tuple(self.base.registry.lineage(told.hardware)),
            steps=steps_of(tree, texts),
            evaluated_here=True,
            actor=told.actor,
        )

    # -- one evaluation

    def _reference(self, told: Told, problem: Problem) -> Evaluation | None:
        """On its first timed case, as a run evaluates it; None where the chip's own tools do not
        take torch, or it could not be measured."""
        try:
            device = choose_target(self.base, told.hardware, "torch").target.device
            cases = [c for c in problem.searched if c.timed and c.fits(device or "cpu")]
            if device is None or not cases:
                return None
            source = substituted(problem, cases[0].constants)
            bundle = Bundle({"reference.py": source}, "reference.py", "torch", "Model")
            ask_for(self.base, problem, bundle, hardware=told.hardware)
        except (InvalidRequest, Unavailable):
            return None
        results = Results()
        self._evaluate(told, bundle, (cases[0].name,), results)
        return results.found.get(bundle.sha256)

    def _evaluate(
        self, told: Told, bundle: Bundle, cases: tuple[str, ...], results: Results
    ) -> None:
        place: Path | str = told.problem.source
        if told.problem.name is not None:
            place = problem_of(told.problem).path.parent
        sent = Sent(place, told.problem.toml, bundle, told.hardware, cases)
        job = self._ended(self._placed(sent))
        if job.result is not None:
            results.found[bundle.sha256] = evaluation_from_json(job.result)
            return
        error = job.error or {}
        results.problems[bundle.sha256] = str(error.get("message", "it was not evaluated"))
        results.first = results.first or error

    def _placed(self, sent: Sent) -> str:
        """The job's id, once there is a place in the queue."""
        deadline = time.monotonic() + FULL_SECONDS
        while True:
            try:
                return self.evaluations.submit(sent).id
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            self._pause()

    def _ended(self, job_id: str) -> Any:
        while True:
            job = self.evaluations.get(job_id)
            if job.state in ("ready", "failed"):
                return job
            self._pause()

    def _pause(self) -> None:
        if self.stopped():
            raise Stopped
        time.sleep(POLL_SECONDS)


def verify(work: Reevaluation, row: StoredTrajectory, owner: str) -> StoredTrajectory:
    """Carry out a queued one and record how it ended; one that somebody else works on is left.

    Where that cannot be recorded, the lease runs out and the trajectory is queued again."""
    store = trajectory_store(work.base)
    seconds = work.base.settings.lease_seconds
    if not store.take(row.id, owner, seconds):
        return store.find(row.id)
    with renewed(store, row.id, owner, seconds) as lost:

        def stopped() -> bool:
            return work.stopped() or lost.is_set()

        try:
            ended = _ended(replace(work, stopped=stopped), row)
        except Stopped:
            store.release(row.id, owner)
        except KeyboardInterrupt:  # what was evaluated is stored under its key; the rest can follow
            store.release(row.id, owner)
            raise
        else:
            if not store.end(row.id, owner, ended.state, ended.found, **ended.summary):
                log.warning("trajectory lost", trajectory=row.id, reason="its lease ran out")
    return store.find(row.id)


def _ended(work: Reevaluation, row: StoredTrajectory) -> Ended:
    try:
        return work.carry_out(row)
    except KernloreError as error:
        return Ended("failed", {"error": error.as_json()})
    except KeyError as error:
        return Ended("failed", {"error": _damaged(error).as_json()})


def _damaged(error: KeyError) -> NotFound:
    return NotFound(f"the stored trajectory lacks {error}", hint="Send it again.")


def _said(results: Results, sha256: str) -> str:
    found = results.found.get(sha256)
    if found is None:
        return f"not evaluated: {results.problems[sha256]}"
    return f"{found.validity} {found.speedup or ''}".strip()


def _outcome(told: Told, tree: Tree) -> dict[str, Any]:
    """For lists: what was found, with what was claimed beside it."""
    rows = [_step_row(tree, step.number, step.claimed_speedup) for step in told.steps]
    best = tree.best
    return {
        "best": None if best is None else best.number,
        "verdicts": rows,
        "refuted": [row["step"] for row in rows if row["refuted"]],
        "flagged": [row["step"] for row in rows if row["flags"]],
        "not_evaluated": [row["step"] for row in rows if row["validity"] is None],
    }


def _step_row(tree: Tree, number: int, claim: float | None) -> dict[str, Any]:
    node = tree[number]
    found = node.evaluation if node.same_as is None else tree[node.same_as].evaluation
    speedup = found.speedup if found is not None else None
    return {
        "step": number,
        "validity": found.validity if found is not None else None,
        "timing": found.timing if found is not None else None,
        "speedup": None if speedup is None else vars(speedup),
        "claimed_speedup": claim,
        "refuted": _refuted(found, speedup, claim),
        "flags": [flag.message for flag in found.flags] if found is not None else [],
        "message": found.message if found is not None else node.problem,
    }


def _refuted(found: Evaluation | None, speedup: Interval | None, claim: float | None) -> bool:
    """Whether what was found here rules the claim out; it is used for nothing but this remark."""
    if claim is None or found is None:
        return False
    if not found.correct:
        return found.validity != "not_run"
    return speedup is not None and not speedup.low <= claim <= speedup.high
