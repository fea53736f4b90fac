"""Changes of skills: every change of a row, its state or its relations writes an event with an
actor and a reason in the same transaction.

A learned skill starts as a candidate. It is active only while trials support its present text, or
if a person approved it without a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import meta, visible
from kb.catalog import tables as t
from kb.catalog.engine import columns_of, record_of
from kb.catalog.meta import bump_skills, bump_uses
from kb.catalog.skills.evidence import (
    _TOOLCHAINS,
    AVOID,
    is_measured,
    present_toolchains,
    toolchain_name,
)
from kb.catalog.skills.reading import (
    EVIDENCE_KINDS,
    LINK_KINDS,
    REVISES,
    REVISES_SHA256,
    ROLES,
    SCOPE_KINDS,
    TRANSITIONS,
    WRITTEN,
    EvidenceRow,
    LinkKind,
    NewUse,
    SkillDraft,
    SkillEvent,
    SkillHead,
    SkillLift,
    SkillLink,
    SkillRow,
    SkillScopes,
    SkillState,
    StoredSkill,
    UseRole,
    UseRow,
    check_word,
    find_skill,
    get_skill,
    heads_by_name,
    structured_key,
)
from kb.catalog.skills.shipped import SHIPPED
from kb.catalog.tables import outcomes, retrievals
from kb.errors import Conflict, InvalidRequest
from kb.ids import SkillId, derived_id, new_id
from kb.scope import ALL_ACCESS, AccessScope

# Columns of a skill that stay when a revision replaces its text.
_OF_THE_SKILL = frozenset(
    {"id", "name", "version", "state", "created_at", "written_at", "updated_at", "last_used_at"}
    | {"scopes", "origin_run_id"}
)


def store_skill(
    connection: Connection,
    draft: SkillDraft,
    *,
    state: SkillState,
    actor: str,
    reason: str,
    details: Mapping[str, Any] | None = None,
    access_scope: AccessScope = ALL_ACCESS,
) -> StoredSkill:
    """Store a skill; `state` is that of a new skill.

    An existing skill gets a new version if its content differs, and keeps its state; a learned
    skill in use becomes a candidate again, because its evidence is about the earlier text. A
    narrowed shipped skill stays narrow until another text ships. Raises InvalidRequest for a
    learned skill that does not start as a candidate.
    """
    if draft.tier == "learned" and state != "candidate":
        raise InvalidRequest(
            f"{draft.name} is learned and cannot start as {state}",
            hint="Store it as a candidate; a measurement makes it active.",
        )
    known = _changeable(connection, draft, access_scope)
    now = clock.now()
    values = {**_values(draft), "updated_at": now, "written_at": now}
    if known is None:
        skill_id = SkillId(derived_id("sk", access_scope.owner, draft.name))
        connection.execute(
            t.skills.insert().values(
                **values,
                id=skill_id,
                version=draft.version,
                state=state,
                created_at=now,
                access_scope=access_scope.owner,
            )
        )
        stored = StoredSkill(skill_id, "created", draft.version)
        change: tuple[str | None, str] = (None, state)
    elif known.tier == draft.tier and _has_same_text(connection, known, draft):
        return StoredSkill(known.id, "unchanged", known.version)
    else:
        unmeasured = draft.tier == "learned" and known.state in ("active", "suspect")
        change = (known.state, "candidate" if unmeasured else known.state)
        connection.execute(
            t.skills.update()
            .where(t.skills.c.id == known.id)
            .values(**values, version=known.version + 1, state=change[1], trials=0, wins=0)
        )
        stored = StoredSkill(known.id, "updated", known.version + 1)
    _replace_scopes(connection, stored.id, draft.scopes)
    event = "created" if stored.outcome == "created" else "revised"
    noted = {**(details or {}), "version": stored.version, "sha256": draft.content_sha256}
    append_event(connection, stored.id, event, change, actor, reason, noted)
    bump_skills(connection)
    return stored


def set_shipped_evidence(
    connection: Connection, skill: SkillRow, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Replace the trials that ship with a skill; its text and version stay."""
    metadata = {**skill.metadata, SHIPPED: list(rows)}
    connection.execute(t.skills.update().where(t.skills.c.id == skill.id).values(metadata=metadata))
    bump_skills(connection)


