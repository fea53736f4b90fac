"""Trials by ablation. A skill to use: two searches of one problem with the same seed and budget,
with it and without it, whose best kernels are measured anew. A warning: the best kernel of a search
without it, measured with and without the change that it warns of.

Recipes propose in every search, so no model is needed. Equal candidates are evaluated once.

The standing of a search after a candidate is its best kernel so far, or the reference before it has
one. The advantage of a search is the geometric mean of the ratios of standings over the candidates
of the budget:

    advantage = product over k = 1..K of (standing with / standing without, after k) ^ (1 / K)

so finding a kernel sooner counts, as finding a better one does. Its logarithm is the normalised
area between the two anytime curves.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from kb.catalog.skills import FAILURES, SkillRow
from kb.catalog.skills.evidence import AVOID
from kb.errors import KernloreError, Unavailable
from optimizer.evaluation.records import Evaluation, Interval
from optimizer.evaluation.timing.statistics import bounded, combined, independent_ratio
from optimizer.search.bench.local import LocalBench, problem_view
from optimizer.search.goal import Goal
from optimizer.search.knowledge import (
    Knowledge,
    KnowledgeSource,
    Query,
    ShownSkill,
    applicable_moves,
)
from optimizer.search.loop import Search
from optimizer.search.records import Node, Proposal, best_of
from optimizer.search.runs.skill_moves import knobs_of, recipe_of, remedies_of, skill_of
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.base import Asking, ProblemView
from optimizer.search.synthesizers.recipe.recipe import Recipe, allowed, instantiate
from optimizer.search.synthesizers.recipe.steps import Knob, NoStep, turned
from optimizer.search.synthesizers.recipe.synthesizer import NAME, RecipeSynthesizer, fit
from optimizer.search.tree import Tree
from skills.trials.trial import (
    MAX_TRIALS,
    Arm,
    HeldOutCase,
    Trial,
    TrialContext,
    case_sizes,
    check_supported,
    no_trial_case,
    trial_cases,
)

ROUNDS = 2  # of fresh processes for each kernel that is measured anew
MAX_PAIRS = 2 * MAX_TRIALS  # cases of a warning: the change cannot be made on all
UNTRIED = Arm(0, 0, None)


class UnusedSkill(Exception):
    """A search in which the skill made no candidate gives no trial."""


class Ablation:
    """Runs trials of skills, of either polarity."""

    def __init__(self, context: TrialContext) -> None:
        self._context = context

    def trials(
        self, skill: SkillRow, budget: int, apart_from: Collection[tuple[str, str]] = ()
    ) -> Iterable[Trial]:
        """At most MAX_TRIALS trials of a skill, each as it ends.

        `budget` counts the candidates of each search. `apart_from` holds (sha256 of a problem,
        case) pairs that were tried before. Raises Unavailable if nothing here can try the skill, or
        if it made no candidate in MAX_TRIALS searches.
        """
        searches = TrialSearches(self._context, budget)
        if skill.polarity == AVOID:
            yield from _warning_trials(searches, skill, apart_from)
            return
        check_supported(self._context, skill)
        recipe = recipe_of(skill)
        if recipe is None and not skill.moves:
            raise Unavailable(
                f"{skill.name} has neither a recipe nor moves",
                hint="Advice in words needs a model that reads it; approve it by hand.",
            )
        ended, idle, seed = 0, list[str](), self._context.seed + len(apart_from)
        for target in trial_cases(self._context, skill, apart_from):
            try:
                # Another seed for each trial, so that one lucky order does not decide all.
                trial = _use_trial(searches, skill, recipe, target, seed + ended)
            except UnusedSkill:
                idle.append(f"{target.problem.name} {target.case.name}")
                if len(idle) == MAX_TRIALS:
                    break  # each took as long as a trial
                continue
            ended += 1
            yield trial
            if ended == MAX_TRIALS:
                return
        if ended:
            return
        if idle:
            raise Unavailable(
                f"{skill.name} made no candidate in searches of {budget} on {', '.join(idle)}",
                hint="Give a larger --budget, or see with `kernlore skills show` when it is"
                " offered.",
            )
        raise no_trial_case(skill)


@dataclass(frozen=True)
class TrialSearches:
    """Searches of one budget, counted in candidates."""

    context: TrialContext
    budget: int

    def languages(self, skill: SkillRow) -> list[str]:
        about = skill.scopes.languages
        return [n for n in self.context.hardware.languages if not about or n in about]

    def run(
        self,
        bench: LocalBench,
        target: HeldOutCase,
        seed: int,
        languages: Sequence[str],
        skill: SkillRow | None = None,
        recipe: Recipe | None = None,
        without: str = "",
    ) -> Tree:
        """The tree of one search, with a skill and its recipe, or `without` the skill of a name."""
        recipes = [other for other in self.context.recipes if other.name != without]
        if recipe is not None:
            recipes = [recipe, *(other for other in recipes if other.name != recipe.name)]
        with tempfile.TemporaryDirectory(prefix="kernlore-ablation-") as folder:
            run = RunRow(
                id="arm",
                problem=str(target.problem.path),
                problem_sha256=target.problem.sha256,
                hardware=self.context.hardware.id,
                goal=Goal(candidates=self.budget, seed=seed),
            )
            store = FileStore(Path(folder))
            store.begin(run)
            search = Search(
                row=run,
                store=store,
                bench=bench,
                synthesizers=[RecipeSynthesizer(recipes, languages)],
                knowledge=WithSkill(self.context.knowledge, skill, without),
                problem=problem_view(target.problem, bench.device),
                hardware=self.context.hardware,
                listener=_Silent(),
            )
            search.run()
            return search.tree


class WithSkill:
    """Knowledge with one skill in it, or without the skill of a name."""

    def __init__(self, source: KnowledgeSource, skill: SkillRow | None, without: str) -> None:
        self._source = source
        self._skill = skill
        self._without = without or (skill.name if skill is not None else "")

    def consult(self, query: Query) -> Knowledge:
        """The source's answer, with the skill or without it. The query has no run id, so that no
        skill is withheld by chance and both arms get the same."""
        knowledge = self._source.consult(replace(query, run_id=""))
        skills = tuple(s for s in knowledge.skills if s.name != self._without)
        remedies = tuple(r for r in knowledge.moves if skill_of(r.id) != self._without)
        if self._skill is None:
            return replace(knowledge, skills=skills, moves=remedies)
        own = ShownSkill(self._skill.name, self._skill.description, self._skill.body, 1.0)
        moves = applicable_moves(remedies_of(self._skill), query, knowledge.facts)
        return replace(knowledge, skills=(own, *skills), moves=(*moves, *remedies))

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Node) -> None:
        """Outcomes of trials are not recorded."""


class _Silent:
    """A listener that prints nothing."""

    def node(self, node: Node, tree: Tree) -> None: ...

    def asking(self, asking: Asking) -> None: ...

    def log(self, message: str) -> None: ...


def _measured_again(bench: LocalBench, proposal: Proposal) -> list[Evaluation]:
    """Evaluations of a proposal in ROUNDS of fresh processes."""
    return [bench.confirm(proposal, held_out=False) for _ in range(ROUNDS)]


def _figure(evaluations: Sequence[Evaluation]) -> Interval | None:
    """The reference over a kernel, from several evaluations; None if none has a figure."""
    intervals = [(e.speedup, 1.0) for e in evaluations if e.speedup is not None]
    return combined(intervals) if intervals else None


def _arm(tree: Tree, best: Node | None) -> Arm:
    return Arm(
        tried=len(tree) - 1,
        correct=sum(node.correct for node in tree.nodes[1:]),
        best=best.speedup if best is not None else None,
        best_key=best.evaluation.key if best is not None and best.evaluation is not None else "",
    )


# -- skills to use


def _use_trial(
    searches: TrialSearches, skill: SkillRow, recipe: Recipe | None, target: HeldOutCase, seed: int
) -> Trial:
    began = time.time()
    languages = searches.languages(skill)
    with searches.context.bench(target.problem) as bench:
        with_tree = searches.run(bench, target, seed, languages, skill, recipe)
        if not any(_made_by(skill, node) for node in with_tree):
            raise UnusedSkill
        without_tree = searches.run(bench, target, seed, languages, without=skill.name)
        measured, note = _measured_advantage(bench, with_tree, without_tree, searches.budget)
    best = with_tree.best
    reference = with_tree.root.evaluation
    assert reference is not None
    measured_kernel = best.evaluation if best and best.evaluation else reference
    wrong = [n for n in with_tree if _made_by(skill, n) and n.evaluation and not n.correct]
    return Trial(
        problem=target.problem.name,
        problem_sha256=target.problem.sha256,
        case=target.case.name,
        unseen=target.why,
        seed=seed,
        without=_arm(without_tree, without_tree.best),
        with_skill=_arm(with_tree, best),
        gain=measured.over,
        end=measured.end,
        wrong=len(wrong),
        hardware=searches.context.hardware.id,
        device=reference.device,
        toolchain=measured_kernel.toolchain,
        note=note or f"{time.time() - began:.0f} s",
        sizes=case_sizes(target.problem, target.case),
    )


def _made_by(skill: SkillRow, node: Node) -> bool:
    proposal = node.proposal
    if proposal is None:
        return False
    named = any(skill_of(identity) == skill.name for identity in proposal.attributed)
    return named or proposal.recipe == skill.name


def _measured_advantage(
    bench: LocalBench, with_tree: Tree, without_tree: Tree, budget: int
) -> tuple[Advantage, str]:
    """The advantage of the search with the skill, and a note. Each best kernel of either search is
    measured anew."""

    def figure(node: Node) -> Interval | None:
        assert node.proposal is not None  # the reference is not measured anew
        return _figure(_measured_again(bench, node.proposal))

    if with_tree.best is None:
        return Advantage(None, None), "the search with it found nothing correct"
    ours, theirs = (standings(tree.nodes[1:], budget) for tree in (with_tree, without_tree))
    try:
        measured = advantage(ours, theirs, figure)
    except KernloreError as problem:
        return Advantage(None, None), problem.message
    if measured.over is None:
        return measured, "the machine was too busy to measure the winners again"
    same = measured.over.low == measured.over.high
    return measured, "both searches have the same best kernels" if same else ""


# -- the advantage of a search

REFERENCE_KEY = ""
REFERENCE_FIGURE = Interval(1.0, 1.0, 1.0, 1)  # of the reference over itself


@dataclass(frozen=True)
class Advantage:
    """The advantage of one search over another, over the budget and at its `end` alone. It is
    exactly 1 if the kernels that count are the same, and None if one of them has no figure, as on a
    busy machine."""

    over: Interval | None
    end: Interval | None


def standings(nodes: Sequence[Node], budget: int) -> list[Node | None]:
    """The best node after each candidate of the budget; None for the reference. `nodes` are the
    candidates in order. A search that ended early keeps its last standing."""
    return [best_of(nodes[: count + 1]) for count in range(budget)]


def advantage(
    ours: Sequence[Node | None],
    theirs: Sequence[Node | None],
    figure: Callable[[Node], Interval | None],
) -> Advantage:
    """The advantage of our standings over theirs. `figure` measures the reference over a kernel; it
    is called once for each kernel that counts, and not for one that both had equally long."""
    nodes = {_key(node): node for node in (*ours, *theirs) if node is not None}
    over = _weights(ours, theirs)
    end = _weights(ours[-1:], theirs[-1:])
    figures: dict[str, Interval | None] = {REFERENCE_KEY: REFERENCE_FIGURE}
    for key in (*over, *end):
        if key not in figures:
            figures[key] = figure(nodes[key])
    return Advantage(_product(over, figures), _product(end, figures))


def _weights(ours: Sequence[Node | None], theirs: Sequence[Node | None]) -> dict[str, float]:
    """The weight of each kernel's logarithm, without those that cancel."""
    counts: dict[str, int] = {}
    for side, sign in ((ours, 1), (theirs, -1)):
        for node in side:
            counts[_key(node)] = counts.get(_key(node), 0) + sign
    return {key: count / len(ours) for key, count in counts.items() if count}


