"""Trials of a skill to avoid something: one search without it, whose best instance is measured with
and without the change that the skill warns of, made on purpose."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from kb.catalog.skills import FAILURES, SkillRow
from kb.errors import KernloreError, Unavailable
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.timing.statistics import independent_ratio
from optimizer.search.bench.local import LocalBench, problem_view
from optimizer.search.records import Node, Proposal, best_of
from optimizer.search.runs.skill_moves import knobs_of
from optimizer.search.synthesizers.base import ProblemView
from optimizer.search.synthesizers.recipe.recipe import Recipe, allowed, instantiate
from optimizer.search.synthesizers.recipe.steps import Knob, NoStep, turned
from optimizer.search.synthesizers.recipe.synthesizer import NAME, fit
from optimizer.search.tree import Tree
from skills.trials.held_out import MAX_TRIALS, HeldOutCase, admitted, no_held_out_case, targets
from skills.trials.searching import Searches, arm_of, confirmed, figure_of
from skills.trials.trial import Arm, Trial

MAX_PAIRS = 2 * MAX_TRIALS  # looked at: the change cannot be made on every one

UNTRIED = Arm(0, 0, None)


class ForcedTrials:
    """Trials of warnings. `searches` have the budget that finds the kernel which heeds the
    skill."""

    def __init__(self, searches: Searches) -> None:
        self._searches = searches
        self._context = searches.context

    def of(self, skill: SkillRow, apart_from: Collection[tuple[str, str]]) -> Iterator[Trial]:
        """The trials of one skill. Those on which the change cannot be made say why, and are not
        counted. Raises Unavailable where it names no parameter to change or there is nothing to try
        it on."""
        knobs = knobs_of(skill)
        if not knobs:
            raise Unavailable(
                f"{skill.name} says what to avoid, and not as a parameter role and a direction:"
                " only what to do can be left out",
                hint="A person can approve it once it has been measured.",
            )
        admitted(self._context, skill)
        looked_at = changed = 0
        for target in islice(targets(self._context, skill, apart_from), MAX_PAIRS):
            trial = self._trial(skill, knobs, target, self._context.seed + looked_at)
            looked_at += 1
            changed += bool(trial.without.tried)
            yield trial
            if changed == MAX_TRIALS:
                return
        if not looked_at:
            raise no_held_out_case(skill)

    def _trial(
        self, skill: SkillRow, knobs: Sequence[Knob], target: HeldOutCase, seed: int
    ) -> Trial:
        """The best instance of a search without the skill, with the avoided change and as it is."""
        missing = Trial(
            problem=target.problem.name,
            problem_sha256=target.problem.sha256,
            case=target.case.name,
            unseen=target.why,
            seed=seed,
            without=UNTRIED,
            with_skill=UNTRIED,
            gain=None,
            wrong=0,
            hardware=self._context.hardware.id,
            device="",
            toolchain="",
        )
        languages = self._searches.languages(skill)
        with self._context.bench(target.problem) as bench:
            view = problem_view(target.problem, bench.device)
            recipes = {
                recipe.name: recipe
                for recipe in self._context.recipes
                if recipe.language in languages
                and {knob.role for knob in knobs} <= {p.role for p in recipe.parameters}
                and fit(recipe, view, self._context.hardware.facts) is not None
            }
            if not recipes:
                roles = " and ".join(knob.role for knob in knobs)
                return replace(missing, note=f"no recipe that fits here has the role {roles}")
            tree = self._searches.run(bench, target, seed, languages, without=skill.name)
            best = _instance(tree, recipes)
            if best is None or best.proposal is None or best.evaluation is None:
                return replace(missing, note=f"no instance of {', '.join(recipes)} was correct")
            trial = replace(
                missing,
                with_skill=arm_of(tree, best),
                device=best.evaluation.device,
                toolchain=best.evaluation.toolchain,
            )
            try:
                changed = self._changed(best, recipes[best.proposal.recipe or ""], knobs, view)
            except NoStep as reason:
                return replace(trial, note=str(reason))
            return _with_change(bench, trial, best.proposal, changed)

    def _changed(
        self, best: Node, recipe: Recipe, knobs: Sequence[Knob], view: ProblemView
    ) -> Proposal:
        """One step of each knob away. Raises NoStep."""
        facts = self._context.hardware.facts
        fitting = fit(recipe, view, facts)
        assert fitting is not None and best.proposal is not None
        before = best.proposal.values
        values = turned(recipe, before, knobs)
        steps = ", ".join(
            f"{n} from {before[n]} to {v}" for n, v in values.items() if v != before[n]
        )
        if not allowed(recipe, values, fitting.binding, facts):
            raise NoStep(f"{recipe.name} does not allow {steps} here")
        return Proposal(
            instantiate(recipe, values, fitting.binding, view.source),
            NAME,
            parent=best.number,
            plan=f"{recipe.name}: {steps}",
            recipe=recipe.name,
            values=values,
            cases=fitting.cases,
        )


def _with_change(bench: LocalBench, trial: Trial, kept: Proposal, changed: Proposal) -> Trial:
    """Both measured anew, where the changed one is correct."""
    try:
        evaluation = bench.evaluate(changed)
    except (KernloreError, OSError) as problem:
        return replace(trial, note=f"{changed.plan}; {problem}")
    figure = evaluation.speedup
    trial = replace(
        trial, without=Arm(1, int(evaluation.correct), figure, evaluation.key), note=changed.plan
    )
    if not evaluation.correct:
        return _failed(trial, evaluation)
    try:
        mine, other = (confirmed(bench, evaluated) for evaluated in (kept, changed))
    except (KernloreError, OSError) as problem:
        return replace(trial, note=f"{changed.plan}; {problem}")
    wrong = next((evaluated for evaluated in other if not evaluated.correct), None)
    if wrong is not None:
        return _failed(replace(trial, without=replace(trial.without, correct=0)), wrong)
    if not all(evaluated.correct for evaluated in mine):
        return replace(trial, note=f"{changed.plan}; without the change it fails on new values")
    over, under = figure_of(mine), figure_of(other)
    if over is None or under is None:
        return replace(trial, note=f"{changed.plan}; the machine was too busy to measure both")
    gain = independent_ratio(over, under)
    note = changed.plan if gain is not None else f"{changed.plan}; one of the two has no bounds"
    return replace(trial, gain=gain, note=note)


def _instance(tree: Tree, recipes: Mapping[str, Recipe]) -> Node | None:
    """The best correct instance of these; the first one where none could be timed."""
    own = [
        node
        for node in tree.nodes[1:]
        if node.correct and node.proposal is not None and node.proposal.recipe in recipes
    ]
    return best_of(own) or next(iter(own), None)


def _failed(trial: Trial, evaluation: Evaluation) -> Trial:
    """Only a failure of the kernel itself says something of the change."""
    if evaluation.validity in FAILURES:
        return replace(
            trial, failed=evaluation.validity, note=f"{trial.note}: {evaluation.validity}"
        )
    return replace(trial, note=f"{trial.note}; it was {evaluation.validity}: {evaluation.message}")
