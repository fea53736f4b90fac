"""Searches read back from the store: runs, and external trajectories that were evaluated here, with
people's decisions about integrity flags.

A decision belongs to an evaluation, so it holds for every search that has the same candidate under
the same conditions. Stored evaluations and trajectories are never changed: decisions are applied on
reading. An accepted candidate is no longer held, a refused one counts as rejected; both keep their
flags and their figure. A candidate that a check rejected cannot be accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Required

from typing_extensions import TypedDict

from kb.catalog.evaluations import Evaluations, Review, ReviewDecision, Reviews
from kb.catalog.trajectories import StoredTrajectory, Trajectories
from kb.errors import Conflict, InvalidRequest, NotFound
from kb.plain import Doc, from_json, plain
from kb.scope import ALL_ACCESS, AccessScope
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation, Flag, Interval
from optimizer.search.records import REFERENCE, Node, Proposal
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import RunRow
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase
from skills.trajectories.external import (
    ExternalTrajectory,
    external_trajectory_from_json,
    problem_of,
    tree_of,
)
from skills.trajectories.records import (
    Trajectory,
    main_case,
    problem_of_trajectory,
    steps_of,
    trajectory_from_json,
)

if TYPE_CHECKING:
    from optimizer.search.synthesizers.llm.conversation import FolderTranscripts, ModelTranscript

ReviewsByKey = Mapping[str, Review]  # key of the evaluation -> the newest decision about its flags


class ListedTrajectory(TypedDict, total=False):
    """The search of another optimizer, or a run as one."""

    id: Required[str]
    origin: Required[str]
    state: Required[Annotated[str, Doc("queued, running, ready, failed or unverified.")]]
    created_at: Required[str | None]


class ListedTrajectories(TypedDict):
    """Trajectories, newest first."""

    trajectories: list[ListedTrajectory]


class ShownTrajectory(TypedDict, total=False):
    """A trajectory; `trajectory` is there once it was measured."""

    id: Required[str]
    state: str
    trajectory: dict[str, Any] | None


@dataclass(frozen=True)
class StoredSearch:
    """A run, or an external trajectory that was evaluated here, as a search tree.

    `run` or `external` is set. `record` is the stored trajectory of an external one.
    """

    id: str
    hardware: str
    tree: Tree
    run: RunRow | None = None
    external: ExternalTrajectory | None = None
    record: Mapping[str, Any] | None = None

    def problem(self) -> Problem:
        """Load the problem; none of its code runs. Raises InvalidRequest for a run whose problem
        file was changed."""
        if self.run is not None:
            return searched_problem(self.run)
        assert self.external is not None
        return problem_of(self.external.problem)


def trajectory_store(base: KnowledgeBase) -> Trajectories:
    return Trajectories(base.catalog, base.blobs, base.access)


def stored_search(base: KnowledgeBase, identity: str) -> StoredSearch:
    """The search of a run id or the id of an external trajectory, as it was measured. Raises
    NotFound, and Conflict for an external trajectory that was not evaluated here."""
    if identity.startswith("run_"):
        store = run_store(base)
        run = store.run(identity)
        return StoredSearch(identity, run.hardware, Tree(store.nodes(identity)), run=run)
    trajectories = trajectory_store(base)
    row = trajectories.find(identity)
    results = trajectories.results(row)
    if row.state != "ready" or results is None:
        raise Conflict(
            f"{row.id} is {row.state}: it has no measurements of this machine",
            hint="Wait until it is ready, or verify it on a machine that has its hardware.",
        )
    external = external_trajectory_from_json(trajectories.report(row))
    return StoredSearch(
        identity,
        external.hardware,
        _external_tree(base, external, results["evaluations"]),
        external=external,
        record=results["trajectory"],
    )


def _external_tree(
    base: KnowledgeBase, external: ExternalTrajectory, keys: Mapping[str, str]
) -> Tree:
    """`keys` maps the number of a node to the key of its evaluation."""
    rows = Evaluations(base.catalog, base.access)

    def evaluation(number: int) -> Evaluation | None:
        stored = rows.find(keys[str(number)]) if str(number) in keys else None
        if stored is None or stored.record is None:
            return None
        return from_json(Evaluation, stored.record)

    by_bundle = {
        step.bundle.sha256: measured
        for step in external.steps
        if (measured := evaluation(step.number)) is not None
    }
    return tree_of(external.steps, evaluation(REFERENCE), by_bundle, {})


def searched_problem(run: RunRow) -> Problem:
    """The problem of a run. Raises InvalidRequest if its file was changed after the search."""
    problem = load_problem(Path(run.problem))
    if problem.sha256 != run.problem_sha256:
        raise InvalidRequest(
            f"{run.problem} was changed after {run.id} searched it",
            hint="Restore the file as it was searched, or leave this run out.",
        )
    return problem


def main_dtype(base: KnowledgeBase, problem: Problem) -> str | None:
    """The element type of the problem's main case: as declared, else as it was evaluated."""
    main = main_case(problem)
    return main.dtype or trajectory_store(base).dtype_of(problem.sha256, main.name)