def _changeable(connection: Connection, draft: SkillDraft, access: AccessScope) -> SkillRow | None:
    """The stored skill of this name. Raises Forbidden and Conflict if the caller may not replace
    it."""
    if not access.restricted:
        return find_skill(connection, draft.name, access)
    access.check_change(draft.scopes.hardware, f"the skill {draft.name}")
    known = find_skill(connection, draft.name, AccessScope(access.owner))
    if known is not None and not (
        known.scopes.hardware and access.own >= set(known.scopes.hardware)
    ):
        raise Conflict(f"the name {draft.name} is taken", hint="Give the skill another name.")
    return known


def set_state(
    connection: Connection,
    name: str,
    state: SkillState,
    *,
    actor: str,
    reason: str,
    details: Mapping[str, Any] | None = None,
    force: bool = False,
    access_scope: AccessScope = ALL_ACCESS,
) -> SkillEvent:
    """Move a skill to another state; returns the event.

    A revision that becomes active replaces the text of the skill that it revises, and is retired:
    the event is then that skill's. With `force`, a person activates a learned skill that no trial
    supports, which the event records (`approved_without_measurement`). The counters of uses start
    again where a skill leaves retired or quarantined. Raises Conflict for a transition that is not
    allowed, and for a learned skill without a measurement.
    """
    _check_signed(actor, reason)
    skill = get_skill(connection, name, access_scope)
    access_scope.check_change(skill.scopes.hardware, f"the skill {name}")
    allowed = TRANSITIONS[skill.state]
    if state not in allowed:
        cannot = "already" if skill.state == state else f"and cannot become {state}"
        raise Conflict(
            f"{name} is {skill.state} {cannot}",
            hint=f"From {skill.state} it can become {', '.join(sorted(allowed))}.",
        )
    noted = dict(details or {})
    if state == "active" and skill.tier == "learned" and not is_measured(connection, skill):
        if not force:
            raise _unmeasured(skill)
        noted["approved_without_measurement"] = True
    if state == "active" and skill.revises is not None:
        return _apply_revision(connection, skill, actor, reason, noted, access_scope)
    anew = {"trials": 0, "wins": 0} if skill.state in ("retired", "quarantined") else {}
    connection.execute(
        t.skills.update()
        .where(t.skills.c.id == skill.id)
        .values(state=state, updated_at=clock.now(), **anew)
    )
    change = (skill.state, state)
    event = append_event(connection, skill.id, "state", change, actor, reason, noted)
    bump_skills(connection)
    return event


def _apply_revision(
    connection: Connection,
    revision: SkillRow,
    actor: str,
    reason: str,
    details: Mapping[str, Any],
    access_scope: AccessScope,
) -> SkillEvent:
    """Give the revised skill the text, scopes and measurements of a revision, as a new active
    version; its earlier text stays in its history. The copied measurements are dated now, because
    only those as new as the text count."""
    skill = get_skill(connection, str(revision.revises), access_scope)
    access_scope.check_change(skill.scopes.hardware, f"the skill {skill.name}")
    if skill.state == "quarantined" or skill.tier != revision.tier:
        raise Conflict(
            f"{revision.name} revises {skill.name}, which is {skill.tier} and {skill.state}",
            hint=f"Restore {skill.name} first, or import the text under another name.",
        )
    version = skill.version + 1
    _replace_text(connection, skill, revision)
    noted = {
        **details,
        "skill": skill.name,
        "revision": revision.name,
        "version": version,
        "sha256": revision.metadata[REVISES_SHA256],
        "before": {
            "description": skill.description,
            "predicate": skill.predicate,
            "scopes": vars(skill.scopes),
            "body": skill.body,
        },
    }
    event = append_event(
        connection, skill.id, "revised", (skill.state, "active"), actor, reason, noted
    )
    took = f"took the place of version {skill.version} of {skill.name}"
    change = (revision.state, "retired")
    append_event(connection, revision.id, "state", change, actor, f"{took}: {reason}", details)
    bump_skills(connection)
    return event


