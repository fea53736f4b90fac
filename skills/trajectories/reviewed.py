"""People's answers to integrity flags, applied to what is read.

Stored evaluations and trajectories stay as they were measured; what the curator distils and what is
exported is read through these functions. Accepted: the flags hold it no longer, and who took them
away is said in their place. Refused: it is as if a check had rejected it, without a figure. A
finding that ended an evaluation is nobody's to overrule, so no answer changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kb.catalog.search.reviews import Review
from optimizer.evaluation.records import Evaluation, Flag
from optimizer.search.records import Node
from optimizer.search.tree import Tree
from skills.curator.records import CaseFigure, Measured, Side, Step, Trajectory

Answers = Mapping[str, Review]  # by key of the evaluation


def flagged(found: Evaluation) -> tuple[str, ...]:
    """What waits for a person, in words; nothing for what a check rejected."""
    if found.validity == "rejected" or any(flag.severity == "reject" for flag in found.flags):
        return ()
    return tuple(flag.message for flag in found.flags)


def words(review: Review) -> str:
    """Who answered what, when and why."""
    return f"{review.decision} by {review.actor} on {review.created_at[:10]}: {review.reason}"


# -- as the curator reads it


def flagged_keys(trajectory: Trajectory) -> set[str]:
    """Keys of evaluations that an answer would change."""
    sides = (side for step in trajectory.steps for side in (step.parent, step.child))
    found = (side.measured for side in sides if side.measured is not None)
    return {measured.key for measured in found if _waits(measured)}


def reviewed_trajectory(trajectory: Trajectory, answers: Answers) -> Trajectory:
    """Every step with the answers to its two sides."""
    if not answers:
        return trajectory

    def side(told: Side) -> Side:
        answer = answers.get(told.measured.key) if told.measured is not None else None
        if told.measured is None or answer is None:
            return told
        return replace(told, measured=reviewed_measured(told.measured, answer))

    def step(told: Step) -> Step:
        return replace(told, parent=side(told.parent), child=side(told.child))

    return replace(trajectory, steps=tuple(map(step, trajectory.steps)))


def reviewed_measured(found: Measured, answer: Review) -> Measured:
    """Unchanged where nothing waits."""
    if not _waits(found):
        return found
    if answer.decision == "accepted":
        told = f"{words(answer)} (flagged: {'; '.join(found.flags)})"
        return replace(found, flags=(), reviewed=told)
    return replace(
        found,
        validity="rejected",
        timing="none",
        rejected=True,
        flags=(*found.flags, words(answer)),
        reviewed=words(answer),
        speedup=None,
        cases=tuple(map(_without_figure, found.cases)),
    )


def _waits(found: Measured) -> bool:
    return bool(found.flags) and not found.rejected and found.validity != "rejected"


def _without_figure(case: CaseFigure) -> CaseFigure:
    return replace(case, speedup=None)


# -- as it is exported


def flagged_in(tree: Tree) -> set[str]:
    """Keys of evaluations that an answer would change."""
    found = (node.evaluation for node in tree if node.evaluation is not None)
    return {evaluation.key for evaluation in found if flagged(evaluation)}


def reviewed_tree(tree: Tree, answers: Answers) -> Tree:
    """The same nodes; those that were answered have another evaluation."""
    if not answers:
        return tree

    def node(told: Node) -> Node:
        answer = answers.get(told.evaluation.key) if told.evaluation is not None else None
        if told.evaluation is None or answer is None:
            return told
        return replace(told, evaluation=reviewed_evaluation(told.evaluation, answer))

    return Tree(map(node, tree))


def reviewed_evaluation(found: Evaluation, answer: Review) -> Evaluation:
    """Unchanged where nothing waits. A refused one has no figure, as any that was rejected."""
    if not flagged(found):
        return found
    if answer.decision == "accepted":
        told = f"{words(answer)} (flagged: {'; '.join(flagged(found))})"
        return replace(found, flags=(), notes=(*found.notes, told))
    refusal = Flag(found.flags[0].defence, "reject", words(answer))
    return replace(
        found,
        validity="rejected",
        timing="none",
        message=f"a person refused it: {answer.reason}",
        flags=(*found.flags, refusal),
        timings=tuple(replace(timing, speedup=None) for timing in found.timings),
        speedup=None,
    )
