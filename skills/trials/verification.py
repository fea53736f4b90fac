"""Verification of a skill on this machine: its trials are run, each is stored as evidence, and the
skill moves to the state that they support.

A skill without a certain effect keeps its state, and its history says why. A skill that certainly
helps on some sizes and certainly harms on others is narrowed by one quantity. The trials drew that
boundary, so they prove nothing about the rest: the narrowed skill is tried again on other cases.
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

from kb.catalog.engine import Catalog
from kb.catalog.skills.evidence import AVOID, evidence_of
from kb.catalog.skills.reading import (
    EvidenceRow,
    SkillRow,
    SkillState,
    find_skill,
    get_skill,
    skill_heads,
)
from kb.catalog.skills.writing import add_evidence, append_event, set_state
from kb.errors import Conflict, InvalidRequest, NotFound, Unavailable
from kb.scope import ALL_ACCESS
from optimizer.evaluation.problem.load import SHIPPED, SOURCE_NAME, load_problem, shipped_problems
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Interval
from optimizer.evaluation.targets import AUTO
from optimizer.search.bench.local import LocalBench, TargetToolchain
from optimizer.search.bench.simulated import SimulatedBench
from optimizer.search.knowledge import KnowledgeSource
from optimizer.search.runs.hardware_view import hardware_view_of
from optimizer.search.runs.knowledge import ServiceKnowledge, library_recipes
from optimizer.search.runs.places import bench_for, places_for
from optimizer.search.synthesizers.recipe.recipe import Recipe
from retrieval.knowledge_base import KnowledgeBase
from skills.lifecycle import narrow, queue
from skills.trials.ablation import Ablation, WithSkill
from skills.trials.trial import Arm, Trial, TrialVerdict, classify_trials
from skills.uses import ScopePart

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
