"""Relations of skills: which of them say the opposite of each other."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog.meta import bump_revision
from kb.catalog.skills.reading import get
from kb.catalog.skills.rows import LINK_KINDS, Link, LinkKind, one_of
from kb.catalog.skills.writing import append_event
from kb.catalog.tables import skills as t
from kb.errors import InvalidRequest
from kb.scope import ALL_ACCESS


def link(
    connection: Connection,
    source: str,
    kind: LinkKind,
    target: str,
    *,
    actor: str,
    reason: str,
    access_scope: str = ALL_ACCESS,
) -> bool:
    """Say that skill `source` stands in this relation to skill `target`; False where that was
    known. Both get an event. It holds both ways and is stored once."""
    one_of(kind, LINK_KINDS, "kind of link")
    if source == target:
        raise InvalidRequest(f"{source} cannot be linked to itself", hint="Name two skills.")
    ends = [get(connection, name, access_scope) for name in (source, target)]
    ends.sort(key=lambda skill: skill.name)
    first, second = ends
    known = connection.execute(
        sa.select(t.skill_links.c.kind).where(
            t.skill_links.c.skill_id == first.id,
            t.skill_links.c.other_id == second.id,
            t.skill_links.c.kind == kind,
        )
    ).scalar()
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
    bump_revision(connection)
    return True


def links_of(connection: Connection, name: str, access_scope: str = ALL_ACCESS) -> list[Link]:
    """Every relation that the skill is one end of, oldest first."""
    skill = get(connection, name, access_scope)
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
            source.c.access_scope == access_scope,
            target.c.access_scope == access_scope,
        )
        .order_by(t.skill_links.c.created_at, source.c.name, target.c.name)
    )
    return [Link(**row._mapping) for row in rows]
