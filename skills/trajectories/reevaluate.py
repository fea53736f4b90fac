"""Evaluates every step of an external trajectory here and stores what was measured.

Each candidate goes through the evaluation queue as any other submission; by the journal's keys,
what was evaluated before is not evaluated again. Claims play no part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from kb.catalog.search.evaluations import Evaluations
from kb.catalog.search.trajectories import State, StoredTrajectory
from kb.errors import InvalidRequest, KernloreError, NotFound, Unavailable
from kb.jobs import ENDED, keep_lease
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.catalog_journal import CatalogJournal
from optimizer.evaluation.evaluate import ask_for, choose_target
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.runner_process import RunnerPool, RunnerSettings
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.problem.user_code import substituted
from optimizer.evaluation.queue import EvaluationQueue, Submission
from optimizer.evaluation.records import Evaluation, Interval, evaluation_from_json
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase
from skills.trajectories.accept import trajectory_store
from skills.trajectories.external_trajectory import (
    ExternalTrajectory,
    external_trajectory_from_json,
    problem_of,
    tree_of,
)
from skills.trajectories.reading import main_dtype, measured_sizes, steps_of, subject_of
from skills.trajectories.records import Trajectory

POLL_SECONDS = 0.2
FULL_SECONDS = 600.0  # how long to wait for a place in the queue

log = structlog.get_logger(__name__)


class Stopped(Exception):
    """The service ends, or the trajectory is somebody else's by now: they do the rest."""


@dataclass
class Results:
    """Evaluations, and why there is none, by sha256 of the bundle. `first` is the first error."""

    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    first: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Ended:
    """How a re-evaluation ended. `summary` is for lists; `measured` is what was measured, where it
    is ready."""

    state: State
    summary: Mapping[str, Any]
    measured: Mapping[str, Any] | None = None


@dataclass
class Reevaluation:
    """The re-evaluation of one trajectory. `stopped` is called between polls and ends it; `report`
    gets a sentence for each step. Nothing is stored here but evaluations."""

    base: KnowledgeBase
    evaluations: EvaluationQueue
    stopped: Callable[[], bool] = lambda: False
    report: Callable[[str], None] = lambda message: None

    def carry_out(self, row: StoredTrajectory) -> Ended:
        """Evaluate all steps: ready, or failed where not a single step could be evaluated. Raises
        Stopped, and KernloreError where the trajectory cannot be read."""
        store = trajectory_store(self.base)
        external = external_trajectory_from_json(store.report(row))
        problem = problem_of(external.problem)
        results = Results()
        for step in external.steps:
            sha256 = step.bundle.sha256
            if sha256 not in results.evaluations and sha256 not in results.problems:
                self._evaluate(external, problem, step.bundle, step.cases, results)
                self.report(
                    f"step {step.number} of {len(external.steps)}: {_result_line(results, sha256)}"
                )
        if not results.evaluations:
            return Ended("failed", {"error": dict(results.first or {})})
        reference = self._reference(external, problem)
        tree = tree_of(external.steps, reference, results.evaluations, results.problems)
        trajectory = self._trajectory(row, external, problem, tree)
        keys = {node.number: node.evaluation.key for node in tree if node.evaluation is not None}
        measured = {
            "trajectory": trajectory.as_json(),
            "evaluations": {str(number): key for number, key in keys.items()},
        }
        return Ended("ready", {"reason": "", "error": None, **_outcome(external, tree)}, measured)

    def _trajectory(
        self, row: StoredTrajectory, external: ExternalTrajectory, problem: Problem, tree: Tree
    ) -> Trajectory:
        texts = {step.number: step.texts for step in external.steps}
        return Trajectory(
            id=row.id,
            subject=subject_of(problem, main_dtype(self.base, problem), measured_sizes(tree)),
            hardware=external.hardware,
            lineage=tuple(self.base.registry.lineage(external.hardware)),
            steps=steps_of(tree, texts),
            evaluated_here=True,
            actor=external.actor,
        )

    # -- one evaluation

    def _reference(self, external: ExternalTrajectory, problem: Problem) -> Evaluation | None:
        """On its first timed case, as a run evaluates it; None where the chip's own tools do not
        take torch, or it could not be measured."""
        try:
            device = choose_target(self.base, external.hardware, "torch").target.device
            cases = [c for c in problem.searched if c.timed and c.fits(device or "cpu")]
            if device is None or not cases:
                return None
            source = substituted(problem, cases[0].constants)
            bundle = Bundle({"reference.py": source}, "reference.py", "torch", "Model")
            ask_for(self.base, problem, bundle, hardware=external.hardware)
        except (InvalidRequest, Unavailable):
            return None
        results = Results()
        self._evaluate(external, problem, bundle, (cases[0].name,), results)
        return results.evaluations.get(bundle.sha256)

    def _evaluate(
        self,
        external: ExternalTrajectory,
        problem: Problem,
        bundle: Bundle,
        cases: tuple[str, ...],
        results: Results,
    ) -> None:
        earlier = self._earlier(problem, bundle, external.hardware, cases)
        if earlier is not None:
            results.evaluations[bundle.sha256] = earlier
            return
        place: Path | str = external.problem.source
        if external.problem.name is not None:
            place = problem_of(external.problem).path.parent
        sent = Submission(place, external.problem.toml, bundle, external.hardware, cases)
        job = self._ended(self._placed(sent))
        if job.result is not None:
            results.evaluations[bundle.sha256] = evaluation_from_json(job.result)
            return
        error = job.error or {}
        results.problems[bundle.sha256] = str(error.get("message", "it was not evaluated"))
        results.first = results.first or error

    def _earlier(
        self, problem: Problem, bundle: Bundle, hardware: str, cases: tuple[str, ...]
    ) -> Evaluation | None:
        """What an evaluation would find in the journal, without the process that it takes; None
        where it has to be carried out, or cannot be."""
        try:
            asked = ask_for(self.base, problem, bundle, hardware=hardware, cases=cases)
        except KernloreError:
            return None  # the queue says so, for this step alone
        settings, device = EvaluationSettings(), asked.chosen.target.device or "cpu"
        journal = CatalogJournal(Evaluations(self.base.catalog), self.base.blobs)
        level = level_for(settings.isolation, device)
        pool = RunnerPool(RunnerSettings(device, settings.threads, level), spare=0, fork=False)
        try:
            with Evaluator(problem, asked.chosen.target, settings, journal, pool=pool) as evaluator:
                chosen = asked.cases if asked.cases is not None else problem.searched
                fitting = tuple(case for case in chosen if case.fits(device))
                earlier = journal.finished(evaluator.key(bundle, asked.toolchain, fitting))
        finally:
            pool.close()
        return None if earlier is None or earlier.timing == "repeat" else earlier

    def _placed(self, sent: Submission) -> str:
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
            if job.state in ENDED:
                return job
            self._pause()

    def _pause(self) -> None:
        if self.stopped():
            raise Stopped
        time.sleep(POLL_SECONDS)