def stored_transcript(transcripts: FolderTranscripts, proposal: Proposal) -> ModelTranscript | None:
    """The conversation that led to a proposal; None if it is not stored."""
    run, _, place = (proposal.transcript or "").rpartition("/")
    step, _, attempt = place.partition("-")
    if not (run and step.isdigit() and attempt.isdigit()):
        return None
    return transcripts.read(run, int(step), int(attempt))


# -- as trajectories


def trajectory(base: KnowledgeBase, identity: str) -> Trajectory:
    """A search as the curator reads it, with people's decisions. Raises as `stored_search`."""
    return trajectory_of(base, stored_search(base, identity))


def trajectory_of(base: KnowledgeBase, search: StoredSearch) -> Trajectory:
    """A stored search as a trajectory, with people's decisions about flags."""
    reviews = Reviews(base.catalog, base.access).latest(flagged_keys(search.tree))
    tree = reviewed_tree(search.tree, reviews)
    texts: dict[int, tuple[str, ...]] = {}
    provenance: dict[int, Mapping[str, str]] = {}
    if search.record is not None and search.external is not None:
        described = trajectory_from_json(search.record)
        texts = {step.number: step.texts for step in search.external.steps}
        provenance = {step.number: step.provenance for step in search.external.steps}
    else:
        problem = search.problem()
        described = Trajectory(
            id=search.id,
            subject=problem_of_trajectory(problem, main_dtype(base, problem), tree),
            hardware=search.hardware,
            lineage=tuple(base.registry.lineage_or_id(search.hardware)),
            steps=(),
            evaluated_here=True,
        )
    steps = steps_of(tree, texts, review_notes(search.tree, reviews), provenance)
    return replace(described, steps=steps)


def review_notes(tree: Tree, reviews: ReviewsByKey) -> dict[str, str]:
    """People's decisions as sentences, by key of the evaluation."""
    evaluations = [node.evaluation for node in tree if node.evaluation is not None]
    return {e.key: review_note(e, reviews[e.key]) for e in evaluations if e.key in reviews}


def list_trajectories(base: KnowledgeBase, *, with_runs: bool = False) -> list[ListedTrajectory]:
    """External trajectories, newest first; with `with_runs` followed by runs, newest first."""
    rows = [trajectory_row(row) for row in trajectory_store(base).latest()]
    for run in run_store(base).latest() if with_runs else ():
        rows.append(
            {
                "id": run.id,
                "origin": "run",
                "state": run.state,
                "problem": run.problem,
                "hardware": run.hardware,
                "steps": None,
                "created_at": None,
            }
        )
    return [plain(row) for row in rows]


def show_trajectory(base: KnowledgeBase, trajectory_id: str) -> ShownTrajectory:
    """`trajectory` is present once the state is ready. The id of a run may be given too."""
    identity = trajectory_id
    if identity.startswith("run_"):
        answer: dict[str, Any] = {"id": identity, "trajectory": _shown(base, identity)}
    else:
        row = trajectory_store(base).find(identity)
        measured = _shown(base, row.id) if row.state == "ready" else None
        answer = trajectory_row(row, trajectory=measured)
    shown: ShownTrajectory = plain(answer)
    return shown


def _shown(base: KnowledgeBase, identity: str) -> dict[str, Any]:
    """The stored form of a trajectory, with `reviewed` for every measured kernel."""
    record = trajectory(base, identity).as_json()
    for step in record["steps"]:
        for kernel in (step["parent"], step["child"]):
            if kernel["measured"] is not None:
                kernel["measured"].setdefault("reviewed", "")
    return record


def trajectory_row(row: StoredTrajectory, **more: Any) -> dict[str, Any]:
    """An external trajectory as lists, HTTP and the command line show it."""
    summary = dict(row.summary)
    untimed = untimed_steps(summary)
    if untimed:
        busy = (
            "it was not timed: the machine was busy. Stop other work and run"
            f" `kernlore trajectories verify {row.id}`"
        )
        summary["verdicts"] = [
            {**v, "message": v["message"] or busy} if v["step"] in untimed else v
            for v in summary["verdicts"]
        ]
    return {
        "id": row.id,
        "origin": row.origin,
        "state": row.state,
        "created_at": row.created_at,
        **summary,
        "evaluated_here": row.state == "ready",
        **more,
    }


def untimed_steps(summary: Mapping[str, Any]) -> list[int]:
    """The steps of a ready trajectory that the machine was too busy to time."""
    verdicts = summary.get("verdicts") or ()
    return [verdict["step"] for verdict in verdicts if verdict.get("timing") == "repeat"]


