"""Whether a skill helps where it was not distilled from: its trials are run on this machine, each
is kept as evidence, and the skill moves to the state that they support.

A trial counts as far as its interval goes; a skill without a certain gain stays what it is, and its
history says why. Where a skill certainly helps on some sizes and certainly harms on others it is
narrowed by one size. The boundary is drawn from those trials, so they prove nothing of what is
left: the narrowed skill is tried again on other cases.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.engine import Catalog
from kb.catalog.skills import SkillRow, State
from kb.catalog.skills.evidence import AVOID
from kb.catalog.skills.writing import append_event
from kb.errors import Conflict, InvalidRequest, NotFound, Unavailable
from kb.scope import ALL_ACCESS, AccessScope
from optimizer.evaluation.problem.load import SHIPPED, SOURCE_NAME, load_problem, shipped_problems
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Interval
from optimizer.evaluation.targets import AUTO
from optimizer.search.bench.local import LocalBench, Place
from optimizer.search.bench.simulated import SimulatedBench
from optimizer.search.knowledge import KnowledgeSource
from optimizer.search.runs.knowledge import ServiceKnowledge, library_recipes
from optimizer.search.runs.optimize import hardware_view_of
from optimizer.search.runs.places import bench_for, places_for
from optimizer.search.synthesizers.recipe.recipe import Recipe
from retrieval.knowledge_base import KnowledgeBase
from skills.lifecycle import known_uses, queue, store_narrowed, without
from skills.trials.ablation import Ablation, WithSkill
from skills.trials.trial import Arm, Trial, TrialContext, TrialVerdict, classify_trials
from skills.uses import ScopePart, outside

ACTOR = "verification"
BUDGET = 4  # candidates of each arm
VERIFIABLE = ("candidate", "suspect", "active")


@dataclass(frozen=True)
class Verification:
    """What verifying a skill came to. `state` is its state afterwards."""

    skill: str
    state: str
    verdict: TrialVerdict
    trials: tuple[Trial, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def verify(
    catalog: Catalog,
    name: str,
    ablation: Ablation,
    *,
    budget: int = BUDGET,
    actor: str = ACTOR,
    access_scope: AccessScope = ALL_ACCESS,
) -> Verification:
    """Run the trials, keep each as evidence, and let the skill be active where it certainly helps.

    Where it certainly helps on some sizes and certainly harms on others it is narrowed to where it
    helps, and tried again on further cases there; these alone decide then.

    Raises Conflict for a skill that is out of use or that changed meanwhile, Unavailable where
    nothing can be measured here (the skill stays what it is, and its history says so).
    """
    with catalog.read() as connection:
        skill = store.get(connection, name, access_scope)
    if skill.state not in VERIFIABLE:
        raise Conflict(
            f"{name} is {skill.state}", hint="Restore it first, or verify one that is in use."
        )
    signed = Signed(actor, access_scope)
    try:
        trials = _tried(catalog, skill, ablation.trials(skill, budget), signed)
    except Unavailable as problem:
        _note(catalog, skill, f"not verified: {problem.message}", actor, access_scope)
        raise
    verdict, part = classify_trials(trials, skill.polarity), _losing(trials, skill.polarity)
    if part is not None:
        reason = f"{verdict.reason}: not offered with {part}"
        with catalog.write() as connection:
            _same(store.get(connection, name, access_scope), skill)
            skill = narrow(connection, skill, part, reason=reason, **vars(signed))
        known = {(trial.problem_sha256, trial.case) for trial in trials}
        again = _again(catalog, skill, ablation, budget, known, signed)
        verdict = classify_trials(again, skill.polarity)
        outcome = verdict.reason if again else "nothing is left there that nobody tried"
        verdict = replace(verdict, reason=f"not offered with {part} any more; {outcome}")
        trials = [*trials, *again]
    with catalog.write() as connection:
        present = store.get(connection, name, access_scope)
        _same(present, skill)
        state = _moved(connection, present, verdict, budget, actor, access_scope)
    return Verification(name, state, verdict, tuple(trials))


@dataclass(frozen=True)
class Signed:
    """Who verifies, and what they may see."""

    actor: str
    access_scope: AccessScope


def _tried(
    catalog: Catalog, skill: SkillRow, running: Iterable[Trial], signed: Signed
) -> list[Trial]:
    """Each is kept as it comes: it took minutes."""
    trials = []
    for trial in running:
        with catalog.write() as connection:
            _same(store.get(connection, skill.name, signed.access_scope), skill)
            _keep(connection, skill, trial, signed.actor, signed.access_scope)
        trials.append(trial)
    return trials


def _again(
    catalog: Catalog,
    skill: SkillRow,
    ablation: Ablation,
    budget: int,
    known: Collection[tuple[str, str]],
    signed: Signed,
) -> list[Trial]:
    """Of the narrowed skill; none where no case is left that nobody tried."""
    try:
        return _tried(catalog, skill, ablation.trials(skill, budget, known), signed)
    except Unavailable:
        return []


def _losing(trials: Sequence[Trial], polarity: str) -> ScopePart | None:
    """Only sizes separate: a wrong candidate speaks against the skill wherever it was."""
    if polarity == AVOID or any(trial.wrong for trial in trials):
        return None
    harmed, helped = ([t.sizes for t in trials if getattr(t, kind)] for kind in ("harms", "helps"))
    return losing_part(harmed, helped)


def _same(present: SkillRow, measured: SkillRow) -> None:
    if (present.version, present.state) != (measured.version, measured.state):
        raise Conflict(f"{present.name} changed while it was measured", hint="Verify it again.")


def _keep(
    connection: Any, skill: SkillRow, trial: Trial, actor: str, access_scope: AccessScope
) -> None:
    """A trial without a figure is kept too: that it was tried is known. An avoided change that
    could not be made was not tried."""
    if skill.polarity == AVOID and not trial.without.tried:
        return
    figure, arm = _about_the_claim(skill, trial)
    store.add_evidence(
        connection,
        skill.name,
        kind="ablation",
        hardware=trial.hardware,
        n=figure.n if figure is not None else max(1, arm.tried),
        actor=actor,
        reason=f"with and without {_subject(skill)} on {trial.problem}, {trial.case}"
        f" ({trial.unseen})",
        device=trial.device or None,
        toolchain=trial.toolchain or None,
        problem=trial.problem_sha256,
        case=trial.case,
        evaluation=arm.best_key or None,
        speedup=figure.value if figure is not None else None,
        low=figure.low if figure is not None else None,
        high=figure.high if figure is not None else None,
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
        access_scope=access_scope,
    )


def _subject(skill: SkillRow) -> str:
    return "the avoided change" if skill.polarity == AVOID else "it"


def _about_the_claim(skill: SkillRow, trial: Trial) -> tuple[Interval | None, Arm]:
    """The speed-up by what the skill is about, as evidence has it (kb.catalog.skills.evidence), and
    the arm that has it: of one to avoid that is the change, so the figure is the gain's inverse."""
    gain = trial.gain
    if skill.polarity != AVOID:
        return gain, trial.with_skill
    inverse = (
        None if gain is None else Interval(1 / gain.value, 1 / gain.high, 1 / gain.low, gain.n)
    )
    return inverse, trial.without


