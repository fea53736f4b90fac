"""Measurements that support or contradict a skill, and whether they support its claim: that a
change helps, or, for a skill that advises to avoid something, that it does harm.

Measurements are added, never changed or removed. A toolchain is named as the harness names it: its
name, then its versions (`cpp g++ 13.2.0`). A skill carries the toolchain of its newest evidence;
where that differs from the one in use on the hardware, the evidence is about another compiler.

Only trials with and without the skill count, on problems that it was not distilled from; the pairs
that it was distilled from are the origin of the claim and prove nothing. A speed-up is the time
without over the time with the change, so for a skill to avoid a figure below 1 is support.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import meta, visible
from kb.catalog import tables as t
from kb.catalog.engine import columns_of, record_of, select_in
from kb.catalog.skills.reading import EvidenceRow, RecipeText, SkillHead, stored_heads
from kb.catalog.skills.shipped import (
    UNTESTED,
    ShippedTrial,
    SkillEffect,
    effect_of,
    own_effect,
    stored_trials,
)
from kb.scope import ALL_ACCESS, AccessScope

_TOOLCHAINS = "toolchains"


def toolchain_name(toolchain: str) -> str:
    """`triton-nvidia` of `triton-nvidia triton 3.4.0, torch 2.8.0`."""
    return toolchain.split(" ", 1)[0]


def present_toolchains(connection: Connection) -> Mapping[str, Mapping[str, str]]:
    """The toolchains in use, by hardware id and then by toolchain name."""
    return meta.get(connection, _TOOLCHAINS) or {}


NOT_MEASURED = "not measured here"
_COLUMNS = columns_of(t.evidence, EvidenceRow)
_FIGURES = columns_of(t.evidence, EvidenceRow, "details")


def evidence_of(
    connection: Connection, skill_id: str, access_scope: AccessScope = ALL_ACCESS
) -> list[EvidenceRow]:
    """The measurements of one skill, oldest first."""
    return evidence_for(connection, [skill_id], access_scope).get(skill_id, [])


def evidence_for(
    connection: Connection,
    skill_ids: Sequence[str],
    access_scope: AccessScope = ALL_ACCESS,
    *,
    details: bool = True,
) -> dict[str, list[EvidenceRow]]:
    """The measurements of skills, oldest first; without their details where `details` is False."""
    columns = _COLUMNS if details else [*_FIGURES, sa.literal(None).label("details")]
    query = (
        sa.select(t.evidence.c.subject_id, *columns)
        .where(t.evidence.c.subject_kind == "skill", visible.evidence(access_scope))
        .order_by(t.evidence.c.created_at, t.evidence.c.id)
    )
    by_skill: dict[str, list[EvidenceRow]] = {}
    for row in select_in(connection, query, t.evidence.c.subject_id, skill_ids):
        record = record_of(EvidenceRow, row, details=row.details or {})
        by_skill.setdefault(row.subject_id, []).append(record)
    return by_skill


@dataclass(frozen=True)
class MeasuredSkill:
    """A skill as answers choose it. `error` are the fixed words of the error that a debugging skill
    is about; `tested` are its trials with a speed-up and how many of them bear it out; `evidence`
    is without details, oldest first; `shipped` are the trials that ship with it."""

    head: SkillHead
    owner: str
    recipe: RecipeText | None
    error: str | None
    tested: tuple[int, int]
    evidence: tuple[EvidenceRow, ...]
    shipped: tuple[ShippedTrial, ...] = ()
    compatibility: str = ""

    @property
    def effect(self) -> SkillEffect:
        """Its effect in the trials that ship with it, else in those of this installation."""
        shipped = effect_of(self.shipped)
        return shipped if shipped.by else own_effect(self.evidence, self.head.polarity, shipped)


def known_skills(connection: Connection) -> list[MeasuredSkill]:
    """Every skill of every owner, sorted by name."""
    rows = stored_heads(connection)
    trials = trial_counts(connection, [row.head.id for row in rows])
    evidence = _all_evidence(connection)
    return [
        MeasuredSkill(
            row.head,
            row.owner,
            row.recipe,
            row.error,
            trials.get(row.head.id, (0, 0)),
            tuple(evidence.get(row.head.id, ())),
            row.shipped,
            row.compatibility,
        )
        for row in rows
    ]


def effects_of(
    connection: Connection, skills: Sequence[SkillHead], access_scope: AccessScope = ALL_ACCESS
) -> dict[str, SkillEffect]:
    """The effect of each skill by id: in the trials that ship with it, else in those of this
    installation."""
    ids = [skill.id for skill in skills]
    query = sa.select(t.skills.c.id, t.skills.c.metadata)
    rows = select_in(connection, query, t.skills.c.id, ids)
    shipped = {row.id: effect_of(stored_trials(row.metadata)) for row in rows}
    evidence = evidence_for(connection, ids, access_scope)
    return {
        skill.id: known
        if (known := shipped.get(skill.id, UNTESTED)).by
        else own_effect(evidence.get(skill.id, ()), skill.polarity, known)
        for skill in skills
    }


def _all_evidence(connection: Connection) -> dict[str, list[EvidenceRow]]:
    rows = connection.execute(
        sa.select(t.evidence.c.subject_id, *_FIGURES)
        .join(t.skills, t.skills.c.id == t.evidence.c.subject_id)
        .where(
            t.evidence.c.subject_kind == "skill",
            t.evidence.c.access_scope == t.skills.c.access_scope,
        )
        .order_by(t.evidence.c.created_at, t.evidence.c.id)
    )
    by_skill: dict[str, list[EvidenceRow]] = {}
    for row in rows:
        by_skill.setdefault(row.subject_id, []).append(record_of(EvidenceRow, row, details={}))
    return by_skill


def evidence_line(evidence: Sequence[EvidenceRow]) -> str:
    """The evidence of a skill in one line, with the lowest bound of speed-ups. Measurements by a
    simulator are only counted."""
    rows = [row for row in evidence if row.kind != "simulator"]
    return _line(
        n=sum(row.n for row in rows),
        low=min((row.speedup_low for row in rows if row.speedup_low is not None), default=None),
        shapes=len({row.case_id for row in rows if row.case_id}),
        runs=len({row.evaluation_id for row in rows if row.evaluation_id}),
        simulated=len(evidence) - len(rows),
    )


def evidence_lines(
    connection: Connection, skill_ids: Sequence[str], access_scope: AccessScope = ALL_ACCESS
) -> dict[str, str]:
    """`evidence_line` for every id, counted by the database."""
    lines = dict.fromkeys(skill_ids, NOT_MEASURED)
    query = _line_query(access_scope)
    for identity, *figures in select_in(connection, query, t.evidence.c.subject_id, skill_ids):
        lines[identity] = _line(*figures)
    return lines


def _line_query(access_scope: AccessScope) -> sa.Select[Any]:
    e = t.evidence.c
    clocked = e.kind != "simulator"

    def distinct(column: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        return sa.func.count(sa.distinct(sa.case((clocked, sa.func.nullif(column, "")))))

    return (
        sa.select(
            e.subject_id,
            sa.func.sum(sa.case((clocked, e.n), else_=0)),
            sa.func.min(sa.case((clocked, e.speedup_low))),
            distinct(e.case_id),
            distinct(e.evaluation_id),
            sa.func.count(sa.case((~clocked, 1))),
        )
        .where(e.subject_kind == "skill", visible.evidence(access_scope))
        .group_by(e.subject_id)
    )


def _line(n: int, low: float | None, shapes: int, runs: int, simulated: int) -> str:
    simulations = [f"simulated={simulated}"] if simulated else []
    if not n:
        return ";".join([NOT_MEASURED, *simulations])
    bound = [f"speedup_lcb={low:.2f}"] if low is not None else []
    return ";".join([f"n={n}", *bound, f"shapes={shapes}", f"runs={runs}", *simulations])


Z95 = 1.959963984540054  # of the normal distribution, 95 % two-sided


@dataclass(frozen=True)
class RateInterval:
    """An interval of a rate, both ends between 0 and 1."""

    low: float
    high: float


def wilson(wins: int, trials: int) -> RateInterval:
    """Wilson's 95 % score interval of a rate; 0 to 1 without trials.

    Wilson 1927, "Probable inference, the law of succession, and statistical inference", JASA 22.
    """
    if trials == 0:
        return RateInterval(0.0, 1.0)
    rate, spread = wins / trials, Z95 * Z95 / trials
    centre = (rate + spread / 2) / (1 + spread)
    half = Z95 / (1 + spread) * math.sqrt(rate * (1 - rate) / trials + spread / (4 * trials))
    return RateInterval(max(0.0, centre - half), min(1.0, centre + half))


TRIALS = ("ablation", "lift")
# Outcomes of a kernel that cannot be used, which may support a skill to avoid something.
FAILURES = frozenset({"not_compiled", "incorrect", "unsupported", "crashed", "timed_out"})
AVOID = "avoid"


def trial_counts(connection: Connection, skill_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """(trials with a speed-up, trials that support the skill by themselves), by skill id; only of
    skills with such trials.

    Only trials as new as the skill's present text count. A trial supports a skill if its lower
    bound is above 1; for a skill to avoid something, if its upper bound is below 1.
    """
    avoided = t.skills.c.polarity == AVOID
    wins = sa.func.sum(
        sa.case(
            (sa.and_(avoided, t.evidence.c.speedup_high < 1.0), 1),
            (sa.and_(~avoided, t.evidence.c.speedup_low > 1.0), 1),
            else_=0,
        )
    )
    query = (
        sa.select(t.evidence.c.subject_id, sa.func.count(), wins)
        .join(t.skills, t.skills.c.id == t.evidence.c.subject_id)
        .where(
            t.evidence.c.subject_kind == "skill",
            t.evidence.c.kind.in_(TRIALS),
            t.evidence.c.speedup.is_not(None),
            t.evidence.c.created_at >= t.skills.c.written_at,
        )
        .group_by(t.evidence.c.subject_id)
    )
    rows = select_in(connection, query, t.evidence.c.subject_id, skill_ids)
    return {identity: (int(known), int(won)) for identity, known, won in rows}


def is_measured(connection: Connection, skill: SkillHead) -> bool:
    """Whether trials as new as the present text support the skill; for a skill to avoid something,
    also a failure on another problem or case than that of its origin."""
    rows = list(
        connection.execute(
            sa.select(t.evidence, t.skills.c.origin_run_id)
            .join(t.skills, t.skills.c.id == t.evidence.c.subject_id)
            .where(
                t.evidence.c.subject_kind == "skill",
                t.evidence.c.subject_id == skill.id,
                t.evidence.c.kind != "simulator",
            )
            .order_by(t.evidence.c.created_at.desc(), t.evidence.c.id.desc())
        )
    )
    present = [row for row in rows if row.created_at >= skill.written_at]
    if _certain([row for row in present if row.kind in TRIALS], skill.polarity):
        return True
    return skill.polarity == AVOID and _fails_on_another_problem(rows, present)


def _certain(newest: Sequence[sa.Row[Any]], polarity: str) -> bool:
    """Whether the newest trials together support the skill, up to a trial that is certainly against
    it, or in which it led to a wrong kernel or to a search that ended certainly slower."""
    sign = -1.0 if polarity == AVOID else 1.0
    gains: list[tuple[float, float]] = []
    for row in newest:
        if polarity != AVOID and _harmful(row.details):
            return False
        if row.speedup is None or row.speedup_low is None or row.speedup_high is None:
            continue
        gain = sign * math.log(row.speedup)
        least, most = sorted(sign * math.log(end) for end in (row.speedup_low, row.speedup_high))
        if most < 0:
            return False
        gains.append((gain, gain - least))
        if _surely_above_0(gains):
            return True
    return False


def _harmful(trial: Mapping[str, Any]) -> bool:
    """Whether a trial led to a wrong kernel, or its search ended certainly slower."""
    end = trial.get("end")
    return bool(trial.get("wrong")) or (end is not None and float(end["high"]) < 1.0)


def _surely_above_0(logs: Sequence[tuple[float, float]]) -> bool:
    """Whether the mean of logarithms, each with the distance to its lower bound, is certainly above
    0. Errors of trials are independent and add as squares."""
    return sum(log for log, _ in logs) > math.sqrt(sum(below * below for _, below in logs))


def _fails_on_another_problem(rows: Sequence[sa.Row[Any]], present: Sequence[sa.Row[Any]]) -> bool:
    """Whether a skill's change failed on another problem or case than that of its origin. A failure
    without a case is about all cases of its problem."""
    origin = [row for row in rows if _of_origin(row)]
    problems = {row.problem_id for row in origin}
    cases = {(row.problem_id, row.case_id) for row in origin}
    return any(
        row.details.get("validity") in FAILURES
        and not _of_origin(row)
        and row.problem_id is not None
        and (
            row.problem_id not in problems
            or (row.case_id is not None and (row.problem_id, row.case_id) not in cases)
        )
        for row in present
    )


def _of_origin(row: sa.Row[Any]) -> bool:
    return row.origin_run_id is not None and row.details.get("run") == row.origin_run_id