def verify(work: Reevaluation, row: StoredTrajectory, owner: str) -> StoredTrajectory:
    """Re-evaluate a queued trajectory and record how it ended; one that another worker has is left.

    `owner` names this worker. Where the end cannot be recorded, the lease runs out and the
    trajectory is queued again.
    """
    store = trajectory_store(work.base)
    if not store.take(row.id, owner, work.base.settings.lease_seconds):
        return store.find(row.id)
    return verify_taken(work, row, owner)


def verify_taken(work: Reevaluation, row: StoredTrajectory, owner: str) -> StoredTrajectory:
    """As `verify`, of a trajectory that the owner has taken."""
    store = trajectory_store(work.base)
    seconds = work.base.settings.lease_seconds

    def renew() -> bool:
        return store.renew(row.id, owner, seconds)

    with keep_lease(renew, seconds, f"lease of {row.id}") as lost:

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
            if not store.end(row.id, owner, ended.state, ended.measured, **ended.summary):
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


def _result_line(results: Results, sha256: str) -> str:
    evaluation = results.evaluations.get(sha256)
    if evaluation is None:
        return f"not evaluated: {results.problems[sha256]}"
    return f"{evaluation.validity} {evaluation.speedup or ''}".strip()


def _outcome(external: ExternalTrajectory, tree: Tree) -> dict[str, Any]:
    """For lists: what was measured, with what was claimed beside it."""
    rows = [_step_row(tree, step.number, step.claimed_speedup) for step in external.steps]
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
    evaluation = node.evaluation if node.same_as is None else tree[node.same_as].evaluation
    speedup = evaluation.speedup if evaluation is not None else None
    return {
        "step": number,
        "validity": evaluation.validity if evaluation is not None else None,
        "timing": evaluation.timing if evaluation is not None else None,
        "speedup": None if speedup is None else vars(speedup),
        "claimed_speedup": claim,
        "refuted": _refuted(evaluation, speedup, claim),
        "flags": [flag.message for flag in evaluation.flags] if evaluation is not None else [],
        "message": evaluation.message if evaluation is not None else node.problem,
    }


def _refuted(evaluation: Evaluation | None, speedup: Interval | None, claim: float | None) -> bool:
    """Whether what was measured here rules the claim out; it is used for this remark alone."""
    if claim is None or evaluation is None:
        return False
    if not evaluation.correct:
        return evaluation.validity != "not_run"
    return speedup is not None and not speedup.low <= claim <= speedup.high