def _replace_text(connection: Connection, skill: SkillRow, revision: SkillRow) -> None:
    """Replace the columns of a skill by those of a revision, and retire the revision."""
    now = clock.now()
    taken = SkillRow.__dataclass_fields__.keys() - _OF_THE_SKILL
    values = {field: getattr(revision, field) for field in taken}
    metadata = {k: v for k, v in revision.metadata.items() if not k.startswith(REVISES)}
    values |= {
        "moves": [dict(move) for move in revision.moves],
        "sources": [dict(source) for source in revision.sources],
        "metadata": metadata,
        "content_sha256": revision.metadata[REVISES_SHA256],
        "trials": 0,
        "wins": 0,
    }
    connection.execute(
        t.skills.update()
        .where(t.skills.c.id == skill.id)
        .values(**values, version=skill.version + 1, state="active", updated_at=now, written_at=now)
    )
    _replace_scopes(connection, skill.id, revision.scopes)
    _copy_evidence(connection, revision, skill.id, now)
    connection.execute(
        t.skills.update()
        .where(t.skills.c.id == revision.id)
        .values(state="retired", updated_at=now)
    )


def merge_skill(
    connection: Connection, skill: SkillRow, into: SkillRow, *, actor: str, reason: str
) -> SkillEvent:
    """Retire a skill in favour of another one, whose history and measurements get those of the
    merged one with their own times: they count as older than a text that was written since."""
    _check_signed(actor, reason)
    _copy_evidence(connection, skill, into.id, None)
    same = (into.state, into.state)
    noted = {"merged": skill.name, "version": skill.version, "sha256": skill.content_sha256}
    append_event(connection, into.id, "merged", same, actor, reason, noted)
    why = f"merged into {into.name}: {reason}"
    return set_state(
        connection, skill.name, "retired", actor=actor, reason=why, details={"into": into.name}
    )


def _copy_evidence(
    connection: Connection, revision: SkillRow, skill_id: str, moment: str | None
) -> None:
    """Copy the measurements of a skill to another one, dated to a given or their original time; the
    skill keeps them."""
    rows = connection.execute(
        sa.select(t.evidence)
        .where(t.evidence.c.subject_kind == "skill", t.evidence.c.subject_id == revision.id)
        .order_by(t.evidence.c.created_at, t.evidence.c.id)
    ).all()
    for row in rows:
        values = row._asdict()
        origin = {"measured_as": revision.name, "measured_at": row.created_at}
        values["details"] = {**values["details"], **origin}
        values |= {"id": new_id("ev"), "subject_id": skill_id}
        values["created_at"] = moment or row.created_at
        connection.execute(t.evidence.insert().values(**values))


def narrow_skill(
    connection: Connection,
    name: str,
    *,
    scopes: SkillScopes,
    predicate: str | None,
    content_sha256: str,
    counted: tuple[int, int],
    actor: str,
    reason: str,
    details: Mapping[str, Any],
) -> StoredSkill:
    """Store a new version with narrower scopes and preconditions and the same texts.

    State and evidence stay, because the measurements were made within the remaining scope.
    `counted` is (trials, wins) of the uses in it.
    """
    _check_signed(actor, reason)
    skill = get_skill(connection, name)
    version = skill.version + 1
    connection.execute(
        t.skills.update()
        .where(t.skills.c.id == skill.id)
        .values(
            version=version,
            predicate=predicate,
            content_sha256=content_sha256,
            structured_key=structured_key(scopes, skill.transformation),
            trials=counted[0],
            wins=counted[1],
            updated_at=clock.now(),
        )
    )
    _replace_scopes(connection, skill.id, scopes)
    noted = {
        **details,
        "version": version,
        "sha256": content_sha256,
        "before": {"predicate": skill.predicate, "scopes": vars(skill.scopes)},
        "after": {"predicate": predicate, "scopes": vars(scopes)},
    }
    append_event(connection, skill.id, "narrowed", (skill.state, skill.state), actor, reason, noted)
    bump_skills(connection)
    return StoredSkill(skill.id, "updated", version)