def _product(
    weights: Mapping[str, float], figures: Mapping[str, Interval | None]
) -> Interval | None:
    """The product of powers of independent figures. Their errors add as squares on the log scale,
    separately above and below, as in `statistics.independent_ratio`."""
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
    """The kernel of a node: equal bundles are one kernel in both searches."""
    return REFERENCE_KEY if node is None or node.proposal is None else node.proposal.bundle.sha256


# -- warnings


def _warning_trials(
    searches: TrialSearches, skill: SkillRow, apart_from: Collection[tuple[str, str]]
) -> Iterator[Trial]:
    """The trials of a warning. Those on which the change cannot be made say why and are not
    counted. Raises Unavailable if it names no parameter to change, or has no case to try it on."""
    context = searches.context
    knobs = knobs_of(skill)
    if not knobs:
        raise Unavailable(
            f"{skill.name} does not name the change to avoid as a parameter role and a direction,"
            " so it cannot be made on purpose",
            hint="A person can approve it once it has been measured.",
        )
    check_supported(context, skill)
    looked_at = changed = 0
    for target in islice(trial_cases(context, skill, apart_from), MAX_PAIRS):
        trial = _warning_trial(searches, skill, knobs, target, context.seed + looked_at)
        looked_at += 1
        changed += bool(trial.without.tried)
        yield trial
        if changed == MAX_TRIALS:
            return
    if not looked_at:
        raise no_trial_case(skill)


