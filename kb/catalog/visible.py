"""For each table, the condition on the rows that a caller may see.

A caller that is restricted to hardware sees rows about hardware that it may see, or about none;
rows that were read from a document, only if it sees the document. It sees no rows without document
and hardware, such as other kinds of work.
"""

from __future__ import annotations

import sqlalchemy as sa

from kb.catalog import tables as t
from kb.scope import AccessScope

Condition = sa.ColumnElement[bool]


def documents(access: AccessScope) -> Condition:
    mine = t.documents.c.access_scope == access.owner
    if access.hardware is None:
        return mine
    scopes = t.document_scopes.alias()
    about = sa.select(scopes.c.document_id).where(scopes.c.kind == "hardware")
    visible = about.where(scopes.c.value.in_(sorted(access.hardware)))
    return sa.and_(mine, sa.or_(t.documents.c.id.not_in(about), t.documents.c.id.in_(visible)))


def read_from(table: sa.Table, access: AccessScope) -> Condition:
    """Of a table with `document_id` and `access_scope`; of rows without a document, the reader
    checks the hardware."""
    mine = table.c.access_scope == access.owner
    if access.hardware is None:
        return mine
    column = table.c.document_id
    return sa.and_(mine, sa.or_(column.is_(None), column.in_(_document_ids(access))))


def passages(access: AccessScope) -> Condition:
    """Of passages: by the document and by the passage itself."""
    mine = t.passages.c.access_scope == access.owner
    if access.hardware is None:
        return mine
    about = t.passage_hardware.alias()
    visible = sa.select(about.c.passage_id).where(about.c.hardware_id.in_(sorted(access.hardware)))
    return sa.and_(
        mine, t.passages.c.id.in_(visible), t.passages.c.document_id.in_(_document_ids(access))
    )


def facts(access: AccessScope) -> Condition:
    """Of facts: none of other hardware, and none of a document that the caller may not see."""
    c = t.facts.c
    if access.hardware is None:
        return sa.true()
    hidden = sa.select(t.documents.c.id).where(sa.not_(documents(access)))
    return sa.and_(
        c.hardware_id.in_(sorted(access.hardware)),
        sa.or_(c.document_id.is_(None), c.document_id.not_in(hidden)),
    )


def jobs(access: AccessScope) -> Condition:
    """Of jobs of documents: by the document. Checks of the knowledge are about no document, and a
    restricted caller does not see them."""
    c = t.work.c
    mine = sa.and_(c.kind.in_(("ingest", "check")), c.access_scope == access.owner)
    if access.hardware is None:
        return mine
    return sa.and_(mine, c.subject_id.in_(_document_ids(access)))


def in_skills(table: sa.FromClause, access: AccessScope) -> Condition:
    """Of skills, or of an alias of them."""
    mine: Condition = table.c.access_scope == access.owner
    if access.hardware is None:
        return mine
    scopes = t.skill_scopes.alias()
    about = sa.select(scopes.c.skill_id).where(scopes.c.kind == "hardware")
    visible = about.where(scopes.c.value.in_(sorted(access.hardware)))
    return sa.and_(mine, sa.or_(table.c.id.not_in(about), table.c.id.in_(visible)))


def evidence(access: AccessScope) -> Condition:
    """Of measurements that back a skill."""
    return _on_hardware(t.evidence, t.evidence.c.hardware_id, access)


def runs(access: AccessScope) -> Condition:
    return _on_hardware(t.runs, t.runs.c.hardware_id, access)


def evaluations(access: AccessScope) -> Condition:
    """Of evaluations: by the hardware of their cases."""
    c = t.evaluations.c
    mine = c.access_scope == access.owner
    if access.hardware is None:
        return mine
    cases = t.evaluation_cases.alias()
    visible = sa.select(cases.c.evaluation_id).where(
        cases.c.hardware_id.in_(sorted(access.hardware))
    )
    return sa.and_(mine, c.id.in_(visible))


def _on_hardware(
    table: sa.Table, hardware: sa.ColumnElement[str], access: AccessScope
) -> Condition:
    mine = table.c.access_scope == access.owner
    if access.hardware is None:
        return mine
    return sa.and_(mine, hardware.in_(sorted(access.hardware)))


def _document_ids(access: AccessScope) -> sa.Select[tuple[str]]:
    return sa.select(t.documents.c.id).where(documents(access))
