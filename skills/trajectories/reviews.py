"""What waits for a person in a run or an external trajectory, the person's answer, and the answers
applied to what is read.

An answer is of an evaluation, so it holds wherever that evaluation is read: other runs that met the
same candidate under the same conditions are answered with it. Stored evaluations and trajectories
stay as they were measured; what the curator distils and what is exported is read through these
functions. Accepted: the flags hold it no longer, and a note says who took them away. Refused: it is
as if a check had rejected it, without a figure. A finding that ended an evaluation is nobody's to
overrule, so no answer changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from kb.catalog.evaluations import Evaluations, Review, ReviewDecision, Reviews
from kb.catalog.trajectories import StoredTrajectory, Trajectories
from kb.errors import Conflict, NotFound
from kb.plain import Doc
from kb.scope import ALL_ACCESS, AccessScope
from optimizer.evaluation.records import Evaluation, Flag, Interval, evaluation_from_json
from optimizer.search.records import Node
from optimizer.search.runs.run_store import run_store
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase
from skills.trajectories.records import Side, Step, Trajectory

Answers = Mapping[str, Review]  # by key of the evaluation


# -- what waits, and the answer


@dataclass(frozen=True)
class FlaggedNode:
    """A candidate with flags that only a person can decide on. `evaluation` is the key of its
    evaluation; `review` is the newest decision, None while it waits.
    """

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
    flagged: list[FlaggedNode]


def flagged(evaluation: Evaluation) -> tuple[str, ...]:
    """What waits for a person, in words; nothing for what a check rejected."""
    ended = any(flag.severity == "reject" for flag in evaluation.flags)
    if evaluation.validity == "rejected" or ended:
        return ()
    return tuple(flag.message for flag in evaluation.flags)


def words(review: Review) -> str:
    """Who answered what, when and why."""
    return f"{review.decision} by {review.actor} on {review.created_at[:10]}: {review.reason}"


def flagged_nodes(
    base: KnowledgeBase, identity: str, access_scope: AccessScope = ALL_ACCESS
) -> list[FlaggedNode]:
    """The flagged nodes of a run or an external trajectory, in their order; answered ones too, as
    an answer can be changed. Raises NotFound, and Conflict for an external trajectory that was not
    measured here."""
    waiting = {
        number: evaluation
        for number, evaluation in _evaluations(base, identity).items()
        if flagged(evaluation)
    }
    keys = (evaluation.key for evaluation in waiting.values())
    reviews = Reviews(base.catalog, access_scope).latest(keys)
    return [_flagged(number, evaluation, reviews) for number, evaluation in waiting.items()]


def review_node(
    base: KnowledgeBase,
    identity: str,
    number: int,
    decision: str,
    actor: str,
    reason: str,
    access_scope: AccessScope = ALL_ACCESS,
) -> FlaggedNode:
    """Answer the flags of a node. `decision` is accepted or refused. Raises NotFound,
    InvalidRequest, and Conflict where nothing of it waits for a person."""
    evaluation = _evaluations(base, identity).get(number)
    if evaluation is None:
        raise NotFound(
            f"{identity} has no node {number} that was evaluated",
            hint=f"`kernlore runs flagged {identity}` shows what waits for a person.",
        )
    reviews = Reviews(base.catalog, access_scope)
    answer = reviews.add(evaluation.key, decision, actor, reason)
    return _flagged(number, evaluation, {evaluation.key: answer})


def _flagged(number: int, evaluation: Evaluation, reviews: Mapping[str, Review]) -> FlaggedNode:
    review = reviews.get(evaluation.key)
    return FlaggedNode(
        number,
        evaluation.speedup,
        flagged(evaluation),
        evaluation.key,
        None if review is None else review.decision,
        review,
        "waits for a person" if review is None else words(review),
    )


def _evaluations(base: KnowledgeBase, identity: str) -> dict[int, Evaluation]:
    """By number of the node. A node that repeats another one is answered with that one."""
    if not identity.startswith("run_"):
        return dict(_external(base, identity))
    store = run_store(base)
    store.run(identity)
    nodes = store.nodes(identity)
    return {node.number: node.evaluation for node in nodes if node.evaluation is not None}


def _external(base: KnowledgeBase, identity: str) -> Iterator[tuple[int, Evaluation]]:
    store = Trajectories(base.catalog, base.blobs, base.access)
    row = store.find(identity)
    measured = store.results(row)
    if row.state != "ready" or measured is None:
        raise not_measured(row)
    rows = Evaluations(base.catalog, base.access)
    for number, key in measured["evaluations"].items():
        stored = rows.find(key)
        if stored is not None and stored.record is not None:
            yield int(number), evaluation_from_json(stored.record)


def not_measured(row: StoredTrajectory) -> Conflict:
    """The error for an external trajectory that was not evaluated here."""
    return Conflict(
        f"{row.id} is {row.state}: nothing of it was measured here",
        hint="Wait until it is ready, or verify it where its hardware is.",
    )


# -- answers applied to what is read


def reviewed_evaluation(evaluation: Evaluation, answer: Review) -> Evaluation:
    """The evaluation with a person's answer; unchanged where nothing waits. A refused one has no
    figure, as any that was rejected."""
    if not flagged(evaluation):
        return evaluation
    if answer.decision == "accepted":
        note = f"{words(answer)} (flagged: {'; '.join(flagged(evaluation))})"
        return replace(evaluation, flags=(), notes=(*evaluation.notes, note))
    refusal = Flag(evaluation.flags[0].defence, "reject", words(answer))
    return replace(
        evaluation,
        validity="rejected",
        timing="none",
        message=f"a person refused it: {answer.reason}",
        flags=(*evaluation.flags, refusal),
        timings=tuple(replace(timing, speedup=None) for timing in evaluation.timings),
        speedup=None,
    )


def reviewed_side(side: Side, answers: Answers) -> Side:
    """The side with a person's answer to its evaluation; unchanged where nothing waits or nobody
    answered."""
    evaluation = side.evaluation
    answer = answers.get(evaluation.key) if evaluation is not None else None
    if evaluation is None or answer is None or not flagged(evaluation):
        return side
    reviewed = reviewed_evaluation(evaluation, answer)
    summary = reviewed.notes[-1] if answer.decision == "accepted" else words(answer)
    return replace(side, evaluation=reviewed, reviewed=summary)


def flagged_keys(trajectory: Trajectory) -> set[str]:
    """Keys of evaluations that an answer would change."""
    sides = (side for step in trajectory.steps for side in (step.parent, step.child))
    evaluations = (side.evaluation for side in sides if side.evaluation is not None)
    return {evaluation.key for evaluation in evaluations if flagged(evaluation)}


def reviewed_trajectory(trajectory: Trajectory, answers: Answers) -> Trajectory:
    """Every step with the answers to its two sides."""
    if not answers:
        return trajectory

    def reviewed(step: Step) -> Step:
        parent, child = reviewed_side(step.parent, answers), reviewed_side(step.child, answers)
        return replace(step, parent=parent, child=child)

    return replace(trajectory, steps=tuple(map(reviewed, trajectory.steps)))


def flagged_in(tree: Tree) -> set[str]:
    """Keys of evaluations that an answer would change."""
    evaluations = (node.evaluation for node in tree if node.evaluation is not None)
    return {evaluation.key for evaluation in evaluations if flagged(evaluation)}


def reviewed_tree(tree: Tree, answers: Answers) -> Tree:
    """The same nodes; those that were answered have another evaluation."""
    if not answers:
        return tree

    def reviewed(node: Node) -> Node:
        answer = answers.get(node.evaluation.key) if node.evaluation is not None else None
        if node.evaluation is None or answer is None:
            return node
        return replace(node, evaluation=reviewed_evaluation(node.evaluation, answer))

    return Tree(map(reviewed, tree))