def _warning_trial(
    searches: TrialSearches, skill: SkillRow, knobs: Sequence[Knob], target: HeldOutCase, seed: int
) -> Trial:
    """The best instance of a search without the skill, with the avoided change and without it."""
    context = searches.context
    trial = Trial(
        problem=target.problem.name,
        problem_sha256=target.problem.sha256,
        case=target.case.name,
        unseen=target.why,
        seed=seed,
        without=UNTRIED,
        with_skill=UNTRIED,
        gain=None,
        wrong=0,
        hardware=context.hardware.id,
        device="",
        toolchain="",
    )
    languages = searches.languages(skill)
    with context.bench(target.problem) as bench:
        view = problem_view(target.problem, bench.device)
        recipes = {
            recipe.name: recipe
            for recipe in context.recipes
            if recipe.language in languages
            and {knob.role for knob in knobs} <= {p.role for p in recipe.parameters}
            and fit(recipe, view, context.hardware.facts) is not None
        }
        if not recipes:
            roles = " and ".join(knob.role for knob in knobs)
            return replace(trial, note=f"no recipe that fits here has the role {roles}")
        tree = searches.run(bench, target, seed, languages, without=skill.name)
        instances = [
            node
            for node in tree.nodes[1:]
            if node.correct and node.proposal is not None and node.proposal.recipe in recipes
        ]
        best = best_of(instances) or next(iter(instances), None)
        if best is None or best.proposal is None or best.evaluation is None:
            return replace(trial, note=f"no instance of {', '.join(recipes)} was correct")
        trial = replace(
            trial,
            with_skill=_arm(tree, best),
            device=best.evaluation.device,
            toolchain=best.evaluation.toolchain,
        )
        try:
            recipe = recipes[best.proposal.recipe or ""]
            changed = _with_change(best, recipe, knobs, view, context.hardware.facts)
        except NoStep as reason:
            return replace(trial, note=str(reason))
        return _compared(bench, trial, best.proposal, changed)


