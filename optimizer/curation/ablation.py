"""A skill measured by leaving it out: two searches of the same problem with the same seed and
budget; the kernels that they stood at are then measured anew. Of a skill to avoid something one
search without it, whose best instance is measured with and without the change that the skill warns
of.

Recipes propose in both, so it needs no model. Candidates that both arms make are evaluated once.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from kb.catalog.skills import FAILURES, SkillRow
from kb.catalog.skills.support import AVOID
from kb.errors import KernloreError, Unavailable
from kb.hardware.checks import Problems
from kb.problem_terms import canonical_dtype, op_family
from optimizer.curation.advantage import Advantage, advantage, standings
from optimizer.curation.avoided import knobs_of
from optimizer.curation.build import ratio_of
from optimizer.curation.remedies import remedies_of, skill_of
from optimizer.curation.scope import leaves_in, sizes_told
from optimizer.curation.unseen import Unseen, as_only, every_unseen
from optimizer.evaluation.records import Evaluation, Interval
from optimizer.evaluation.timing.statistics import combined, independent_ratio
from optimizer.local.problem_view import problem_view
from optimizer.problem.spec import Case, Problem
from optimizer.search.context import HardwareView, ProblemView
from optimizer.search.deciding import decided
from optimizer.search.goal import Goal
from optimizer.search.knowledge import Knowledge, KnowledgeSource, Query, ShownSkill
from optimizer.search.loop import Search
from optimizer.search.records import Node, Proposal, best_of
from optimizer.search.store import FileStore, RunRow
from optimizer.search.tree import Tree
from optimizer.synthesizers.recipe.instantiate import instantiate
from optimizer.synthesizers.recipe.knobs import Knob, NoStep, turned
from optimizer.synthesizers.recipe.match import allowed
from optimizer.synthesizers.recipe.synthesizer import NAME, RecipeSynthesizer, fit
from skills.curator.believing.verify import Arm, Trial
from skills.recipes.recipe import Recipe, parse_recipe

MAX_TRIALS = 3
MAX_PAIRS = 2 * MAX_TRIALS  # looked at for a skill to avoid, where the change cannot always be made
MAX_LOOKED_AT = 3 * MAX_TRIALS  # of which some lie outside of what the skill is about
ROUNDS = 2  # of fresh processes for each winner


UNTRIED = Arm(0, 0, None)


class ConfirmingBench(Protocol):
    """A bench that also measures a winner anew."""

    @property
    def device(self) -> str: ...

    @property
    def at_once(self) -> int: ...

    def reference(self) -> Evaluation: ...

    def evaluate(self, proposal: Proposal) -> Evaluation: ...

    def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation: ...


class LacksSkill(Exception):
    """A trial cannot tell anything: the skill has no part in it."""


@dataclass(frozen=True)
class Means:
    """What trials are run with. problems: that may be searched here; bench: of a problem on the
    device at hand; recipes: of active skills; knowledge: as a run has it; hardware: of the device.
    seen: (sha256 of a problem, case) pairs that the skill was distilled from."""

    problems: Sequence[Problem]
    bench: Callable[[Problem], AbstractContextManager[ConfirmingBench]]
    recipes: Sequence[Recipe]
    knowledge: KnowledgeSource
    hardware: HardwareView
    seen: frozenset[tuple[str, str]]
    seed: int = 0


class RecipeAblation:
    """Implements `skills.curator.believing.verify.Ablation`."""

    def __init__(self, means: Means) -> None:
        self._means = means

    def trials(
        self, skill: SkillRow, budget: int, apart_from: Collection[tuple[str, str]] = ()
    ) -> Iterator[Trial]:
        """At most MAX_TRIALS. Raises Unavailable where there is nothing to try it on."""
        if skill.polarity == AVOID:
            yield from self._forced_trials(skill, budget, apart_from)
            return
        self._admitted(skill)
        recipe = recipe_of(skill)
        if recipe is None and not skill.moves:
            raise Unavailable(
                f"{skill.name} has neither a recipe nor moves",
                hint="Advice in words needs a model that reads it; approve it by hand.",
            )
        made, seed = 0, self._means.seed + len(apart_from)
        for unseen in self._targets(skill, apart_from):
            try:
                trial = self._trial(skill, recipe, unseen, budget, seed + made)
            except LacksSkill:
                continue
            made += 1
            yield trial
            if made == MAX_TRIALS:
                return
        if not made:
            raise _nothing_unseen(skill)

    def _forced_trials(
        self, skill: SkillRow, budget: int, apart_from: Collection[tuple[str, str]]
    ) -> Iterator[Trial]:
        """Pairs on which the change cannot be made are trials that say why, and are not counted."""
        knobs = knobs_of(skill)
        if not knobs:
            raise Unavailable(
                f"{skill.name} says what to avoid, and not as a parameter role and a direction:"
                " only what to do can be left out",
                hint="A person can approve it once it has been measured.",
            )
        self._admitted(skill)
        looked_at = changed = 0
        for unseen in islice(self._targets(skill, apart_from), MAX_PAIRS):
            trial = self._forced_trial(skill, knobs, unseen, budget, self._means.seed + looked_at)
            looked_at += 1
            changed += bool(trial.without.tried)
            yield trial
            if changed == MAX_TRIALS:
                return
        if not looked_at:
            raise _nothing_unseen(skill)

    def _admitted(self, skill: SkillRow) -> None:
        """What is about another chip or language cannot be proven here."""
        here = self._means.hardware
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

    def _targets(
        self, skill: SkillRow, apart_from: Collection[tuple[str, str]]
    ) -> Iterator[Unseen]:
        """Where it could be offered: what it says of other operators and sizes nobody will hear."""
        facts = self._means.hardware.facts
        for unseen in islice(self._unseen(skill), MAX_LOOKED_AT):
            if (unseen.problem.sha256, unseen.case.name) in apart_from:
                continue
            if leaves_in(skill, unseen.problem, unseen.case, facts):
                yield unseen

    def _unseen(self, skill: SkillRow) -> Iterator[Unseen]:
        """Other problems of its families first: they are further from what it was made of."""
        device = self._means.hardware.device or "cpu"
        families = {op_family(op) for op in skill.scopes.ops}
        own = {sha256 for sha256, _ in self._means.seen}
        fitting = [p for p in self._means.problems if not families or op_family(p.op) in families]
        for problem in fitting:
            main = next((c for c in problem.searched if _timed_for(skill, c, device)), None)
            if problem.sha256 not in own and main is not None:
                yield as_only(problem, main, "another problem")
        for problem in fitting:
            if problem.sha256 in own:
                known = [case for sha256, case in self._means.seen if sha256 == problem.sha256]
                seed = self._means.seed
                yield from every_unseen(problem, device, seed, known)

    def _trial(
        self, skill: SkillRow, recipe: Recipe | None, unseen: Unseen, budget: int, seed: int
    ) -> Trial:
        """seed: another one for each trial, so that one lucky order does not decide all."""
        began = time.time()
        languages = self._languages(skill)
        with self._means.bench(unseen.problem) as bench:
            with_tree = self._search(bench, unseen, budget, seed, languages, skill, recipe)
            if not any(_by(skill, node) for node in with_tree):
                raise LacksSkill
            without_tree = self._search(bench, unseen, budget, seed, languages, without=skill.name)
            found, note = self._advantage(bench, with_tree, without_tree, budget)
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

    def _languages(self, skill: SkillRow) -> list[str]:
        about = skill.scopes.languages
        return [n for n in self._means.hardware.languages if not about or n in about]

    def _forced_trial(
        self, skill: SkillRow, knobs: Sequence[Knob], unseen: Unseen, budget: int, seed: int
    ) -> Trial:
        """The best instance of a search without the skill, with the avoided change and as it is."""
        missing = Trial(
            problem=unseen.problem.name,
            problem_sha256=unseen.problem.sha256,
            case=unseen.case.name,
            unseen=unseen.why,
            seed=seed,
            without=UNTRIED,
            with_skill=UNTRIED,
            gain=None,
            wrong=0,
            hardware=self._means.hardware.id,
            device="",
            toolchain="",
        )
        languages = self._languages(skill)
        with self._means.bench(unseen.problem) as bench:
            view = problem_view(unseen.problem, bench.device)
            recipes = {
                recipe.name: recipe
                for recipe in self._means.recipes
                if recipe.language in languages
                and {knob.role for knob in knobs} <= {p.role for p in recipe.parameters}
                and fit(recipe, view, self._means.hardware.facts) is not None
            }
            if not recipes:
                roles = " and ".join(knob.role for knob in knobs)
                return replace(missing, note=f"no recipe that fits here has the role {roles}")
            tree = self._search(bench, unseen, budget, seed, languages, without=skill.name)
            best = _instance(tree, recipes)
            if best is None or best.proposal is None or best.evaluation is None:
                return replace(missing, note=f"no instance of {', '.join(recipes)} was correct")
            found = replace(
                missing,
                with_skill=_arm_of(tree, best),
                device=best.evaluation.device,
                toolchain=best.evaluation.toolchain,
            )
            try:
                changed = self._changed(best, recipes[best.proposal.recipe or ""], knobs, view)
            except NoStep as reason:
                return replace(found, note=str(reason))
            return self._with_change(bench, found, best.proposal, changed)

    def _changed(
        self, best: Node, recipe: Recipe, knobs: Sequence[Knob], view: ProblemView
    ) -> Proposal:
        """One step of each knob away. Raises NoStep."""
        facts = self._means.hardware.facts
        fitting = fit(recipe, view, facts)
        assert fitting is not None and best.proposal is not None
        before = best.proposal.values
        values = turned(recipe, before, knobs)
        told = ", ".join(
            f"{n} from {before[n]} to {v}" for n, v in values.items() if v != before[n]
        )
        if not allowed(recipe, values, fitting.binding, facts):
            raise NoStep(f"{recipe.name} does not allow {told} here")
        return Proposal(
            instantiate(recipe, values, fitting.binding, view.source),
            NAME,
            parent=best.number,
            plan=f"{recipe.name}: {told}",
            recipe=recipe.name,
            values=values,
            cases=fitting.cases,
        )

    def _with_change(
        self, bench: ConfirmingBench, trial: Trial, kept: Proposal, changed: Proposal
    ) -> Trial:
        """Both measured anew, where the changed one is correct."""
        try:
            found = bench.evaluate(changed)
        except (KernloreError, OSError) as problem:
            return replace(trial, note=f"{changed.plan}; {problem}")
        figure = ratio_of(found.speedup) if found.speedup is not None else None
        trial = replace(
            trial, without=Arm(1, int(found.correct), figure, found.key), note=changed.plan
        )
        if not found.correct:
            return _failed(trial, found)
        try:
            mine, other = (self._confirmed(bench, one) for one in (kept, changed))
        except (KernloreError, OSError) as problem:
            return replace(trial, note=f"{changed.plan}; {problem}")
        wrong = next((one for one in other if not one.correct), None)
        if wrong is not None:
            return _failed(replace(trial, without=replace(trial.without, correct=0)), wrong)
        if not all(one.correct for one in mine):
            return replace(trial, note=f"{changed.plan}; without the change it fails on new values")
        over, under = _figure(mine), _figure(other)
        if over is None or under is None:
            return replace(trial, note=f"{changed.plan}; the machine was too busy to measure both")
        gain = ratio_of(independent_ratio(over, under))
        said = changed.plan if gain is not None else f"{changed.plan}; one of the two has no bounds"
        return replace(trial, gain=gain, note=said)

    def _search(
        self,
        bench: ConfirmingBench,
        unseen: Unseen,
        budget: int,
        seed: int,
        languages: Sequence[str],
        skill: SkillRow | None = None,
        recipe: Recipe | None = None,
        without: str = "",
    ) -> Tree:
        recipes = [one for one in self._means.recipes if one.name != without]
        if recipe is not None:
            recipes = [recipe, *(one for one in recipes if one.name != recipe.name)]
        knowledge = WithSkill(self._means.knowledge, skill, without)
        with tempfile.TemporaryDirectory(prefix="kernlore-ablation-") as folder:
            run = RunRow(
                id="arm",
                problem=str(unseen.problem.path),
                problem_sha256=unseen.problem.sha256,
                hardware=self._means.hardware.id,
                goal=Goal(candidates=budget, seed=seed),
            )
            store = FileStore(Path(folder))
            store.begin(run)
            search = Search(
                run=run,
                store=store,
                bench=bench,
                synthesizers=[RecipeSynthesizer(recipes, languages)],
                knowledge=knowledge,
                problem=problem_view(unseen.problem, bench.device),
                hardware=self._means.hardware,
                listener=_Silent(),
            )
            search.go()
            return search.tree

    def _advantage(
        self, bench: ConfirmingBench, with_tree: Tree, without_tree: Tree, budget: int
    ) -> tuple[Advantage, str]:
        """Of every kernel that either search stood at, measured anew."""
        if with_tree.best is None:
            return Advantage(None, None), "the search with it found nothing correct"
        ours, theirs = (standings(tree.nodes[1:], budget) for tree in (with_tree, without_tree))
        try:
            found = advantage(ours, theirs, lambda node: self._again(bench, node))
        except KernloreError as problem:
            return Advantage(None, None), problem.message
        if found.over is None:
            return found, "the machine was too busy to measure the winners again"
        same = found.over.low == found.over.high
        return found, "both arms stand at the same kernels" if same else ""

    def _again(self, bench: ConfirmingBench, node: Node) -> Interval | None:
        """Of the reference over it, over ROUNDS of fresh processes."""
        assert node.proposal is not None  # the reference is nobody's candidate
        return _figure(self._confirmed(bench, node.proposal))

    def _confirmed(self, bench: ConfirmingBench, proposal: Proposal) -> list[Evaluation]:
        return [bench.confirm(proposal, held_out=False) for _ in range(ROUNDS)]


class WithSkill:
    """Knowledge with one skill among it, or without one of that name."""

    def __init__(self, source: KnowledgeSource, skill: SkillRow | None, without: str) -> None:
        self._source = source
        self._skill = skill
        self._without = without or (skill.name if skill is not None else "")

    def consult(self, query: Query) -> Knowledge:
        """As if nobody ran: nothing is withheld by chance, and both arms see the same."""
        found = self._source.consult(replace(query, run_id=""))
        skills = tuple(s for s in found.skills if s.name != self._without)
        remedies = tuple(r for r in found.remedies if skill_of(r.id) != self._without)
        if self._skill is None:
            return replace(found, skills=skills, remedies=remedies)
        own = ShownSkill(self._skill.name, self._skill.description, self._skill.body, 1.0)
        moves = decided(remedies_of(self._skill), query, found.facts)
        return replace(found, skills=(own, *skills), remedies=(*moves, *remedies))

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Node) -> None:
        """Trials say nothing of how useful an answer was to a run."""


def recipe_of(skill: SkillRow) -> Recipe | None:
    """Raises InvalidKnowledge for one that cannot be read."""
    if skill.recipe is None:
        return None
    problems = Problems(f"skill {skill.name}")
    found = parse_recipe(skill.name, skill.recipe, skill.metadata.get("files", {}), problems)
    problems.raise_if_any()
    return found


def _nothing_unseen(skill: SkillRow) -> Unavailable:
    return Unavailable(
        f"no unseen problem or case here is one that {skill.name} has a part in",
        hint="Add a problem of its op family with `kernlore problem new`.",
    )


def _figure(found: Sequence[Evaluation]) -> Interval | None:
    intervals = [(one.speedup, 1.0) for one in found if one.speedup is not None]
    return combined(intervals) if intervals else None


def _instance(tree: Tree, recipes: Mapping[str, Recipe]) -> Node | None:
    """The best correct instance of these; the first one where none could be timed."""
    own = [
        node
        for node in tree.nodes[1:]
        if node.correct and node.proposal is not None and node.proposal.recipe in recipes
    ]
    return best_of(own) or next(iter(own), None)


def _failed(trial: Trial, found: Evaluation) -> Trial:
    """Only a failure of the kernel itself says something of the change."""
    if found.validity in FAILURES:
        return replace(trial, failed=found.validity, note=f"{trial.note}: {found.validity}")
    return replace(trial, note=f"{trial.note}; it was {found.validity}: {found.message}")


def _by(skill: SkillRow, node: Node) -> bool:
    """Whether the skill made the candidate: its recipe, or one of its moves."""
    proposal = node.proposal
    if proposal is None:
        return False
    named = any(skill_of(identity) == skill.name for identity in proposal.attributed)
    return named or proposal.recipe == skill.name


def _arm(tree: Tree) -> Arm:
    return _arm_of(tree, tree.best)


def _arm_of(tree: Tree, best: Node | None) -> Arm:
    return Arm(
        tried=len(tree) - 1,
        correct=sum(node.correct for node in tree.nodes[1:]),
        best=ratio_of(best.speedup) if best is not None and best.speedup is not None else None,
        best_key=best.evaluation.key if best is not None and best.evaluation is not None else "",
    )


def _timed_for(skill: SkillRow, case: Case, device: str) -> bool:
    dtypes = {canonical_dtype(dtype) for dtype in skill.scopes.dtypes}
    fitting = not dtypes or case.dtype is None or canonical_dtype(case.dtype) in dtypes
    return case.timed and case.fits(device) and fitting


class _Silent:
    def node(self, node: Node, tree: Tree) -> None:
        """A trial is told as a whole."""

    def said(self, message: str) -> None:
        """A trial is told as a whole."""
