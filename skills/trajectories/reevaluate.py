"""Evaluates the steps of an external trajectory on this machine and stores the measurements.

Each candidate goes through the evaluation queue like any other submission; an evaluation that the
journal has under the same key is not repeated. Claims are only compared with the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from kb.catalog.evaluations import Evaluations
from kb.catalog.trajectories import State, StoredTrajectory
from kb.catalog.work import ENDED
from kb.errors import InvalidRequest, KernloreError, NotFound, Unavailable
from kb.plain import from_json
from kb.workers import keep_lease
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.catalog_journal import CatalogJournal
from optimizer.evaluation.evaluate import check_request, choose_target
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.runner_process import RunnerPool, RunnerSettings
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.problem.user_code import substituted
from optimizer.evaluation.queue import EvaluationQueue, Submission
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase
from skills.trajectories.external import (
    ExternalTrajectory,
    external_trajectory_from_json,
    problem_of,
    tree_of,
)
from skills.trajectories.reading import main_dtype, trajectory_store
from skills.trajectories.records import Trajectory, problem_of_trajectory, steps_of

POLL_SECONDS = 0.2
FULL_SECONDS = 600.0  # how long to wait for a place in the queue

log = structlog.get_logger(__name__)


class ReevaluationStopped(Exception):
    """The service ends, or another worker has the trajectory: it does the rest."""


@dataclass(frozen=True)
class ReevaluationEnd:
    """How a re-evaluation ended. `summary` is for lists; `measured` has the trajectory and the keys
    of its evaluations if it is ready."""

    state: State
    summary: Mapping[str, Any]
    measured: Mapping[str, Any] | None = None


@dataclass
class Reevaluation:
    """The re-evaluation of one trajectory. It ends once `stopped` returns True, which is called
    between polls; `report` gets a sentence for each step. Stores nothing but evaluations."""

    base: KnowledgeBase
    evaluations: EvaluationQueue
    stopped: Callable[[], bool] = lambda: False
    report: Callable[[str], None] = lambda message: None

    def carry_out(self, row: StoredTrajectory) -> ReevaluationEnd:
        """Evaluate all steps: `ready`, or `failed` if none could be evaluated. Raises
        ReevaluationStopped, and KernloreError for a trajectory that cannot be read."""
        external = external_trajectory_from_json(trajectory_store(self.base).report(row))
        problem = problem_of(external.problem)
        evaluations: dict[str, Evaluation] = {}  # by sha256 of the bundle
        errors: dict[str, Mapping[str, Any]] = {}
        problems: dict[str, str] = {}
        for step in external.steps:
            sha256 = step.bundle.sha256
            if sha256 in evaluations or sha256 in errors:
                continue
            result = self._evaluate(external, problem, step.bundle, step.cases)
            if isinstance(result, Evaluation):
                evaluations[sha256] = result
                line = f"{result.validity} {result.speedup or ''}".strip()
            else:
                errors[sha256] = result
                problems[sha256] = str(result.get("message", "it was not evaluated"))
                line = f"not evaluated: {problems[sha256]}"
            self.report(f"step {step.number} of {len(external.steps)}: {line}")
        if not evaluations:
            first = next((error for error in errors.values() if error), {})
            return ReevaluationEnd("failed", {"error": dict(first)})
        reference = self._reference(external, problem)
        return measured_end(self.base, row.id, external, problem, reference, evaluations, problems)

    # -- one evaluation

    def _reference(self, external: ExternalTrajectory, problem: Problem) -> Evaluation | None:
        """The reference on its first timed case, as a run evaluates it; None if the chip's tools do
        not take torch, or it could not be measured."""
        try:
            device = choose_target(self.base, external.hardware, "torch").target.device
            cases = [c for c in problem.searched if c.timed and c.fits(device or "cpu")]
            if device is None or not cases:
                return None
            source = substituted(problem, cases[0].constants)
            bundle = Bundle({"reference.py": source}, "reference.py", "torch", "Model")
            check_request(self.base, problem, bundle, hardware=external.hardware)
        except (InvalidRequest, Unavailable):
            return None
        result = self._evaluate(external, problem, bundle, (cases[0].name,))
        return result if isinstance(result, Evaluation) else None

    def _evaluate(
        self, external: ExternalTrajectory, problem: Problem, bundle: Bundle, cases: tuple[str, ...]
    ) -> Evaluation | Mapping[str, Any]:
        """The evaluation of a bundle, or the error of its job."""
        stored = self._stored(problem, bundle, external.hardware, cases)
        if stored is not None:
            return stored
        place: Path | str = external.problem.source
        if external.problem.name is not None:
            place = problem.path.parent
        sent = Submission(place, external.problem.toml, bundle, external.hardware, cases)
        job_id = self._submitted(sent)
        while (job := self.evaluations.get(job_id)).state not in ENDED:
            self._pause()
        return job.error or {} if job.result is None else from_json(Evaluation, job.result)

    def _stored(
        self, problem: Problem, bundle: Bundle, hardware: str, cases: tuple[str, ...]
    ) -> Evaluation | None:
        """The finished evaluation of the journal with the same key, or None. Looking it up here
        saves starting a process."""
        try:
            asked = check_request(self.base, problem, bundle, hardware=hardware, cases=cases)
        except KernloreError:
            return None  # the queue will report it for this step alone
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

    def _submitted(self, sent: Submission) -> str:
        """Submit an evaluation once the queue has room; returns the id of its job."""
        deadline = time.monotonic() + FULL_SECONDS
        while True:
            try:
                return self.evaluations.submit(sent).id
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            self._pause()

    def _pause(self) -> None:
        if self.stopped():
            raise ReevaluationStopped
        time.sleep(POLL_SECONDS)


def measured_end(
    base: KnowledgeBase,
    identity: str,
    external: ExternalTrajectory,
    problem: Problem,
    reference: Evaluation | None,
    evaluations: Mapping[str, Evaluation],
    problems: Mapping[str, str],
) -> ReevaluationEnd:
    """The end of a trajectory whose steps were evaluated. `evaluations` maps the sha256 of a bundle
    to its evaluation, `problems` to the reason why it has none."""
    tree = tree_of(external.steps, reference, evaluations, problems)
    trajectory = Trajectory(
        id=identity,
        subject=problem_of_trajectory(problem, main_dtype(base, problem), tree),
        hardware=external.hardware,
        lineage=tuple(base.registry.lineage(external.hardware)),
        steps=steps_of(
            tree,
            {step.number: step.texts for step in external.steps},
            provenance={step.number: step.provenance for step in external.steps},
        ),
        evaluated_here=True,
        actor=external.actor,
    )
    keys = {str(node.number): node.evaluation.key for node in tree if node.evaluation is not None}
    measured = {"trajectory": trajectory.as_json(), "evaluations": keys}
    summary = {"reason": "", "error": None, **_outcome(external, tree)}
    return ReevaluationEnd("ready", summary, measured)


def verify(work: Reevaluation, row: StoredTrajectory, owner: str) -> StoredTrajectory:
    """Re-evaluate a queued trajectory and store the result; one that another worker has is left
    alone.

    `owner` names this worker. If the result cannot be stored, the lease runs out and the trajectory
    is queued again.
    """
    store = trajectory_store(work.base)
    if not store.take(row.id, owner, work.base.settings.lease_seconds):
        return store.find(row.id)
    return verify_claimed(work, row, owner)


def verify_claimed(work: Reevaluation, row: StoredTrajectory, owner: str) -> StoredTrajectory:
    """As `verify`, for a trajectory that the owner has claimed."""
    store = trajectory_store(work.base)
    seconds = work.base.settings.lease_seconds

    def renew() -> bool:
        return store.renew(row.id, owner, seconds)

    with keep_lease(renew, seconds, f"lease of {row.id}") as lost:

        def stopped() -> bool:
            return work.stopped() or lost.is_set()

        try:
            ended = _ended(replace(work, stopped=stopped), row)
        except ReevaluationStopped:
            store.release(row.id, owner)
        except KeyboardInterrupt:  # finished evaluations are stored; the rest can follow
            store.release(row.id, owner)
            raise
        else:
            if not store.end(row.id, owner, ended.state, ended.measured, **ended.summary):
                log.warning("trajectory lost", trajectory=row.id, reason="its lease ran out")
    return store.find(row.id)


def _ended(work: Reevaluation, row: StoredTrajectory) -> ReevaluationEnd:
    try:
        return work.carry_out(row)
    except KernloreError as error:
        return ReevaluationEnd("failed", {"error": error.as_json()})
    except KeyError as error:
        damaged = NotFound(f"the stored trajectory lacks {error}", hint="Send it again.")
        return ReevaluationEnd("failed", {"error": damaged.as_json()})


def _outcome(external: ExternalTrajectory, tree: Tree) -> dict[str, Any]:
    """The summary for lists: the measured and the claimed result of each step."""
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
        "refuted": _refuted(evaluation, claim),
        "flags": [flag.message for flag in evaluation.flags] if evaluation is not None else [],
        "message": evaluation.message if evaluation is not None else node.problem,
    }


def _refuted(evaluation: Evaluation | None, claim: float | None) -> bool:
    """Whether the measurement contradicts the claim."""
    if claim is None or evaluation is None:
        return False
    if not evaluation.correct:
        return evaluation.validity != "not_run"
    speedup = evaluation.speedup
    return speedup is not None and not speedup.low <= claim <= speedup.high