def _moved(
    connection: Any,
    skill: SkillRow,
    verdict: TrialVerdict,
    budget: int,
    actor: str,
    access_scope: AccessScope,
) -> str:
    details = {"budget": budget, "gain": asdict(verdict.gain) if verdict.gain else None}
    signed: dict[str, Any] = {
        "actor": actor,
        "reason": verdict.reason,
        "details": details,
        "access_scope": access_scope,
    }
    to: State | None = None
    if verdict.effect == "helps" and skill.state != "active":
        to = "active"
    elif verdict.effect == "harms" and skill.state == "active":
        to = "suspect"
    elif verdict.effect == "harms" and skill.state == "suspect" and skill.tier == "learned":
        to = "candidate"
    if to is not None:
        store.set_state(connection, skill.name, to, **signed)
        return to
    change = (skill.state, skill.state)
    append_event(connection, skill.id, "verified", change, actor, verdict.reason, details)
    return skill.state


def _note(
    catalog: Catalog, skill: SkillRow, reason: str, actor: str, access_scope: AccessScope
) -> None:
    with catalog.write() as connection:
        store.get(connection, skill.name, access_scope)
        change = (skill.state, skill.state)
        append_event(connection, skill.id, "not_verified", change, actor, reason, {})


Sizes = Mapping[str, float]