def append_event(
    connection: Connection,
    skill_id: str,
    event: str,
    change: tuple[str | None, str | None],
    actor: str,
    reason: str,
    details: Mapping[str, Any],
) -> SkillEvent:
    """Append to the history of a skill; `change` is its state before and after."""
    last = connection.scalar(
        sa.select(sa.func.max(t.skill_events.c.sequence)).where(
            t.skill_events.c.skill_id == skill_id
        )
    )
    row = SkillEvent((last or 0) + 1, event, *change, actor, reason, dict(details), clock.now())
    connection.execute(
        t.skill_events.insert().values(**vars(row), id=new_id("ske"), skill_id=skill_id)
    )
    return row


def _unmeasured(skill: SkillRow) -> Conflict:
    """The error for a skill without a measurement, with the way to get one."""
    if skill.polarity == AVOID:
        hint = (
            "It can be approved once what it warns of failed, or was certainly slower, on another"
            " problem or case than the one that it comes from. Where it names a parameter role and"
            f" a direction, `kernlore skills verify {skill.name}` tries that."
        )
    else:
        hint = f"Measure it with and without the skill: `kernlore skills verify {skill.name}`."
    return Conflict(
        f"{skill.name} is learned and version {skill.version} of it has no measurement here that"
        " bears it out",
        hint=f"{hint} Until then it stays as it is, unless a person approves it although"
        " no trial supports it (`force`).",
        details={"skill": skill.name, "state": skill.state, "polarity": skill.polarity},
    )


def _check_signed(actor: str, reason: str) -> None:
    if not actor.strip() or not reason.strip():
        raise InvalidRequest("a change of state needs an actor and a reason", hint="Give both.")


def _has_same_text(connection: Connection, known: SkillRow, draft: SkillDraft) -> bool:
    if known.content_sha256 == draft.content_sha256:
        return True
    return (
        draft.origin == known.origin == "shipped"
        and _narrowed_from(connection, known) == draft.content_sha256
    )


def _narrowed_from(connection: Connection, skill: SkillHead) -> str | None:
    """The digest of the text before it was narrowed."""
    details = connection.scalar(
        sa.select(t.skill_events.c.details)
        .where(t.skill_events.c.skill_id == skill.id, t.skill_events.c.event.in_(WRITTEN))
        .order_by(t.skill_events.c.sequence.desc())
        .limit(1)
    )
    return (details or {}).get("sha256")


def _values(draft: SkillDraft) -> dict[str, Any]:
    values = {key: value for key, value in vars(draft).items() if key not in ("scopes", "version")}
    return {
        **values,
        "moves": [dict(move) for move in draft.moves],
        "recipe": dict(draft.recipe) if draft.recipe is not None else None,
        "sources": [dict(source) for source in draft.sources],
        "metadata": dict(draft.metadata),
        "structured_key": structured_key(draft.scopes, draft.transformation),
    }


def _replace_scopes(connection: Connection, skill_id: str, scopes: SkillScopes) -> None:
    connection.execute(t.skill_scopes.delete().where(t.skill_scopes.c.skill_id == skill_id))
    rows = [
        {"skill_id": skill_id, "kind": kind, "value": value}
        for name, kind in SCOPE_KINDS.items()
        for value in dict.fromkeys(getattr(scopes, name))
    ]
    if rows:
        connection.execute(t.skill_scopes.insert(), rows)


