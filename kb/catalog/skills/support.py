"""Whether measurements bear out what a skill claims: that a change helps, or, for a skill that
advises to avoid something, that it does harm. And how sure a rate of successes is.

Only trials with and without the skill count, on problems that it was not distilled from; the pairs
that it was distilled from are where the claim comes from and prove nothing. A speed-up is the time
without over the time with what the skill is about, so for a skill to avoid a figure below 1 is
support.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog.engine import portions
from kb.catalog.kept import look_up
from kb.catalog.skills.rows import SkillHead
from kb.catalog.tables import skills as t

Z95 = 1.959963984540054  # of the normal distribution, 95 % two-sided


@dataclass(frozen=True)
class Bounds:
    """An interval of a rate, both ends between 0 and 1."""

    low: float
    high: float


def wilson(wins: int, trials: int) -> Bounds:
    """Wilson's 95 % score interval of a rate; all of it, 0 to 1, without trials.

    Wilson 1927, "Probable inference, the law of succession, and statistical inference", JASA 22.
    """
    if trials == 0:
        return Bounds(0.0, 1.0)
    rate, spread = wins / trials, Z95 * Z95 / trials
    centre = (rate + spread / 2) / (1 + spread)
    half = Z95 / (1 + spread) * math.sqrt(rate * (1 - rate) / trials + spread / (4 * trials))
    return Bounds(max(0.0, centre - half), min(1.0, centre + half))


TRIALS = ("ablation", "lift")
# Ends of a kernel that was tried and cannot be used. They have no figure, and are what an advice to
# avoid something may rest on.
FAILURES = frozenset({"not_compiled", "incorrect", "crashed", "timed_out"})
AVOID = "avoid"


def tested(connection: Connection, skill_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """(trials with a speed-up, trials that bear the skill out by themselves), by skill id.

    Only trials as new as the skill's present text count. A trial bears a skill out where its lower
    bound is above 1; for a skill to avoid something, where its upper bound is below 1. Skills
    without such a trial are left out. Read once for each revision of the catalog.
    """

    def read(ids: Sequence[str]) -> dict[str, tuple[int, int] | None]:
        return {**dict.fromkeys(ids), **_tested(connection, ids)}

    counts = look_up(connection, "trials of skills", skill_ids, read)
    return {identity: count for identity, count in counts.items() if count is not None}


def _tested(connection: Connection, skill_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    avoided = t.skills.c.polarity == AVOID
    wins = sa.func.sum(
        sa.case(
            (sa.and_(avoided, t.evidence.c.speedup_high < 1.0), 1),
            (sa.and_(~avoided, t.evidence.c.speedup_low > 1.0), 1),
            else_=0,
        )
    )
    counts: dict[str, tuple[int, int]] = {}
    for part in portions(list(skill_ids)):
        rows = connection.execute(
            sa.select(t.evidence.c.subject_id, sa.func.count(), wins)
            .join(t.skills, t.skills.c.id == t.evidence.c.subject_id)
            .where(
                t.evidence.c.subject_kind == "skill",
                t.evidence.c.subject_id.in_(part),
                t.evidence.c.kind.in_(TRIALS),
                t.evidence.c.speedup.is_not(None),
                t.evidence.c.created_at >= t.skills.c.written_at,
            )
            .group_by(t.evidence.c.subject_id)
        )
        counts |= {identity: (int(known), int(won)) for identity, known, won in rows}
    return counts


def measured(connection: Connection, skill: SkillHead) -> bool:
    """Whether trials that are as new as the present text bear the skill out.

    A skill to avoid something may rest on a failure instead, on another problem or case than the
    one that it was distilled from.
    """
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
    return skill.polarity == AVOID and _fails_elsewhere(rows, present)


def _certain(newest: Sequence[sa.Row[Any]], polarity: str) -> bool:
    """Whether the newest trials, as many as are needed, together bear the skill out.

    The count ends at a trial that is certainly against it, or in which it led to a wrong kernel or
    to a search that ended certainly slower.
    """
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
    """Whether it led to a wrong kernel, or the search with it ended certainly slower."""
    end = trial.get("end")
    return bool(trial.get("wrong")) or (end is not None and float(end["high"]) < 1.0)


def _surely_above_0(logs: Sequence[tuple[float, float]]) -> bool:
    """Whether the mean of logarithms is above 0 with certainty.

    Each logarithm comes with the distance to its lower bound; errors of trials are independent and
    add as squares.
    """
    return sum(log for log, _ in logs) > math.sqrt(sum(below * below for _, below in logs))


def _fails_elsewhere(rows: Sequence[sa.Row[Any]], present: Sequence[sa.Row[Any]]) -> bool:
    """Whether it failed on another problem or case than the one it was distilled from.

    A failure without a case concerns all cases of its problem, so on the same problem it is the
    same failure again.
    """
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