def losing_part(harmed: Sequence[Sizes], helped: Sequence[Sizes]) -> ScopePart | None:
    """The side of a cut that has all cases in which a skill harmed and none in which it helped, by
    the quantity that tells them furthest apart.

    The arguments hold the sizes of each case. The cut is halfway between the two nearest, on the
    log scale. None where no quantity separates them, or there is nothing on one side.
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


def narrow(
    connection: Connection,
    skill: SkillRow,
    part: ScopePart,
    *,
    actor: str,
    reason: str,
    access_scope: AccessScope = ALL_ACCESS,
) -> SkillRow:
    """Narrow a skill by a part of its scope; returns it as it is stored. Its text and evidence
    stay, and the uses in what is kept."""
    kept = outside(known_uses(connection, skill, access_scope), part)
    scopes, predicate = without(skill.scopes, skill.predicate, part, kept)
    narrowed = replace(skill, scopes=scopes, predicate=predicate)
    details = {"parts": [asdict(part)]}
    signed: dict[str, Any] = {"actor": actor, "reason": reason, "access_scope": access_scope}
    store_narrowed(connection, narrowed, kept, details, **signed)
    return store.get(connection, skill.name, access_scope)


def waiting(base: KnowledgeBase, *, queued: bool) -> list[str]:
    """Names of skills to verify: those to be measured again where `queued`, else learned
    candidates."""
    if queued:
        return [queued_skill.name for queued_skill in queue(base.catalog)]
    with base.catalog.read() as connection:
        rows = store.heads(
            connection, states=("candidate",), tier="learned", access_scope=ALL_ACCESS
        )
    return [row.name for row in rows]


class Verifier:
    """Verifies skills on this machine: problems of a folder or the shipped ones, the local device,
    the recipes of active skills."""

    def __init__(self, base: KnowledgeBase, problems: Path | None = None) -> None:
        self._base = base
        self._folder = problems

    def verify(self, name: str, budget: int, actor: str) -> dict[str, Any]:
        """Verify a skill and report it as JSON; a skill that nothing here can measure stays what it
        is, and the reason says why. `budget` counts the candidates of each search. Raises NotFound
        and Conflict."""
        skill = self._skill(name)
        try:
            verification = verify(
                self._base.catalog, name, self._ablation(skill), budget=budget, actor=actor
            )
        except Unavailable as problem:
            reason = f"not verified: {problem.message}. {problem.hint}"
            return {
                "skill": name,
                "state": skill.state,
                "reason": reason,
                "gain": None,
                "trials": [],
            }
        return {
            "skill": name,
            "state": verification.state,
            "reason": verification.verdict.reason,
            "gain": asdict(verification.verdict.gain)
            if verification.verdict.gain is not None
            else None,
            "trials": [asdict(trial) for trial in verification.trials],
        }

    def try_out(self, name: str, budget: int) -> dict[str, Any]:
        """The trials of a skill and what they would mean, as JSON; nothing is stored. Raises
        NotFound and Unavailable."""
        skill = self._skill(name)
        trials = tuple(self._ablation(skill).trials(skill, budget))
        verdict = classify_trials(trials, skill.polarity)
        return {
            "skill": name,
            "state": skill.state,
            "helps": verdict.helps,
            "reason": verdict.reason,
            "gain": asdict(verdict.gain) if verdict.gain is not None else None,
            "trials": [asdict(trial) for trial in trials],
        }

    def _skill(self, name: str) -> SkillRow:
        with self._base.catalog.read() as connection:
            return store.get(connection, name, ALL_ACCESS)

    # -- what trials are run with

    @cached_property
    def _problems(self) -> list[Problem]:
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
    def _places(self) -> dict[str, Place]:
        return places_for(self._base, AUTO, None)

    def _ablation(self, skill: SkillRow) -> Ablation:
        base, places = self._base, self._places
        target = next(iter(places.values())).target
        recipes: Sequence[Recipe] = library_recipes(base)
        knowledge: KnowledgeSource = ServiceKnowledge(base)
        if skill.revises:  # it is to be in that one's place, so neither search has that
            recipes = [recipe for recipe in recipes if recipe.name != skill.revises]
            knowledge = WithSkill(knowledge, None, skill.revises)
        return Ablation(
            TrialContext(
                problems=self._problems,
                bench=self._bench,
                recipes=recipes,
                knowledge=knowledge,
                hardware=hardware_view_of(target, places),
                seen=self._seen(skill),
            )
        )

    @contextmanager
    def _bench(self, problem: Problem) -> Iterator[LocalBench]:
        with bench_for(self._base, problem, self._places) as bench:
            if isinstance(bench, SimulatedBench):
                raise Unavailable(
                    "only a simulator is here, and its times are no wall time",
                    hint="Verify where the device itself is.",
                )
            yield bench

    def _seen(self, skill: SkillRow) -> frozenset[tuple[str, str]]:
        """Pairs that its evidence was measured on, except by trials; with the searched cases of
        those problems, which the search that it comes from saw too."""
        with self._base.catalog.read() as connection:
            rows = store.evidence_of(connection, skill.id, ALL_ACCESS)
            if skill.revises and (revised := store.find(connection, skill.revises)) is not None:
                rows = [*rows, *store.evidence_of(connection, revised.id, ALL_ACCESS)]
        made_of = [row for row in rows if row.kind != "ablation" and row.problem_id is not None]
        pairs = {(str(row.problem_id), row.case_id or "") for row in made_of}
        own = {sha256 for sha256, _ in pairs}
        for problem in self._problems:
            if problem.sha256 in own:
                pairs |= {(problem.sha256, case.name) for case in problem.searched}
        return frozenset(pairs)