def link_skills(
    connection: Connection,
    source: str,
    kind: LinkKind,
    target: str,
    *,
    actor: str,
    reason: str,
    access_scope: AccessScope = ALL_ACCESS,
) -> bool:
    """Store a symmetric relation of two skills, with an event of each. Returns False if it is
    stored already."""
    check_word(kind, LINK_KINDS, "kind of link")
    if source == target:
        raise InvalidRequest(f"{source} cannot be linked to itself", hint="Name two skills.")
    ends = [get_skill(connection, name, access_scope) for name in (source, target)]
    ends.sort(key=lambda skill: skill.name)
    first, second = ends
    known = connection.scalar(
        sa.select(t.skill_links.c.kind).where(
            t.skill_links.c.skill_id == first.id,
            t.skill_links.c.other_id == second.id,
            t.skill_links.c.kind == kind,
        )
    )
    if known is not None:
        return False
    connection.execute(
        t.skill_links.insert().values(
            skill_id=first.id, other_id=second.id, kind=kind, created_at=clock.now()
        )
    )
    noted = {"source": first.name, "kind": kind, "target": second.name}
    for skill in ends:
        append_event(
            connection, skill.id, "linked", (skill.state, skill.state), actor, reason, noted
        )
    bump_skills(connection)
    return True


def links_of(
    connection: Connection, name: str, access_scope: AccessScope = ALL_ACCESS
) -> list[SkillLink]:
    """The relations of a skill, oldest first."""
    skill = get_skill(connection, name, access_scope)
    source, target = t.skills.alias(), t.skills.alias()
    rows = connection.execute(
        sa.select(
            source.c.name.label("source"),
            t.skill_links.c.kind,
            target.c.name.label("target"),
            t.skill_links.c.created_at,
        )
        .join(source, source.c.id == t.skill_links.c.skill_id)
        .join(target, target.c.id == t.skill_links.c.other_id)
        .where(
            sa.or_(t.skill_links.c.skill_id == skill.id, t.skill_links.c.other_id == skill.id),
            visible.in_skills(source, access_scope),
            visible.in_skills(target, access_scope),
        )
        .order_by(t.skill_links.c.created_at, source.c.name, target.c.name)
    )
    return [record_of(SkillLink, row) for row in rows]


def record_uses(
    connection: Connection, uses: Sequence[NewUse], access_scope: AccessScope = ALL_ACCESS
) -> int:
    """Store uses of existing skills in stored retrievals; returns their number. Raises
    InvalidRequest for an unknown role."""
    skills = heads_by_name(connection, {use.skill for use in uses}, access_scope)
    now = clock.now()
    rows = []
    for use in uses:
        check_word(use.role, ROLES, "role of a skill in an answer")
        if use.skill in skills:
            skill = skills[use.skill]
            values = {key: value for key, value in vars(use).items() if key != "skill"}
            values["situation"] = dict(use.situation)
            fixed = {"skill_id": skill.id, "version": skill.version, "created_at": now}
            rows.append({**values, **fixed, "id": new_id("use")})
    if rows:
        connection.execute(t.skill_uses.insert(), rows)
    used = [use for use in uses if use.role == "used" and use.skill in skills]
    for use in used:
        _count(connection, skills[use.skill].id, use.helped, now)
    if any(use.helped is not None for use in used):
        bump_uses(connection)
    return len(rows)


def _count(connection: Connection, skill_id: str, helped: int | None, now: str) -> None:
    known = int(helped is not None)
    connection.execute(
        t.skills.update()
        .where(t.skills.c.id == skill_id)
        .values(
            trials=t.skills.c.trials + known, wins=t.skills.c.wins + (helped or 0), last_used_at=now
        )
    )


def uses_of(
    connection: Connection, skill_id: str, *, role: UseRole | None = None, since: str | None = None
) -> list[UseRow]:
    """Uses of a skill, oldest first."""
    query = (
        sa.select(*columns_of(t.skill_uses, UseRow))
        .where(t.skill_uses.c.skill_id == skill_id)
        .order_by(t.skill_uses.c.created_at, t.skill_uses.c.id)
    )
    if role is not None:
        query = query.where(t.skill_uses.c.role == role)
    if since is not None:
        query = query.where(t.skill_uses.c.created_at >= since)
    return [record_of(UseRow, row) for row in connection.execute(query)]


