"""Uses of skills in answers: shown, used or withheld, and whether that helped.

The counters of a skill's row (trials, wins) count the uses of its present text, within its present
scope, whose effect is known; they change in the transaction that stores a use.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import visible
from kb.catalog.skills.reading import heads_of
from kb.catalog.skills.rows import ROLES, Lift, NewUse, Role, UseRow, one_of
from kb.catalog.tables import skills as t
from kb.catalog.tables.skills import outcomes, retrievals
from kb.ids import new_id
from kb.scope import ALL_ACCESS, AccessScope

_COLUMNS = [t.skill_uses.c[name] for name in UseRow.__dataclass_fields__]


def record_uses(
    connection: Connection, uses: Sequence[NewUse], access_scope: AccessScope = ALL_ACCESS
) -> int:
    """Store uses; returns how many.

    Uses of a skill that no longer exists are left out. The retrievals that they belong to must be
    stored. Raises InvalidRequest for an unknown role.
    """
    skills = heads_of(connection, {use.skill for use in uses}, access_scope)
    now = clock.now()
    rows = []
    for use in uses:
        one_of(use.role, ROLES, "role of a skill in an answer")
        if use.skill in skills:
            skill = skills[use.skill]
            values = {key: value for key, value in vars(use).items() if key != "skill"}
            values["situation"] = dict(use.situation)
            fixed = {"skill_id": skill.id, "version": skill.version, "created_at": now}
            rows.append({**values, **fixed, "id": new_id("use")})
    if rows:
        connection.execute(t.skill_uses.insert(), rows)
    for use in uses:
        if use.role == "used" and use.skill in skills:
            _count(connection, skills[use.skill].id, use.helped, now)
    return len(rows)


def _count(connection: Connection, skill_id: str, helped: int | None, now: str) -> None:
    known = int(helped is not None)
    connection.execute(
        t.skills.update()
        .where(t.skills.c.id == skill_id)
        .values(
            trials=t.skills.c.trials + known,
            wins=t.skills.c.wins + (helped or 0),
            last_used_at=now,
        )
    )


def uses_of(
    connection: Connection,
    skill_id: str,
    access_scope: AccessScope = ALL_ACCESS,
    *,
    role: Role | None = None,
    since: str | None = None,
) -> list[UseRow]:
    """Uses of a skill, oldest first."""
    query = (
        sa.select(*_COLUMNS)
        .join(t.skills, t.skills.c.id == t.skill_uses.c.skill_id)
        .where(t.skill_uses.c.skill_id == skill_id, visible.in_skills(t.skills, access_scope))
        .order_by(t.skill_uses.c.created_at, t.skill_uses.c.id)
    )
    if role is not None:
        query = query.where(t.skill_uses.c.role == role)
    if since is not None:
        query = query.where(t.skill_uses.c.created_at >= since)
    return [UseRow(**row._mapping) for row in connection.execute(query)]


def lift_of(connection: Connection, skill_id: str) -> Lift:
    """Outcomes with a known effect of answers that showed the skill, beside those that would have
    shown it and withheld it: the difference of the two rates is what showing it is worth.

    Only answers to runs count, because chance decided of those alone which of the two it was, and
    only those since the present text was written.
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
    return Lift(*outcomes_by_role.get("shown", (0, 0)), *outcomes_by_role.get("withheld", (0, 0)))


def nth_last_retrieval(
    connection: Connection,
    n: int,
    hardware: Sequence[str] | None,
    access_scope: AccessScope = ALL_ACCESS,
) -> str | None:
    """The time of the n-th last retrieval for any of these chips (None counts all retrievals).

    None where there are fewer.
    """
    query = (
        sa.select(retrievals.c.created_at)
        .where(retrievals.c.access_scope == access_scope.owner)
        .order_by(retrievals.c.created_at.desc())
        .offset(n - 1)
        .limit(1)
    )
    if hardware is not None:
        query = query.where(retrievals.c.hardware_id.in_(list(hardware)))
    moment: str | None = connection.execute(query).scalar()
    return moment
