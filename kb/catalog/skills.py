"""Skills in the catalog: rows with their scopes, an append-only history, and their evidence.

Every change of a row or of its state writes an event with an actor and a reason in the same
transaction. A learned skill starts as a candidate and is active only while its present text has
been measured. Knows neither the SKILL.md format (`skills`) nor how skills are ranked:
`candidate_skills` only leaves out what cannot apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog.engine import portions
from kb.catalog.meta import bump_revision
from kb.catalog.tables import skills as t
from kb.errors import Conflict, InvalidRequest, NotFound, nearest
from kb.ids import SkillId, derived_id, new_id
from kb.problem_terms import canonical_dtype, canonical_op
from kb.scope import ALL_ACCESS, ANY

Tier = Literal["curated", "learned"]
State = Literal["candidate", "active", "suspect", "retired", "quarantined"]
Outcome = Literal["created", "updated", "unchanged"]

TIERS: tuple[Tier, ...] = ("curated", "learned")
STATES: tuple[State, ...] = ("candidate", "active", "suspect", "retired", "quarantined")
TRANSITIONS: Mapping[str, frozenset[str]] = {
    "candidate": frozenset({"active", "retired", "quarantined"}),
    "active": frozenset({"suspect", "retired", "quarantined"}),
    "suspect": frozenset({"active", "candidate", "retired", "quarantined"}),
    "retired": frozenset({"candidate", "active", "quarantined"}),
    "quarantined": frozenset({"candidate", "retired"}),
}


@dataclass(frozen=True)
class SkillScopes:
    """What a skill is about; an empty tuple restricts nothing."""

    hardware: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()


_KINDS = {
    "hardware": "hardware",
    "languages": "language",
    "ops": "op",
    "dtypes": "dtype",
    "signals": "signal",
}


@dataclass(frozen=True)
class SkillDraft:
    """A skill as it is to be stored. `version` counts only when the skill is new here."""

    name: str
    tier: Tier
    transformation: str
    description: str
    body: str
    scopes: SkillScopes
    content_sha256: str
    origin: Literal["shipped", "import", "run", "person"]
    polarity: str = "use"
    predicate: str | None = None
    moves: Sequence[Mapping[str, Any]] = ()
    recipe: Mapping[str, Any] | None = None
    sources: Sequence[Mapping[str, Any]] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    license: str | None = None
    compatibility: str | None = None
    version: int = 1
    origin_run_id: str | None = None
    toolchain_id: str | None = None


@dataclass(frozen=True)
class SkillRow:
    id: SkillId
    name: str
    version: int
    tier: str
    state: str
    polarity: str
    transformation: str
    description: str
    compatibility: str | None
    license: str | None
    body: str
    predicate: str | None
    moves: tuple[Mapping[str, Any], ...]
    recipe: Mapping[str, Any] | None
    sources: tuple[Mapping[str, Any], ...]
    metadata: Mapping[str, Any]
    content_sha256: str
    structured_key: str
    origin: str
    origin_run_id: str | None
    toolchain_id: str | None
    created_at: str
    updated_at: str
    scopes: SkillScopes


@dataclass(frozen=True)
class SkillEvent:
    sequence: int
    event: str
    from_state: str | None
    to_state: str | None
    actor: str
    reason: str
    details: Mapping[str, Any]
    created_at: str


@dataclass(frozen=True)
class EvidenceRow:
    """One measurement that backs (or contradicts) a skill."""

    id: str
    hardware_id: str
    device_id: str | None
    toolchain_id: str | None
    problem_id: str | None
    case_id: str | None
    evaluation_id: str | None
    kind: str
    n: int
    baseline_us: float | None
    measured_us: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    details: Mapping[str, Any]
    created_at: str


@dataclass(frozen=True)
class Stored:
    """What became of a `put`."""

    id: SkillId
    outcome: Outcome
    version: int


_EVENT_COLUMNS = [t.skill_events.c[name] for name in SkillEvent.__dataclass_fields__]
_EVIDENCE_COLUMNS = [t.evidence.c[name] for name in EvidenceRow.__dataclass_fields__]
_COPIED = [
    name
    for name in SkillRow.__dataclass_fields__
    if name not in ("id", "moves", "sources", "scopes")
]


def structured_key(scopes: SkillScopes, transformation: str) -> str:
    """Equal for two skills that claim the same thing about the same situation."""
    parts = (scopes.ops, scopes.signals, (transformation,), scopes.hardware, scopes.dtypes)
    return "|".join(",".join(sorted(part)) for part in parts)


# -- writing


def put(
    connection: Connection,
    draft: SkillDraft,
    *,
    state: State,
    actor: str,
    reason: str,
    details: Mapping[str, Any] | None = None,
    access_scope: str = ALL_ACCESS,
) -> Stored:
    """Store a skill. `state` is that of a new one.

    One that exists gets a new version when its content differs, and keeps its state; a learned one
    that was in use is a candidate again, because its evidence speaks of the text before.
    """
    if draft.tier == "learned" and state != "candidate":
        raise InvalidRequest(
            f"{draft.name} is learned and cannot start as {state}",
            hint="Store it as a candidate; a measurement makes it active.",
        )
    known = find(connection, draft.name, access_scope)
    values = _values(draft)
    if known is None:
        skill_id = SkillId(derived_id("sk", access_scope, draft.name))
        connection.execute(
            t.skills.insert().values(
                **values,
                id=skill_id,
                version=draft.version,
                state=state,
                created_at=clock.now(),
                access_scope=access_scope,
            )
        )
        stored = Stored(skill_id, "created", draft.version)
        change: tuple[str | None, str] = (None, state)
    elif known.content_sha256 == draft.content_sha256 and known.tier == draft.tier:
        return Stored(known.id, "unchanged", known.version)
    else:
        unmeasured = draft.tier == "learned" and known.state in ("active", "suspect")
        change = (known.state, "candidate" if unmeasured else known.state)
        connection.execute(
            t.skills.update()
            .where(t.skills.c.id == known.id)
            .values(**values, version=known.version + 1, state=change[1])
        )
        stored = Stored(known.id, "updated", known.version + 1)
    _replace_scopes(connection, stored.id, draft.scopes)
    event = "created" if stored.outcome == "created" else "revised"
    noted = {**(details or {}), "version": stored.version, "sha256": draft.content_sha256}
    _append(connection, stored.id, event, change, actor, reason, noted)
    bump_revision(connection)
    return stored


def set_state(
    connection: Connection,
    name: str,
    state: State,
    *,
    actor: str,
    reason: str,
    details: Mapping[str, Any] | None = None,
    access_scope: str = ALL_ACCESS,
) -> SkillEvent:
    """Move a skill to another state, with the event that says who did it and why."""
    if not actor.strip() or not reason.strip():
        raise InvalidRequest("a change of state needs an actor and a reason", hint="Give both.")
    skill = get(connection, name, access_scope)
    allowed = TRANSITIONS[skill.state]
    if state not in allowed:
        raise Conflict(
            f"{name} is {skill.state} and cannot become {state}",
            hint=f"From {skill.state} it can become {', '.join(sorted(allowed))}.",
        )
    if state == "active" and skill.tier == "learned" and not _measured(connection, skill):
        raise Conflict(
            f"{name} is learned and version {skill.version} of it has no measurement here",
            hint="Measure it with and without the skill first; until then it stays a candidate.",
        )
    connection.execute(
        t.skills.update()
        .where(t.skills.c.id == skill.id)
        .values(state=state, updated_at=clock.now())
    )
    change = (skill.state, state)
    event = _append(connection, skill.id, "state", change, actor, reason, details or {})
    bump_revision(connection)
    return event


def _measured(connection: Connection, skill: SkillRow) -> bool:
    """Whether there is evidence at least as new as the present text."""
    written = connection.execute(
        sa.select(sa.func.max(t.skill_events.c.created_at)).where(
            t.skill_events.c.skill_id == skill.id,
            t.skill_events.c.event.in_(("created", "revised")),
        )
    ).scalar()
    newest = connection.execute(
        sa.select(sa.func.max(t.evidence.c.created_at)).where(
            t.evidence.c.subject_kind == "skill",
            t.evidence.c.subject_id == skill.id,
            t.evidence.c.n > 0,
        )
    ).scalar()
    return newest is not None and (written is None or newest >= written)


def _values(draft: SkillDraft) -> dict[str, Any]:
    values = {key: value for key, value in vars(draft).items() if key not in ("scopes", "version")}
    return {
        **values,
        "moves": [dict(move) for move in draft.moves],
        "recipe": dict(draft.recipe) if draft.recipe is not None else None,
        "sources": [dict(source) for source in draft.sources],
        "metadata": dict(draft.metadata),
        "structured_key": structured_key(draft.scopes, draft.transformation),
        "updated_at": clock.now(),
    }


def _replace_scopes(connection: Connection, skill_id: str, scopes: SkillScopes) -> None:
    connection.execute(t.skill_scopes.delete().where(t.skill_scopes.c.skill_id == skill_id))
    rows = [
        {"skill_id": skill_id, "kind": kind, "value": value}
        for name, kind in _KINDS.items()
        for value in dict.fromkeys(getattr(scopes, name))
    ]
    if rows:
        connection.execute(t.skill_scopes.insert(), rows)


def _append(
    connection: Connection,
    skill_id: str,
    event: str,
    change: tuple[str | None, str | None],
    actor: str,
    reason: str,
    details: Mapping[str, Any],
) -> SkillEvent:
    last = connection.execute(
        sa.select(sa.func.max(t.skill_events.c.sequence)).where(
            t.skill_events.c.skill_id == skill_id
        )
    ).scalar()
    row = SkillEvent((last or 0) + 1, event, *change, actor, reason, dict(details), clock.now())
    connection.execute(
        t.skill_events.insert().values(**vars(row), id=new_id("ske"), skill_id=skill_id)
    )
    return row


# -- reading


def find(connection: Connection, name: str, access_scope: str) -> SkillRow | None:
    found = _rows(connection, _visible(access_scope).where(t.skills.c.name == name))
    return found[0] if found else None


def get(connection: Connection, name: str, access_scope: str) -> SkillRow:
    """The skill of this name; NotFound names the nearest."""
    found = find(connection, name, access_scope)
    if found is None:
        known = connection.execute(
            sa.select(t.skills.c.name).where(t.skills.c.access_scope == access_scope)
        ).scalars()
        near = nearest(name, known)
        hint = f"Did you mean {', '.join(near)}? " if near else ""
        raise NotFound(
            f"no skill {name!r}",
            hint=f"{hint}GET /skills lists every skill.",
            details={"skill": name, "nearest": near},
        )
    return found


def events(connection: Connection, skill_id: str, access_scope: str) -> list[SkillEvent]:
    """The whole history, oldest first."""
    rows = connection.execute(
        sa.select(*_EVENT_COLUMNS)
        .join(t.skills, t.skills.c.id == t.skill_events.c.skill_id)
        .where(t.skill_events.c.skill_id == skill_id, t.skills.c.access_scope == access_scope)
        .order_by(t.skill_events.c.sequence)
    )
    return [SkillEvent(**row._mapping) for row in rows]


def evidence_of(connection: Connection, skill_id: str, access_scope: str) -> list[EvidenceRow]:
    return evidence_for(connection, [skill_id], access_scope).get(skill_id, [])


def evidence_for(
    connection: Connection, skill_ids: Sequence[str], access_scope: str
) -> dict[str, list[EvidenceRow]]:
    """The measurements of some skills, oldest first."""
    found: dict[str, list[EvidenceRow]] = {}
    for part in portions(list(skill_ids)):
        rows = connection.execute(
            sa.select(t.evidence.c.subject_id, *_EVIDENCE_COLUMNS)
            .where(
                t.evidence.c.subject_kind == "skill",
                t.evidence.c.subject_id.in_(part),
                t.evidence.c.access_scope == access_scope,
            )
            .order_by(t.evidence.c.created_at, t.evidence.c.id)
        )
        for row in rows:
            values = dict(row._mapping)
            found.setdefault(values.pop("subject_id"), []).append(EvidenceRow(**values))
    return found


def candidate_skills(
    connection: Connection,
    signals: Sequence[str],
    hardware_scopes: Sequence[str] | None,
    op: str | None,
    language: str | None,
    dtype: str | None,
    states: Sequence[str],
    access_scope: str = ALL_ACCESS,
) -> list[SkillRow]:
    """Skills that may apply, by name: all that they restrict admits what is asked for.

    signals empty: of any signal. hardware_scopes: the lineage; None admits every chip. What the
    request leaves open (op, language, dtype None) excludes nothing. Predicates and ranking are the
    caller's.
    """
    query = _visible(access_scope).where(t.skills.c.state.in_(list(states)))
    wanted: dict[str, Sequence[str] | None] = {
        "signal": list(signals) or None,
        "hardware": None if hardware_scopes is None else [*hardware_scopes, ANY],
        "op": [canonical_op(op)] if op else None,
        "language": [language] if language else None,
        "dtype": [canonical_dtype(dtype)] if dtype else None,
    }
    for kind, values in wanted.items():
        if values is not None:
            query = query.where(_admits(kind, values))
    return _rows(connection, query)


def listed(
    connection: Connection,
    *,
    states: Sequence[str] | None = None,
    tier: str | None = None,
    hardware_scopes: Sequence[str] | None = None,
    signal: str | None = None,
    origin: str | None = None,
    access_scope: str = ALL_ACCESS,
) -> list[SkillRow]:
    """Skills by name. `signal`: only those that name it."""
    query = _visible(access_scope)
    if states is not None:
        query = query.where(t.skills.c.state.in_(list(states)))
    if tier is not None:
        query = query.where(t.skills.c.tier == tier)
    if origin is not None:
        query = query.where(t.skills.c.origin == origin)
    if hardware_scopes is not None:
        query = query.where(_admits("hardware", [*hardware_scopes, ANY]))
    if signal is not None:
        query = query.where(_scoped("signal").where(t.skill_scopes.c.value == signal).exists())
    return _rows(connection, query)


def _visible(access_scope: str) -> sa.Select[Any]:
    return sa.select(t.skills).where(t.skills.c.access_scope == access_scope)


def _scoped(kind: str) -> sa.Select[Any]:
    return sa.select(t.skill_scopes.c.skill_id).where(
        t.skill_scopes.c.skill_id == t.skills.c.id, t.skill_scopes.c.kind == kind
    )


def _admits(kind: str, values: Sequence[str]) -> sa.ColumnElement[bool]:
    """Skills that name one of the values, or none of this kind at all."""
    named = _scoped(kind)
    return sa.or_(~named.exists(), named.where(t.skill_scopes.c.value.in_(list(values))).exists())


def _rows(connection: Connection, query: sa.Select[Any]) -> list[SkillRow]:
    rows = list(connection.execute(query.order_by(t.skills.c.name)))
    scopes: dict[str, dict[str, list[str]]] = {}
    for part in portions([row.id for row in rows]):
        found = connection.execute(
            sa.select(t.skill_scopes)
            .where(t.skill_scopes.c.skill_id.in_(part))
            .order_by(t.skill_scopes.c.value)
        )
        for scope in found:
            scopes.setdefault(scope.skill_id, {}).setdefault(scope.kind, []).append(scope.value)
    return [_row(row, scopes.get(row.id, {})) for row in rows]


def _row(row: sa.Row[Any], scopes: Mapping[str, Sequence[str]]) -> SkillRow:
    return SkillRow(
        id=SkillId(row.id),
        moves=tuple(row.moves),
        sources=tuple(row.sources),
        scopes=SkillScopes(**{name: tuple(scopes.get(kind, ())) for name, kind in _KINDS.items()}),
        **{name: row._mapping[name] for name in _COPIED},
    )
