"""Measurements that back or contradict a skill, and the toolchains that they were taken with.

Measurements are added, never changed or removed. A toolchain is named as the harness names it: its
name, then its versions (`cpp g++ 13.2.0`). A skill carries the toolchain of its newest evidence;
where that differs from the one in use on the hardware, the evidence is about another compiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import meta, visible
from kb.catalog.engine import portions
from kb.catalog.kept import look_up
from kb.catalog.meta import bump_skills
from kb.catalog.skills.reading import get
from kb.catalog.skills.rows import EVIDENCE_KINDS, EvidenceKind, EvidenceRow, SkillRow, one_of
from kb.catalog.skills.writing import append_event
from kb.catalog.tables import skills as t
from kb.errors import InvalidRequest
from kb.ids import new_id
from kb.scope import ALL_ACCESS, AccessScope

_TOOLCHAINS = "toolchains"


def toolchain_name(toolchain: str) -> str:
    """`triton-nvidia` of `triton-nvidia triton 3.4.0, torch 2.8.0`."""
    return toolchain.split(" ", 1)[0]


def present_toolchains(connection: Connection) -> Mapping[str, Mapping[str, str]]:
    """The toolchains in use, by hardware id and then by toolchain name. Read once for each revision
    of the catalog.
    """

    def read(names: Sequence[str]) -> dict[str, Mapping[str, Mapping[str, str]]]:
        return {name: meta.get(connection, name) or {} for name in names}

    return look_up(connection, "toolchains in use", [_TOOLCHAINS], read)[_TOOLCHAINS]


def note_toolchain(connection: Connection, hardware: str, toolchain: str) -> str | None:
    """Store that this toolchain is in use on the hardware.

    Returns the one of the same name that was in use before, or None. Raises InvalidRequest.
    """
    name = toolchain_name(toolchain)
    if not name or not hardware:
        raise InvalidRequest(
            f"no toolchain: {toolchain!r} on {hardware!r}", hint="Give its name and versions."
        )
    known = {place: dict(chains) for place, chains in present_toolchains(connection).items()}
    before = known.setdefault(hardware, {}).get(name)
    if before != toolchain:
        known[hardware][name] = toolchain
        meta.put(connection, _TOOLCHAINS, known)
        meta.bump_skills(connection)
    return before


NOT_MEASURED = "not measured here"
_COLUMNS = [t.evidence.c[name] for name in EvidenceRow.__dataclass_fields__]
_FIGURES = [column for column in _COLUMNS if column.name != "details"]


def add_evidence(
    connection: Connection,
    name: str,
    *,
    kind: EvidenceKind,
    hardware: str,
    n: int,
    actor: str,
    reason: str,
    device: str | None = None,
    toolchain: str | None = None,
    problem: str | None = None,
    case: str | None = None,
    evaluation: str | None = None,
    baseline_us: float | None = None,
    measured_us: float | None = None,
    speedup: float | None = None,
    low: float | None = None,
    high: float | None = None,
    details: Mapping[str, Any] | None = None,
    access_scope: AccessScope = ALL_ACCESS,
) -> EvidenceRow:
    """Add a measurement of the skill `name`; returns its row.

    `n` counts pairs of blocks, or repetitions. Times are in microseconds a call. `speedup` is the
    time without the skill over the time with it, `low` and `high` its 95 % interval. `toolchain` is
    named as the harness names it. A wall-clock measurement makes its toolchain the one that the
    skill was last verified with. Raises InvalidRequest and NotFound.
    """
    one_of(kind, EVIDENCE_KINDS, "kind of evidence")
    _check(n, speedup, low, high)
    skill = get(connection, name, access_scope)
    row = EvidenceRow(
        id=new_id("ev"),
        hardware_id=hardware,
        device_id=device,
        toolchain_id=toolchain,
        problem_id=problem,
        case_id=case,
        evaluation_id=evaluation,
        kind=kind,
        n=n,
        baseline_us=baseline_us,
        measured_us=measured_us,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        details=dict(details or {}),
        created_at=clock.now(),
    )
    _store(connection, skill, row, actor, reason, access_scope)
    return row


def _store(
    connection: Connection,
    skill: SkillRow,
    row: EvidenceRow,
    actor: str,
    reason: str,
    access_scope: AccessScope,
) -> None:
    connection.execute(
        t.evidence.insert().values(
            **vars(row), subject_kind="skill", subject_id=skill.id, access_scope=access_scope.owner
        )
    )
    if row.toolchain_id is not None and row.kind != "simulator":
        connection.execute(
            t.skills.update().where(t.skills.c.id == skill.id).values(toolchain_id=row.toolchain_id)
        )
    noted = {"evidence": row.id, "kind": row.kind, "version": skill.version}
    state = (skill.state, skill.state)
    append_event(connection, skill.id, "evidence", state, actor, reason, noted)
    bump_skills(connection)


def _check(n: int, speedup: float | None, low: float | None, high: float | None) -> None:
    if n < 1:
        raise InvalidRequest(f"evidence of {n} measurements", hint="n is at least 1.")
    known = [figure for figure in (low, speedup, high) if figure is not None]
    if any(not 0 < figure < 1e6 for figure in known) or known != sorted(known):
        raise InvalidRequest(
            f"a speed-up of {speedup} between {low} and {high}",
            hint="low <= speedup <= high, each positive; 2.0 means twice as fast.",
        )


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
    """The measurements of some skills, oldest first; `details` False leaves their details out."""
    columns = _COLUMNS if details else [*_FIGURES, sa.literal(None).label("details")]
    rows_by_skill: dict[str, list[EvidenceRow]] = {}
    for part in portions(list(skill_ids)):
        rows = connection.execute(
            sa.select(t.evidence.c.subject_id, *columns)
            .where(
                t.evidence.c.subject_kind == "skill",
                t.evidence.c.subject_id.in_(part),
                visible.evidence(access_scope),
            )
            .order_by(t.evidence.c.created_at, t.evidence.c.id)
        )
        for row in rows:
            values = dict(row._mapping)
            values["details"] = values["details"] or {}
            rows_by_skill.setdefault(values.pop("subject_id"), []).append(EvidenceRow(**values))
    return rows_by_skill


def evidence_line(evidence: Sequence[EvidenceRow]) -> str:
    """The figures of a skill's evidence on one line; the bound is the lowest measured.

    Times of a simulator are counted, never mixed with those of a clock.
    """
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
    for part in portions(list(skill_ids)):
        for identity, *figures in connection.execute(_line_query(part, access_scope)):
            lines[identity] = _line(*figures)
    return lines


def _line_query(skill_ids: Sequence[str], access_scope: AccessScope) -> sa.Select[Any]:
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
        .where(
            e.subject_kind == "skill",
            e.subject_id.in_(skill_ids),
            visible.evidence(access_scope),
        )
        .group_by(e.subject_id)
    )


def _line(n: int, low: float | None, shapes: int, runs: int, simulated: int) -> str:
    """`n` counts measurements by a clock."""
    simulations = [f"simulated={simulated}"] if simulated else []
    if not n:
        return ";".join([NOT_MEASURED, *simulations])
    bound = [f"speedup_lcb={low:.2f}"] if low is not None else []
    return ";".join([f"n={n}", *bound, f"shapes={shapes}", f"runs={runs}", *simulations])
