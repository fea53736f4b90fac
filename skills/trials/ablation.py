"""A skill measured by leaving it out: two searches of the same problem with the same seed and
budget; the kernels that they stood at are then measured anew.

Recipes propose in both, so it needs no model. Candidates that both arms make are evaluated once.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence

from kb.catalog.skills import SkillRow
from kb.catalog.skills.support import AVOID
from kb.errors import KernloreError, Unavailable
from optimizer.evaluation.records import Interval
from optimizer.search.records import Node
from optimizer.search.runs.skill_moves import recipe_of, skill_of
from optimizer.search.synthesizers.recipe.recipe import Recipe
from optimizer.search.tree import Tree
from skills.curator.quantities import sizes_told
from skills.trajectories.build import ratio_of
from skills.trials.advantage import Advantage, advantage, standings
from skills.trials.forced import ForcedTrials
from skills.trials.held_out import Unseen
from skills.trials.searching import Searches, arm_of, confirmed, figure_of
from skills.trials.targets import MAX_TRIALS, admitted, nothing_unseen, targets
from skills.trials.trial_context import ConfirmingBench, Means
from skills.trials.verification import Arm, Trial


class LacksSkill(Exception):
    """A trial cannot tell anything: the skill made none of its candidates."""


class RecipeAblation:
    """Implements `skills.trials.verification.Ablation`."""

    def __init__(self, means: Means) -> None:
        self._means = means

    def trials(
        self, skill: SkillRow, budget: int, apart_from: Collection[tuple[str, str]] = ()
    ) -> Iterator[Trial]:
        """At most MAX_TRIALS. Raises Unavailable where there is nothing to try it on, or where it
        took no part in as many searches."""
        searches = Searches(self._means, budget)
        if skill.polarity == AVOID:
            yield from ForcedTrials(searches).of(skill, apart_from)
            return
        admitted(self._means, skill)
        recipe = recipe_of(skill)
        if recipe is None and not skill.moves:
            raise Unavailable(
                f"{skill.name} has neither a recipe nor moves",
                hint="Advice in words needs a model that reads it; approve it by hand.",
            )
        made, idle, seed = 0, list[str](), self._means.seed + len(apart_from)
        for unseen in targets(self._means, skill, apart_from):
            try:
                trial = self._trial(searches, skill, recipe, unseen, seed + made)
            except LacksSkill:
                idle.append(f"{unseen.problem.name} {unseen.case.name}")
                if len(idle) == MAX_TRIALS:
                    break  # each took as long as a trial
                continue
            made += 1
            yield trial
            if made == MAX_TRIALS:
                return
        if not made:
            raise _no_part(skill, idle, budget) if idle else nothing_unseen(skill)

    def _trial(
        self,
        searches: Searches,
        skill: SkillRow,
        recipe: Recipe | None,
        unseen: Unseen,
        seed: int,
    ) -> Trial:
        """seed: another one for each trial, so that one lucky order does not decide all."""
        began = time.time()
        languages = searches.languages(skill)
        with self._means.bench(unseen.problem) as bench:
            with_tree = searches.run(bench, unseen, seed, languages, skill, recipe)
            if not any(_by(skill, node) for node in with_tree):
                raise LacksSkill
            without_tree = searches.run(bench, unseen, seed, languages, without=skill.name)
            found, note = _advantage(bench, with_tree, without_tree, searches.budget)
        told = with_tree.root.evaluation
        assert told is not None
        wrong = [n for n in with_tree if _by(skill, n) and n.evaluation and not n.correct]
        best = with_tree.best
        return Trial(
            problem=unseen.problem.name,
            problem_sha256=unseen.problem.sha256,
            case=unseen.case.name,
            unseen=unseen.why,
            seed=seed,
            without=_arm(without_tree),
            with_skill=_arm(with_tree),
            gain=ratio_of(found.over),
            end=ratio_of(found.end),
            wrong=len(wrong),
            hardware=self._means.hardware.id,
            device=told.device,
            toolchain=best.evaluation.toolchain if best and best.evaluation else told.toolchain,
            note=note or f"{time.time() - began:.0f} s",
            sizes=sizes_told(unseen.problem, unseen.case),
        )


def _advantage(
    bench: ConfirmingBench, with_tree: Tree, without_tree: Tree, budget: int
) -> tuple[Advantage, str]:
    """Of every kernel that either search stood at, measured anew."""
    if with_tree.best is None:
        return Advantage(None, None), "the search with it found nothing correct"
    ours, theirs = (standings(tree.nodes[1:], budget) for tree in (with_tree, without_tree))
    try:
        found = advantage(ours, theirs, lambda node: _again(bench, node))
    except KernloreError as problem:
        return Advantage(None, None), problem.message
    if found.over is None:
        return found, "the machine was too busy to measure the winners again"
    same = found.over.low == found.over.high
    return found, "both arms stand at the same kernels" if same else ""


def _again(bench: ConfirmingBench, node: Node) -> Interval | None:
    """Of the reference over it."""
    assert node.proposal is not None  # the reference is nobody's candidate
    return figure_of(confirmed(bench, node.proposal))


def _no_part(skill: SkillRow, idle: Sequence[str], budget: int) -> Unavailable:
    return Unavailable(
        f"{skill.name} made no candidate in searches of {budget} on {', '.join(idle)}",
        hint="Give a larger --budget, or see with `kernlore skills show` when it is offered.",
    )


def _by(skill: SkillRow, node: Node) -> bool:
    """Whether the skill made the candidate: its recipe, or one of its moves."""
    proposal = node.proposal
    if proposal is None:
        return False
    named = any(skill_of(identity) == skill.name for identity in proposal.attributed)
    return named or proposal.recipe == skill.name


def _arm(tree: Tree) -> Arm:
    return arm_of(tree, tree.best)
