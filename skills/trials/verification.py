"""Verification of a skill on this machine: its trials are run, each is stored as evidence, and the
skill moves to the state that they support.

A skill without a certain effect keeps its state, and its history says why. A skill that certainly
helps on some sizes and certainly harms on others is narrowed by one quantity. The trials drew that
boundary, so they prove nothing about the rest: the narrowed skill is tried again on other cases.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from kb.catalog.engine import Catalog
from kb.catalog.skills.evidence import AVOID, FAILURES, evidence_of
from kb.catalog.skills.reading import (
    EvidenceRow,
    SkillRow,
    SkillState,
    find_skill,
    get_skill,
    skill_heads,
)
from kb.catalog.skills.writing import add_evidence, append_event, set_state
from kb.errors import Conflict, InvalidRequest, KernloreError, NotFound, Unavailable
from kb.problem_terms import canonical_dtype, op_family
from kb.scope import ALL_ACCESS
from optimizer.evaluation.problem.load import SHIPPED, SOURCE_NAME, load_problem, shipped_problems
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation, Interval
from optimizer.evaluation.targets import AUTO
from optimizer.evaluation.timing.statistics import independent_ratio
from optimizer.search.bench.local import LocalBench, TargetToolchain, problem_view
from optimizer.search.bench.simulated import SimulatedBench
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
from optimizer.search.runs.hardware_view import hardware_view_of
from optimizer.search.runs.knowledge import (
    ServiceKnowledge,
    knobs_of,
    library_recipes,
    recipe_of,
    remedies_of,
    skill_of,
)
from optimizer.search.runs.places import bench_for, places_for
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
from retrieval.knowledge_base import KnowledgeBase
from retrieval.request import RetrieveRequest
from skills.lifecycle import narrow, queue
from skills.trials.trial import (
    Arm,
    HeldOutCase,
    Trial,
    TrialVerdict,
    as_only,
    can_be_offered,
    case_sizes,
    classify_trials,
    held_out_cases,
)
from skills.uses import ScopePart

# -- trials by ablation. A skill to use: two searches of one problem with the same seed and budget,
# with it and without it, whose best kernels are measured anew; `portable.skill_trial` has the
# advantage of one over the other. A warning: the best kernel of a search without it, measured with
# and without the change that it warns of.
#
# Recipes propose in every search, so no model is needed. Equal candidates are evaluated once.

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


ACTOR = "verification"
BUDGET = 4  # candidates of each search
VERIFIABLE = ("candidate", "suspect", "active")
Sizes = Mapping[str, float]


@dataclass(frozen=True)
class Verification:
    """The result of verifying a skill. `state` is its state afterwards."""

    skill: str
    state: str
    verdict: TrialVerdict
    trials: tuple[Trial, ...]


def verify(
    catalog: Catalog, name: str, ablation: Ablation, *, budget: int = BUDGET, actor: str = ACTOR
) -> Verification:
    """Run the trials of a skill, store each as evidence, and change the skill's state by them.

    If it certainly helps on some sizes and certainly harms on others, it is narrowed to where it
    helps and tried again on further cases there; only these decide then. `budget` counts the
    candidates of each search. Raises Conflict for a skill that is out of use or changed meanwhile,
    and Unavailable if nothing can be measured here, which its history records.
    """
    with catalog.read() as connection:
        skill = get_skill(connection, name)
    if skill.state not in VERIFIABLE:
        raise Conflict(
            f"{name} is {skill.state}", hint="Restore it first, or verify one that is in use."
        )
    try:
        trials = _stored(catalog, skill, ablation.trials(skill, budget), actor)
    except Unavailable as problem:
        reason = f"not verified: {problem.message}"
        with catalog.write() as connection:
            change = (skill.state, skill.state)
            append_event(connection, skill.id, "not_verified", change, actor, reason, {})
        raise
    verdict, part = classify_trials(trials, skill.polarity), _losing_sizes(trials, skill.polarity)
    if part is not None:
        reason = f"{verdict.reason}: not offered with {part}"
        with catalog.write() as connection:
            _check_unchanged(connection, skill)
            narrow(connection, skill, part, actor=actor, reason=reason)
            skill = get_skill(connection, name)
        known = {(trial.problem_sha256, trial.case) for trial in trials}
        try:
            further = _stored(catalog, skill, ablation.trials(skill, budget, known), actor)
        except Unavailable:
            further = []
        verdict = classify_trials(further, skill.polarity)
        outcome = verdict.reason if further else "no untried case is left there"
        verdict = replace(verdict, reason=f"not offered with {part} any more; {outcome}")
        trials = [*trials, *further]
    with catalog.write() as connection:
        _check_unchanged(connection, skill)
        state = _moved(connection, skill, verdict, budget, actor)
    return Verification(name, state, verdict, tuple(trials))


def _stored(catalog: Catalog, skill: SkillRow, running: Iterable[Trial], actor: str) -> list[Trial]:
    """Store each trial as it ends: it took minutes. An avoided change that could not be made was
    not tried; a trial without a figure was."""
    trials = []
    for trial in running:
        with catalog.write() as connection:
            _check_unchanged(connection, skill)
            if skill.polarity != AVOID or trial.without.tried:
                _add_evidence(connection, skill, trial, actor)
        trials.append(trial)
    return trials


def _check_unchanged(connection: Connection, measured: SkillRow) -> None:
    present = get_skill(connection, measured.name)
    if (present.version, present.state) != (measured.version, measured.state):
        raise Conflict(f"{present.name} changed while it was measured", hint="Verify it again.")


def _add_evidence(connection: Connection, skill: SkillRow, trial: Trial, actor: str) -> None:
    figure, arm = _figure_of_claim(skill, trial)
    tried = "the avoided change" if skill.polarity == AVOID else "it"
    add_evidence(
        connection,
        skill.name,
        EvidenceRow(
            kind="ablation",
            hardware_id=trial.hardware,
            n=figure.n if figure is not None else max(1, arm.tried),
            device_id=trial.device or None,
            toolchain_id=trial.toolchain or None,
            problem_id=trial.problem_sha256,
            case_id=trial.case,
            evaluation_id=arm.best_key or None,
            speedup=figure.value if figure is not None else None,
            speedup_low=figure.low if figure is not None else None,
            speedup_high=figure.high if figure is not None else None,
            details={
                "problem": trial.problem,
                "sizes": dict(trial.sizes),
                "unseen": trial.unseen,
                "seed": trial.seed,
                "without": asdict(trial.without),
                "with": asdict(trial.with_skill),
                "wrong": trial.wrong,
                "end": asdict(trial.end) if trial.end is not None else None,
                "note": trial.note,
                **({"validity": trial.failed} if trial.failed else {}),
            },
        ),
        actor=actor,
        reason=f"with and without {tried} on {trial.problem}, {trial.case} ({trial.unseen})",
    )


def _figure_of_claim(skill: SkillRow, trial: Trial) -> tuple[Interval | None, Arm]:
    """The speed-up that the skill claims, and the arm that has it. A warning is about the avoided
    change, so its figure is the inverse of the gain."""
    gain = trial.gain
    if skill.polarity != AVOID:
        return gain, trial.with_skill
    if gain is None:
        return None, trial.without
    return Interval(1 / gain.value, 1 / gain.high, 1 / gain.low, gain.n), trial.without


def _moved(
    connection: Connection, skill: SkillRow, verdict: TrialVerdict, budget: int, actor: str
) -> str:
    details = {"budget": budget, "gain": _interval(verdict.gain)}
    to: SkillState | None = None
    if verdict.effect == "helps" and skill.state != "active":
        to = "active"
    elif verdict.effect == "harms" and skill.state == "active":
        to = "suspect"
    elif verdict.effect == "harms" and skill.state == "suspect" and skill.tier == "learned":
        to = "candidate"
    if to is not None:
        signed: dict[str, Any] = {"actor": actor, "reason": verdict.reason, "details": details}
        set_state(connection, skill.name, to, **signed)
        return to
    change = (skill.state, skill.state)
    append_event(connection, skill.id, "verified", change, actor, verdict.reason, details)
    return skill.state


def _interval(gain: Interval | None) -> dict[str, Any] | None:
    return asdict(gain) if gain is not None else None


# -- sizes on which a skill loses


def _losing_sizes(trials: Sequence[Trial], polarity: str) -> ScopePart | None:
    """Only sizes separate: a wrong candidate speaks against the skill on all of them."""
    if polarity == AVOID or any(trial.wrong for trial in trials):
        return None
    harmed = [trial.sizes for trial in trials if trial.harms]
    return losing_part(harmed, [trial.sizes for trial in trials if trial.helps])


def losing_part(harmed: Sequence[Sizes], helped: Sequence[Sizes]) -> ScopePart | None:
    """The part of the scope with all cases in which a skill harmed and none in which it helped, or
    None.

    The arguments hold the sizes of each case. The part is cut by the quantity that separates them
    furthest, halfway between the two nearest cases on the log scale.
    """
    if not harmed or not helped:
        return None
    parts = []
    for key in sorted(set.intersection(*(set(sizes) for sizes in (*harmed, *helped)))):
        bad, good = ([sizes[key] for sizes in side] for side in (harmed, helped))
        if min(*bad, *good) <= 0:
            continue
        if max(bad) < min(good):
            cut = float(math.ceil(math.sqrt(max(bad) * min(good))))
            parts.append((min(good) / max(bad), ScopePart(key, below=cut)))
        elif max(good) < min(bad):
            cut = float(math.floor(math.sqrt(max(good) * min(bad))))
            parts.append((min(bad) / max(good), ScopePart(key, at_least=cut)))
    return max(parts, key=lambda entry: entry[0], default=(0.0, None))[1]


# -- on this machine


def waiting(base: KnowledgeBase, *, queued: bool) -> list[str]:
    """Names of skills to verify: the suspect ones if `queued`, else learned candidates."""
    if queued:
        return queue(base.catalog)
    with base.catalog.read() as connection:
        rows = skill_heads(
            connection, states=("candidate",), tier="learned", access_scope=ALL_ACCESS
        )
    return [row.name for row in rows]


class Verifier:
    """Verifies skills on the local device, on problems of a folder or the shipped ones, with the
    recipes of active skills."""

    def __init__(self, base: KnowledgeBase, problems: Path | None = None) -> None:
        self._base = base
        self._folder = problems

    def verify(self, name: str, budget: int, actor: str) -> dict[str, Any]:
        """Verify a skill and report it as JSON. A skill that cannot be measured here keeps its
        state, and the reason says why. Raises NotFound and Conflict."""
        skill = self._skill(name)
        try:
            done = verify(
                self._base.catalog, name, self._ablation(skill), budget=budget, actor=actor
            )
        except Unavailable as problem:
            reason = f"not verified: {problem.message}. {problem.hint}"
            return _report(name, skill.state, reason)
        return _report(name, done.state, done.verdict.reason, done.verdict.gain, done.trials)

    def try_out(self, name: str, budget: int) -> dict[str, Any]:
        """The trials of a skill and their verdict as JSON, without storing anything. Raises
        NotFound and Unavailable."""
        skill = self._skill(name)
        trials = tuple(self._ablation(skill).trials(skill, budget))
        verdict = classify_trials(trials, skill.polarity)
        report = _report(name, skill.state, verdict.reason, verdict.gain, trials)
        return {**report, "helps": verdict.helps}

    def _skill(self, name: str) -> SkillRow:
        with self._base.catalog.read() as connection:
            return get_skill(connection, name)

    def _ablation(self, skill: SkillRow) -> Ablation:
        base, places = self._base, self.places
        target = next(iter(places.values())).target
        recipes: Sequence[Recipe] = library_recipes(base)
        knowledge: KnowledgeSource = ServiceKnowledge(base)
        if skill.revises:  # it will replace that one, so neither search has that
            recipes = [recipe for recipe in recipes if recipe.name != skill.revises]
            knowledge = WithSkill(knowledge, None, skill.revises)
        return Ablation(
            problems=self.all_problems,
            bench=self.bench,
            recipes=recipes,
            knowledge=knowledge,
            hardware=hardware_view_of(target, places),
            seen=self._seen(skill),
        )

    @cached_property
    def all_problems(self) -> list[Problem]:
        """The problems of the folder, or the built-in ones."""
        if self._folder is None:
            return [load_problem(SHIPPED / name) for name in shipped_problems()]
        if not self._folder.is_dir():
            raise NotFound(f"no folder {self._folder}", hint="Give a folder of problems.")
        paths = [*self._folder.glob("*.py"), *self._folder.glob(f"*/{SOURCE_NAME}")]
        if not paths:
            raise InvalidRequest(
                f"there is no problem in {self._folder}",
                hint=f"Put NAME.py or NAME/{SOURCE_NAME} there; `kernlore problem new` writes one.",
            )
        return [load_problem(path) for path in sorted(paths)]

    @cached_property
    def places(self) -> dict[str, TargetToolchain]:
        """Target and toolchain of this machine by language."""
        return places_for(self._base, AUTO, None)

    @contextmanager
    def bench(self, problem: Problem) -> Iterator[LocalBench]:
        """The bench of this machine's device. Raises Unavailable if that is a simulator."""
        with bench_for(self._base, problem, self.places) as bench:
            if isinstance(bench, SimulatedBench):
                raise Unavailable(
                    "this machine has only a simulator, whose times are no wall time",
                    hint="Verify on a machine that has the device itself.",
                )
            yield bench

    def _seen(self, skill: SkillRow) -> frozenset[tuple[str, str]]:
        """The (sha256 of a problem, case) pairs of its evidence except trials, with the searched
        cases of those problems, which the search that it comes from saw too."""
        with self._base.catalog.read() as connection:
            rows = evidence_of(connection, skill.id)
            if skill.revises and (revised := find_skill(connection, skill.revises)) is not None:
                rows = [*rows, *evidence_of(connection, revised.id)]
        made_of = [row for row in rows if row.kind != "ablation" and row.problem_id is not None]
        pairs = {(str(row.problem_id), row.case_id or "") for row in made_of}
        own = {sha256 for sha256, _ in pairs}
        for problem in self.all_problems:
            if problem.sha256 in own:
                pairs |= {(problem.sha256, case.name) for case in problem.searched}
        return frozenset(pairs)


def _report(
    name: str, state: str, reason: str, gain: Interval | None = None, trials: Collection[Trial] = ()
) -> dict[str, Any]:
    return {
        "skill": name,
        "state": state,
        "reason": reason,
        "gain": _interval(gain),
        "trials": [asdict(trial) for trial in trials],
    }