def _with_change(
    best: Node,
    recipe: Recipe,
    knobs: Sequence[Knob],
    view: ProblemView,
    facts: Mapping[str, float | str],
) -> Proposal:
    """The instance one step of each parameter away. Raises NoStep."""
    fitting = fit(recipe, view, facts)
    assert fitting is not None and best.proposal is not None
    before = best.proposal.values
    values = turned(recipe, before, knobs)
    steps = ", ".join(f"{n} from {before[n]} to {v}" for n, v in values.items() if v != before[n])
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


def _compared(bench: LocalBench, trial: Trial, own: Proposal, changed: Proposal) -> Trial:
    """The trial with both kernels measured anew, if the changed one is correct."""
    try:
        evaluation = bench.evaluate(changed)
    except (KernloreError, OSError) as problem:
        return replace(trial, note=f"{changed.plan}; {problem}")
    arm = Arm(1, int(evaluation.correct), evaluation.speedup, evaluation.key)
    trial = replace(trial, without=arm, note=changed.plan)
    if not evaluation.correct:
        return _failed(trial, evaluation)
    try:
        mine, other = (_measured_again(bench, proposal) for proposal in (own, changed))
    except (KernloreError, OSError) as problem:
        return replace(trial, note=f"{changed.plan}; {problem}")
    wrong = next((evaluated for evaluated in other if not evaluated.correct), None)
    if wrong is not None:
        return _failed(replace(trial, without=replace(arm, correct=0)), wrong)
    if not all(evaluated.correct for evaluated in mine):
        return replace(trial, note=f"{changed.plan}; without the change it fails on new values")
    over, under = _figure(mine), _figure(other)
    if over is None or under is None:
        return replace(trial, note=f"{changed.plan}; the machine was too busy to measure both")
    gain = independent_ratio(over, under)
    note = changed.plan if gain is not None else f"{changed.plan}; one of the two has no bounds"
    return replace(trial, gain=gain, note=note)


def _failed(trial: Trial, evaluation: Evaluation) -> Trial:
    """Only a failure of the kernel itself counts against the change."""
    validity = evaluation.validity
    if validity in FAILURES:
        return replace(trial, failed=validity, note=f"{trial.note}: {validity}")
    return replace(trial, note=f"{trial.note}; it was {validity}: {evaluation.message}")