# -- flags that wait for a person


@dataclass(frozen=True)
class FlaggedCandidate:
    """A node with flags that a person decides on. `evaluation` is its key, `review` the newest
    decision, None before one."""

    node: int
    speedup: Interval | None
    flags: tuple[str, ...]
    evaluation: str
    decision: ReviewDecision | None
    review: Review | None
    told: Annotated[str, Doc("The decision in words.")]


@dataclass(frozen=True)
class FlaggedNodes:
    """The candidates of a run that wait for a person."""

    run: str
    flagged: list[FlaggedCandidate]


def flagged_nodes(
    base: KnowledgeBase, identity: str, access_scope: AccessScope = ALL_ACCESS
) -> list[FlaggedCandidate]:
    """The flagged nodes of a search in order, with decided ones, whose decision can be changed.
    Raises as `stored_search`."""
    tree = stored_search(base, identity).tree
    reviews = Reviews(base.catalog, access_scope).latest(flagged_keys(tree))
    return [
        _flagged(node.number, node.evaluation, reviews)
        for node in tree
        if node.evaluation is not None and open_flags(node.evaluation)
    ]


def review_node(
    base: KnowledgeBase,
    identity: str,
    number: int,
    decision: str,
    actor: str,
    reason: str,
    access_scope: AccessScope = ALL_ACCESS,
) -> FlaggedCandidate:
    """Decide about the flags of a node. `decision` is accepted or refused. Raises NotFound,
    InvalidRequest, and Conflict if none of its flags waits for a person."""
    tree = stored_search(base, identity).tree
    evaluation = tree[number].evaluation if 0 <= number < len(tree) else None
    if evaluation is None:
        raise NotFound(
            f"{identity} has no node {number} that was evaluated",
            hint=f"`kernlore runs flagged {identity}` shows what waits for a person.",
        )
    review = Reviews(base.catalog, access_scope).add(evaluation.key, decision, actor, reason)
    return _flagged(number, evaluation, {evaluation.key: review})


def _flagged(number: int, evaluation: Evaluation, reviews: ReviewsByKey) -> FlaggedCandidate:
    review = reviews.get(evaluation.key)
    return FlaggedCandidate(
        number,
        evaluation.speedup,
        open_flags(evaluation),
        evaluation.key,
        None if review is None else review.decision,
        review,
        "waits for a person" if review is None else review_sentence(review),
    )


def open_flags(evaluation: Evaluation) -> tuple[str, ...]:
    """The flags that a person decides on, as sentences; none of an evaluation that a check
    rejected."""
    ended = any(flag.severity == "reject" for flag in evaluation.flags)
    if evaluation.validity == "rejected" or ended:
        return ()
    return tuple(flag.message for flag in evaluation.flags if flag.severity == "review")


def review_sentence(review: Review) -> str:
    return f"{review.decision} by {review.actor} on {review.created_at[:10]}: {review.reason}"


def review_note(evaluation: Evaluation, review: Review) -> str:
    """The decision as a sentence, with its flags and the figure that it is about: a decision about
    where a time comes from says nothing about how good it is, and hides neither."""
    flags = "; ".join(open_flags(evaluation))
    measured = f"; measured: {evaluation.speedup}" if evaluation.speedup is not None else ""
    return f"{review_sentence(review)} (flagged: {flags}{measured})"


def flagged_keys(tree: Tree) -> set[str]:
    """Keys of the evaluations that a decision would change."""
    evaluations = (node.evaluation for node in tree if node.evaluation is not None)
    return {evaluation.key for evaluation in evaluations if open_flags(evaluation)}


def reviewed_tree(tree: Tree, reviews: ReviewsByKey) -> Tree:
    """The tree with the decisions applied to the evaluations of its nodes."""

    def reviewed(node: Node) -> Node:
        review = reviews.get(node.evaluation.key) if node.evaluation is not None else None
        if node.evaluation is None or review is None:
            return node
        return replace(node, evaluation=reviewed_evaluation(node.evaluation, review))

    return Tree(map(reviewed, tree)) if reviews else tree


def reviewed_evaluation(evaluation: Evaluation, review: Review) -> Evaluation:
    """The evaluation with a person's decision; unchanged if none of its flags waits for one."""
    if not open_flags(evaluation):
        return evaluation
    note = review_note(evaluation, review)
    if review.decision == "accepted":
        decided = tuple(replace(flag, severity="accepted") for flag in evaluation.flags)
        return replace(evaluation, flags=decided, notes=(*evaluation.notes, note))
    flags = (*evaluation.flags, Flag(evaluation.flags[0].defence, "reject", note))
    message = f"a person refused it: {review.reason}"
    return replace(evaluation, validity="rejected", message=message, flags=flags)