def lift_of(connection: Connection, skill_id: str) -> SkillLift:
    """Outcomes with a known effect of answers that showed a skill, and of those that withheld it.

    Only answers to runs count, for which showing was randomized, and only answers since the present
    text was written.
    """
    rows = connection.execute(
        sa.select(
            t.skill_uses.c.role,
            sa.func.count(outcomes.c.helped),
            sa.func.coalesce(sa.func.sum(outcomes.c.helped), 0),
        )
        .join(outcomes, outcomes.c.retrieval_id == t.skill_uses.c.retrieval_id)
        .join(retrievals, retrievals.c.id == t.skill_uses.c.retrieval_id)
        .join(t.skills, t.skills.c.id == t.skill_uses.c.skill_id)
        .where(
            t.skill_uses.c.skill_id == skill_id,
            t.skill_uses.c.role.in_(("shown", "withheld")),
            sa.func.coalesce(retrievals.c.run_id, "") != "",
            retrievals.c.created_at >= t.skills.c.written_at,
        )
        .group_by(t.skill_uses.c.role)
    )
    outcomes_by_role = {role: (int(known), int(wins)) for role, known, wins in rows}
    return SkillLift(
        *outcomes_by_role.get("shown", (0, 0)), *outcomes_by_role.get("withheld", (0, 0))
    )


def nth_last_retrieval(
    connection: Connection,
    n: int,
    hardware: Sequence[str] | None,
    access_scope: AccessScope = ALL_ACCESS,
) -> str | None:
    """The time of the n-th last retrieval for these chips (None: for any); None for fewer
    retrievals."""
    query = (
        sa.select(retrievals.c.created_at)
        .where(retrievals.c.access_scope == access_scope.owner)
        .order_by(retrievals.c.created_at.desc())
        .offset(n - 1)
        .limit(1)
    )
    if hardware is not None:
        query = query.where(retrievals.c.hardware_id.in_(list(hardware)))
    moment: str | None = connection.scalar(query)
    return moment


def record_toolchain(connection: Connection, hardware: str, toolchain: str) -> str | None:
    """Store that a toolchain is in use on a hardware. Returns the former one of the same name, or
    None. Raises InvalidRequest."""
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


def add_evidence(
    connection: Connection,
    name: str,
    evidence: EvidenceRow,
    *,
    actor: str,
    reason: str,
    access_scope: AccessScope = ALL_ACCESS,
) -> EvidenceRow:
    """Add a measurement of the skill `name`; returns its row, with a new id and the present time.

    A wall-clock measurement makes its toolchain the one that the skill was last verified with.
    Raises InvalidRequest and NotFound.
    """
    check_word(evidence.kind, EVIDENCE_KINDS, "kind of evidence")
    _check_figures(evidence.n, evidence.speedup, evidence.speedup_low, evidence.speedup_high)
    skill = get_skill(connection, name, access_scope)
    details = dict(evidence.details)
    row = replace(evidence, id=new_id("ev"), created_at=clock.now(), details=details)
    connection.execute(
        t.evidence.insert().values(
            **vars(row), subject_kind="skill", subject_id=skill.id, access_scope=access_scope.owner
        )
    )
    if row.toolchain_id is not None and row.kind != "simulator":
        connection.execute(
            t.skills.update().where(t.skills.c.id == skill.id).values(toolchain_id=row.toolchain_id)
        )
    event = {"evidence": row.id, "kind": row.kind, "version": skill.version}
    state = (skill.state, skill.state)
    append_event(connection, skill.id, "evidence", state, actor, reason, event)
    bump_skills(connection)
    return row


def _check_figures(n: int, speedup: float | None, low: float | None, high: float | None) -> None:
    if n < 1:
        raise InvalidRequest(f"evidence of {n} measurements", hint="n is at least 1.")
    known = [figure for figure in (low, speedup, high) if figure is not None]
    if any(not 0 < figure < 1e6 for figure in known) or known != sorted(known):
        raise InvalidRequest(
            f"a speed-up of {speedup} between {low} and {high}",
            hint="low <= speedup <= high, each positive; 2.0 means twice as fast.",
        )
