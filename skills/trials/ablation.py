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
    admitted,
    case_sizes,
    no_held_out_case,
    targets,
)


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


# -- searching: One side of a trial: a search with a skill or without it, and its kernels measured

ROUNDS = 2  # of fresh processes for each winner


@dataclass(frozen=True)
class Searches:
    """Searches of one budget, counted in candidates, in one context."""

    context: TrialContext
    budget: int

    def languages(self, skill: SkillRow) -> list[str]:
        """Languages of the hardware that the skill is about."""
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
        """The tree of one search, with a skill and its recipe or `without` the skill of a name."""
        recipes = [other for other in self.context.recipes if other.name != without]
        if recipe is not None:
            recipes = [recipe, *(other for other in recipes if other.name != recipe.name)]
        knowledge = WithSkill(self.context.knowledge, skill, without)
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
                knowledge=knowledge,
                problem=problem_view(target.problem, bench.device),
                hardware=self.context.hardware,
                listener=_Silent(),
            )
            search.run()
            return search.tree


class WithSkill:
    """Knowledge with one skill among it, or without one of that name."""

    def __init__(self, source: KnowledgeSource, skill: SkillRow | None, without: str) -> None:
        self._source = source
        self._skill = skill
        self._without = without or (skill.name if skill is not None else "")

    def consult(self, query: Query) -> Knowledge:
        """What the source answers, with the skill in it or without it. It is consulted as if nobody
        ran: nothing is withheld by chance, and both arms see the same."""
        knowledge = self._source.consult(replace(query, run_id=""))
        skills = tuple(s for s in knowledge.skills if s.name != self._without)
        remedies = tuple(r for r in knowledge.moves if skill_of(r.id) != self._without)
        if self._skill is None:
            return replace(knowledge, skills=skills, moves=remedies)
        own = ShownSkill(self._skill.name, self._skill.description, self._skill.body, 1.0)
        moves = applicable_moves(remedies_of(self._skill), query, knowledge.facts)
        return replace(knowledge, skills=(own, *skills), moves=(*moves, *remedies))

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Node) -> None:
        """Trials say nothing of how useful an answer was to a run."""


def confirmed(bench: LocalBench, proposal: Proposal) -> list[Evaluation]:
    """Measure a proposal anew, in ROUNDS of fresh processes."""
    return [bench.confirm(proposal, held_out=False) for _ in range(ROUNDS)]


def figure_of(evaluations: Sequence[Evaluation]) -> Interval | None:
    """The reference over a kernel, from several evaluations of it; None where none has a figure."""
    intervals = [
        (evaluation.speedup, 1.0) for evaluation in evaluations if evaluation.speedup is not None
    ]
    return combined(intervals) if intervals else None


def arm_of(tree: Tree, best: Node | None) -> Arm:
    """One side of a trial: its tree, and the best node of it."""
    return Arm(
        tried=len(tree) - 1,
        correct=sum(node.correct for node in tree.nodes[1:]),
        best=best.speedup if best is not None else None,
        best_key=best.evaluation.key if best is not None and best.evaluation is not None else "",
    )


class _Silent:
    def node(self, node: Node, tree: Tree) -> None:
        """A trial is reported as a whole."""

    def asking(self, asking: Asking) -> None: ...

    def log(self, message: str) -> None:
        """A trial is reported as a whole."""


# -- forced: Trials of a skill to avoid something: one search without it, whose best instance is m

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
