"""A skill measured by leaving it out: two searches of the same problem with the same seed and
budget; the kernels that they stood at are then measured anew.

Recipes propose in both, so it needs no model. Candidates that both arms make are evaluated once.

After each candidate a search stands at the best it has so far, or at the reference before it has
any. The advantage is the geometric mean, over the candidates of the budget, of one search's
standing over the other's:

    advantage = product over k = 1..K of (standing with / standing without, after k) ^ (1 / K)

so finding the same kernel sooner counts as finding a better one does: a search that is cut off
anywhere has the better of it. The logarithm of this mean is the normalised area between the two
anytime curves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kb.catalog.skills import SkillRow
from kb.catalog.skills.evidence import AVOID
from kb.errors import KernloreError, Unavailable
from optimizer.evaluation.records import Interval
from optimizer.evaluation.timing.statistics import bounded
from optimizer.search.bench.local import LocalBench
from optimizer.search.records import Node, best_of
from optimizer.search.runs.skill_moves import recipe_of, skill_of
from optimizer.search.synthesizers.recipe.recipe import Recipe
from optimizer.search.tree import Tree
from skills.trials.forced import ForcedTrials
from skills.trials.held_out import (
    MAX_TRIALS,
    HeldOutCase,
    admitted,
    case_sizes,
    no_held_out_case,
    targets,
)
from skills.trials.searching import Searches, arm_of, confirmed, figure_of
from skills.trials.trial import Arm, Trial, TrialContext


class LacksSkill(Exception):
    """A trial is without result: the skill made none of its candidates."""


class Ablation:
    """Runs trials of skills, of either polarity."""

    def __init__(self, context: TrialContext) -> None:
        self._context = context

    def trials(
        self, skill: SkillRow, budget: int, apart_from: Collection[tuple[str, str]] = ()
    ) -> Iterable[Trial]:
        """At most MAX_TRIALS trials of a skill, each as it ends.

        `budget` counts the candidates of each search. `apart_from` holds (sha256 of a problem,
        case) pairs that were tried before. Raises Unavailable where there is nothing here to try
        it on, or where it took no part in as many searches.
        """
        searches = Searches(self._context, budget)
        if skill.polarity == AVOID:
            yield from ForcedTrials(searches).of(skill, apart_from)
            return
        admitted(self._context, skill)
        recipe = recipe_of(skill)
        if recipe is None and not skill.moves:
            raise Unavailable(
                f"{skill.name} has neither a recipe nor moves",
                hint="Advice in words needs a model that reads it; approve it by hand.",
            )
        ended, idle, seed = 0, list[str](), self._context.seed + len(apart_from)
        for target in targets(self._context, skill, apart_from):
            try:
                trial = self._trial(searches, skill, recipe, target, seed + ended)
            except LacksSkill:
                idle.append(f"{target.problem.name} {target.case.name}")
                if len(idle) == MAX_TRIALS:
                    break  # each took as long as a trial
                continue
            ended += 1
            yield trial
            if ended == MAX_TRIALS:
                return
        if not ended:
            raise _no_part(skill, idle, budget) if idle else no_held_out_case(skill)

    def _trial(
        self,
        searches: Searches,
        skill: SkillRow,
        recipe: Recipe | None,
        target: HeldOutCase,
        seed: int,
    ) -> Trial:
        """`seed` differs for each trial, so that one lucky order does not decide all."""
        began = time.time()
        languages = searches.languages(skill)
        with self._context.bench(target.problem) as bench:
            with_tree = searches.run(bench, target, seed, languages, skill, recipe)
            if not any(_by(skill, node) for node in with_tree):
                raise LacksSkill
            without_tree = searches.run(bench, target, seed, languages, without=skill.name)
            measured, note = _advantage(bench, with_tree, without_tree, searches.budget)
        reference = with_tree.root.evaluation
        assert reference is not None
        wrong = [n for n in with_tree if _by(skill, n) and n.evaluation and not n.correct]
        best = with_tree.best
        return Trial(
            problem=target.problem.name,
            problem_sha256=target.problem.sha256,
            case=target.case.name,
            unseen=target.why,
            seed=seed,
            without=_arm(without_tree),
            with_skill=_arm(with_tree),
            gain=measured.over,
            end=measured.end,
            wrong=len(wrong),
            hardware=self._context.hardware.id,
            device=reference.device,
            toolchain=best.evaluation.toolchain
            if best and best.evaluation
            else reference.toolchain,
            note=note or f"{time.time() - began:.0f} s",
            sizes=case_sizes(target.problem, target.case),
        )


def _advantage(
    bench: LocalBench, with_tree: Tree, without_tree: Tree, budget: int
) -> tuple[Advantage, str]:
    """Of every kernel that either search stood at, measured anew."""
    if with_tree.best is None:
        return Advantage(None, None), "the search with it found nothing correct"
    ours, theirs = (standings(tree.nodes[1:], budget) for tree in (with_tree, without_tree))
    try:
        measured = advantage(ours, theirs, lambda node: _again(bench, node))
    except KernloreError as problem:
        return Advantage(None, None), problem.message
    if measured.over is None:
        return measured, "the machine was too busy to measure the winners again"
    same = measured.over.low == measured.over.high
    return measured, "both arms stand at the same kernels" if same else ""


def _again(bench: LocalBench, node: Node) -> Interval | None:
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


REFERENCE_KEY = ""
REFERENCE_FIGURE = Interval(1.0, 1.0, 1.0, 1)  # of the reference over itself


@dataclass(frozen=True)
class Advantage:
    """How far one search stands above another, over the budget and at its `end` alone. Both are 1
    without any doubt where the kernels that count are the same; None where one of the kernels has
    no figure, as on a busy machine."""

    over: Interval | None
    end: Interval | None


def standings(nodes: Sequence[Node], budget: int) -> list[Node | None]:
    """The best node after each candidate of the budget; None for the reference. `nodes` are the
    candidates in their order. A search that ended early keeps what it had."""
    return [best_of(nodes[: count + 1]) for count in range(budget)]


def advantage(
    ours: Sequence[Node | None],
    theirs: Sequence[Node | None],
    figure: Callable[[Node], Interval | None],
) -> Advantage:
    """The advantage of our standings over theirs. `figure` measures the reference over a kernel
    anew; it is called once for each kernel that counts, and not for one that both have for as
    long."""
    nodes = {_key(node): node for node in (*ours, *theirs) if node is not None}
    over = _weights(ours, theirs)
    end = _weights(ours[-1:], theirs[-1:])
    figures: dict[str, Interval | None] = {REFERENCE_KEY: REFERENCE_FIGURE}
    for key in (*over, *end):
        if key not in figures:
            figures[key] = figure(nodes[key])
    return Advantage(_product(over, figures), _product(end, figures))


def _weights(ours: Sequence[Node | None], theirs: Sequence[Node | None]) -> dict[str, float]:
    """Of each kernel, by which its logarithm counts; without those that cancel."""
    counts: dict[str, int] = {}
    for side, sign in ((ours, 1), (theirs, -1)):
        for node in side:
            counts[_key(node)] = counts.get(_key(node), 0) + sign
    return {key: count / len(ours) for key, count in counts.items() if count}


def _product(
    weights: Mapping[str, float], figures: Mapping[str, Interval | None]
) -> Interval | None:
    """Of powers of independent figures: their errors add as squares on the log scale, for each side
    by itself, as in `statistics.independent_ratio`."""
    centre, down, up, counts = 0.0, 0.0, 0.0, list[int]()
    for key, weight in weights.items():
        figure = figures[key]
        if figure is None or not bounded(figure):
            return None
        below, above = math.log(figure.value / figure.low), math.log(figure.high / figure.value)
        if weight < 0:
            below, above = above, below
        centre += weight * math.log(figure.value)
        down, up = math.hypot(down, weight * below), math.hypot(up, weight * above)
        if key != REFERENCE_KEY:
            counts.append(figure.n)
    value, low, high = (math.exp(centre + shift) for shift in (0.0, -down, up))
    return Interval(value, low, high, min(counts, default=1))


def _key(node: Node | None) -> str:
    """Of the kernel: the same text is the same kernel, whichever search wrote it."""
    return REFERENCE_KEY if node is None or node.proposal is None else node.proposal.bundle.sha256
