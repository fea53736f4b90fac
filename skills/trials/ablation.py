"""Trials by ablation. A skill to use: two searches of one problem with the same seed and budget,
with it and without it, whose best kernels are measured anew;
`optimizer.search.portable.skill_trial` has the advantage of one over the other. A warning: the
best kernel of a search without it, measured with and without the change that it warns of.

Recipes propose in every search, so no model is needed. Equal candidates are evaluated once.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from kb.catalog.skills.evidence import AVOID, FAILURES
from kb.catalog.skills.reading import SkillRow
from kb.errors import KernloreError, Unavailable
from kb.problem_terms import canonical_dtype, op_family
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation, Interval
from optimizer.evaluation.timing.statistics import independent_ratio
from optimizer.search.bench.local import LocalBench, problem_view
from optimizer.search.goal import Goal
from optimizer.search.knowledge import (
    KnowledgeSource,
    ShownKnowledge,
    ShownSkill,
    applicable_moves,
)
from optimizer.search.loop import Search
from optimizer.search.portable.skill_trial import (
    ROUNDS,
    Advantage,
    SilentListener,
    advantage,
    figure_of,
    standings,
)
from optimizer.search.records import Node, Proposal, best_of
from optimizer.search.runs.knowledge import knobs_of, recipe_of, remedies_of, skill_of
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.base import HardwareView, ProblemView
from optimizer.search.synthesizers.recipe.recipe import Recipe, allowed, instantiate
from optimizer.search.synthesizers.recipe.synthesizer import (
    NAME,
    Knob,
    NoStep,
    RecipeSynthesizer,
    fit,
    turned,
)
from optimizer.search.tree import Tree
from retrieval.request import RetrieveRequest
from skills.trials.trial import (
    Arm,
    HeldOutCase,
    Trial,
    as_only,
    can_be_offered,
    case_sizes,
    held_out_cases,
)

MAX_TRIALS = 3  # of a skill
MAX_LOOKED_AT = 3 * MAX_TRIALS  # cases, including those that the skill's precondition excludes
MAX_PAIRS = 2 * MAX_TRIALS  # cases of a warning: the change cannot be made on all
UNTRIED = Arm(0, 0, None)


class UnusedSkill(Exception):
    """A search in which the skill made no candidate gives no trial."""


@dataclass
class Ablation:
    """Runs trials of skills.

    `problems` are those that may be searched here. `bench` opens a bench for one of them on the
    local device. `recipes` are those of active skills, `knowledge` is that of a run. `seen` holds
    the (sha256 of a problem, case) pairs that the skill was made from.
    """

    problems: Sequence[Problem]
    bench: Callable[[Problem], AbstractContextManager[LocalBench]]
    recipes: Sequence[Recipe]
    knowledge: KnowledgeSource
    hardware: HardwareView
    seen: frozenset[tuple[str, str]]
    seed: int = 0

    def trials(
        self, skill: SkillRow, budget: int, apart_from: Collection[tuple[str, str]] = ()
    ) -> Iterable[Trial]:
        """At most MAX_TRIALS trials of a skill, each as it ends.

        `budget` counts the candidates of each search. `apart_from` holds (sha256 of a problem,
        case) pairs that were tried before. Raises Unavailable if nothing here can try the skill, or
        if it made no candidate in MAX_TRIALS searches.
        """
        if skill.polarity == AVOID:
            yield from self._warning_trials(skill, budget, apart_from)
            return
        self._check_supported(skill)
        if recipe_of(skill) is None and not skill.moves:
            raise Unavailable(
                f"{skill.name} has neither a recipe nor moves",
                hint="Advice in words needs a model that reads it; approve it by hand.",
            )
        ended, idle, seed = 0, list[str](), self.seed + len(apart_from)
        for target in self._cases(skill, apart_from):
            try:
                # Another seed for each trial, so that one lucky order does not decide all.
                trial = self._use_trial(skill, budget, target, seed + ended)
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
        raise _no_case(skill)

    def _search(
        self,
        bench: LocalBench,
        target: HeldOutCase,
        budget: int,
        seed: int,
        skill: SkillRow,
        *,
        with_it: bool,
    ) -> Tree:
        """The tree of one search, with the skill and its recipe or without it."""
        recipes = [other for other in self.recipes if other.name != skill.name]
        own = recipe_of(skill) if with_it else None
        with tempfile.TemporaryDirectory(prefix="kernlore-ablation-") as folder:
            run = RunRow(
                id="arm",
                problem=str(target.problem.path),
                problem_sha256=target.problem.sha256,
                hardware=self.hardware.id,
                goal=Goal(candidates=budget, seed=seed),
            )
            store = FileStore(Path(folder))
            store.begin(run)
            search = Search(
                row=run,
                store=store,
                bench=bench,
                synthesizers=[
                    RecipeSynthesizer([*([own] if own else []), *recipes], self._languages(skill))
                ],
                knowledge=WithSkill(self.knowledge, skill if with_it else None, skill.name),
                problem=problem_view(target.problem, bench.device),
                hardware=self.hardware,
                listener=SilentListener(),
            )
            search.run()
            return search.tree

    def _languages(self, skill: SkillRow) -> list[str]:
        about = skill.scopes.languages
        return [name for name in self.hardware.languages if not about or name in about]

    # -- the cases

    def _check_supported(self, skill: SkillRow) -> None:
        """Raise Unavailable for a skill about another chip or language than those here."""
        here = self.hardware
        chips, languages = set(skill.scopes.hardware), set(skill.scopes.languages)
        if chips and not chips & set(here.lineage):
            raise Unavailable(
                f"{skill.name} is about {', '.join(sorted(chips))}, and this is {here.id}",
                hint="Verify it on that hardware, or in a portable session.",
            )
        if languages and not languages & set(here.languages):
            raise Unavailable(
                f"{skill.name} is about {', '.join(sorted(languages))}, which nothing here builds",
                hint="Install the toolchain, or verify it on a machine that has it.",
            )

    def _cases(
        self, skill: SkillRow, apart_from: Collection[tuple[str, str]]
    ) -> Iterator[HeldOutCase]:
        """The cases on which a skill is tried, without those whose precondition would exclude it.
        `apart_from` holds (sha256 of a problem, case) pairs that were tried before."""
        facts = self.hardware.facts
        for target in islice(self._unseen(skill), MAX_LOOKED_AT):
            if (target.problem.sha256, target.case.name) in apart_from:
                continue
            if can_be_offered(skill, target.problem, target.case, facts):
                yield target

    def _unseen(self, skill: SkillRow) -> Iterator[HeldOutCase]:
        """Other problems of its op families first: they differ most from those it was made from."""
        device = self.hardware.device or "cpu"
        families = {op_family(op) for op in skill.scopes.ops}
        own = {sha256 for sha256, _ in self.seen}
        fitting = [p for p in self.problems if not families or op_family(p.op) in families]
        for problem in fitting:
            main = next((c for c in problem.searched if _timed_for(skill, c, device)), None)
            if problem.sha256 not in own and main is not None:
                yield as_only(problem, main, "another problem")
        for problem in fitting:
            if problem.sha256 in own:
                known = [case for sha256, case in self.seen if sha256 == problem.sha256]
                yield from held_out_cases(problem, device, self.seed, known)

    # -- one trial

    def _use_trial(self, skill: SkillRow, budget: int, target: HeldOutCase, seed: int) -> Trial:
        began = time.time()
        with self.bench(target.problem) as bench:
            with_tree = self._search(bench, target, budget, seed, skill, with_it=True)
            if not any(_made_by(skill, node) for node in with_tree):
                raise UnusedSkill
            without_tree = self._search(bench, target, budget, seed, skill, with_it=False)
            measured, note = _measured_advantage(bench, with_tree, without_tree, budget)
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
            hardware=self.hardware.id,
            device=reference.device,
            toolchain=measured_kernel.toolchain,
            note=note or f"{time.time() - began:.0f} s",
            sizes=case_sizes(target.problem, target.case),
        )

    def _warning_trials(
        self, skill: SkillRow, budget: int, apart_from: Collection[tuple[str, str]]
    ) -> Iterator[Trial]:
        """The trials of a warning. If the change cannot be made on a case, the trial says why and
        does not count. Raises Unavailable without a parameter to change or a case."""
        knobs = knobs_of(skill)
        if not knobs:
            raise Unavailable(
                f"{skill.name} does not name the change to avoid as a parameter role and a"
                " direction, so it cannot be made on purpose",
                hint="A person can approve it once it has been measured.",
            )
        self._check_supported(skill)
        looked_at = changed = 0
        for target in islice(self._cases(skill, apart_from), MAX_PAIRS):
            trial = self._warning_trial(skill, budget, knobs, target, self.seed + looked_at)
            looked_at += 1
            changed += bool(trial.without.tried)
            yield trial
            if changed == MAX_TRIALS:
                return
        if not looked_at:
            raise _no_case(skill)

    def _warning_trial(
        self, skill: SkillRow, budget: int, knobs: Sequence[Knob], target: HeldOutCase, seed: int
    ) -> Trial:
        """The best instance of a search without the skill, with and without the change."""
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
            hardware=self.hardware.id,
            device="",
            toolchain="",
        )
        languages = self._languages(skill)
        with self.bench(target.problem) as bench:
            view = problem_view(target.problem, bench.device)
            recipes = {
                recipe.name: recipe
                for recipe in self.recipes
                if recipe.language in languages
                and {knob.role for knob in knobs} <= {p.role for p in recipe.parameters}
                and fit(recipe, view, self.hardware.facts) is not None
            }
            if not recipes:
                roles = " and ".join(knob.role for knob in knobs)
                return replace(trial, note=f"no recipe that fits here has the role {roles}")
            tree = self._search(bench, target, budget, seed, skill, with_it=False)
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
                changed = _with_change(best, recipe, knobs, view, self.hardware.facts)
            except NoStep as reason:
                return replace(trial, note=str(reason))
            return _compared(bench, trial, best.proposal, changed)


def _no_case(skill: SkillRow) -> Unavailable:
    """The error for a skill without a case to try it on."""
    return Unavailable(
        f"no unseen problem or case here is one that {skill.name} is about",
        hint="Add a problem of its op family with `kernlore problem new`.",
    )


def _timed_for(skill: SkillRow, case: Case, device: str) -> bool:
    dtypes = {canonical_dtype(dtype) for dtype in skill.scopes.dtypes}
    fitting = not dtypes or case.dtype is None or canonical_dtype(case.dtype) in dtypes
    return case.timed and case.fits(device) and fitting


class WithSkill:
    """Knowledge with one skill in it, or without the skill of a name."""

    def __init__(self, source: KnowledgeSource, skill: SkillRow | None, without: str) -> None:
        self._source = source
        self._skill = skill
        self._without = without or (skill.name if skill is not None else "")

    def consult(self, request: RetrieveRequest) -> ShownKnowledge:
        """The source's answer, with the skill or without it. The request has no run id, so that no
        skill is withheld by chance and both arms get the same."""
        knowledge = self._source.consult(replace(request, run_id=None))
        skills = tuple(s for s in knowledge.skills if s.name != self._without)
        remedies = tuple(r for r in knowledge.moves if skill_of(r.id) != self._without)
        if self._skill is None:
            return replace(knowledge, skills=skills, moves=remedies)
        own = ShownSkill(self._skill.name, self._skill.description, self._skill.body, 1.0)
        moves = applicable_moves(remedies_of(self._skill), request, knowledge.facts)
        return replace(knowledge, skills=(own, *skills), moves=(*moves, *remedies))

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Node) -> None:
        """Outcomes of trials are not recorded."""


def _measured_again(bench: LocalBench, proposal: Proposal) -> list[Evaluation]:
    """Evaluations of a proposal in ROUNDS of fresh processes."""
    return [bench.confirm(proposal, held_out=False) for _ in range(ROUNDS)]


def _arm(tree: Tree, best: Node | None) -> Arm:
    return Arm(
        tried=len(tree) - 1,
        correct=sum(node.correct for node in tree.nodes[1:]),
        best=best.speedup if best is not None else None,
        best_key=best.evaluation.key if best is not None and best.evaluation is not None else "",
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
        return figure_of(_measured_again(bench, node.proposal))

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


# -- warnings


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
    over, under = figure_of(mine), figure_of(other)
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
