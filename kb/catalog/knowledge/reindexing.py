"""Writing lexical rows anew from live passages: of one section after a correction, or all of them
where the index is damaged.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection

from kb.catalog.engine import Catalog, portions
from kb.catalog.knowledge import lexical
from kb.catalog.knowledge.identity import scopes_of
from kb.catalog.knowledge.versions import lexical_rows
from kb.catalog.meta import bump_revision
from kb.catalog.tables import knowledge as t
from kb.scope import ANY
from kb.tokens import shadow

log = structlog.get_logger(__name__)

_MEMBERS = (
    sa.select(
        t.passages, t.documents.c.category, t.sections.c.path, t.sections.c.seq.label("section_seq")
    )
    .join(t.documents, t.documents.c.id == t.passages.c.document_id)
    .join(t.sections, t.sections.c.id == t.passages.c.section_id)
)


def hardware_of(connection: Connection, ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Scopes of passages; the row `any` reads as no scope at all only at the doors, not here."""
    scopes: dict[str, list[str]] = {}
    for part in portions(list(ids)):
        for row in connection.execute(
            sa.select(t.passage_hardware)
            .where(t.passage_hardware.c.passage_id.in_(part))
            .order_by(t.passage_hardware.c.hardware_id)
        ):
            scopes.setdefault(row.passage_id, []).append(row.hardware_id)
    return {key: tuple(values) for key, values in scopes.items()}


def reindex_section(connection: Connection, section_id: str) -> None:
    """Write the lexical rows of one live section anew from its passages."""
    rows = list(
        connection.execute(
            _MEMBERS.where(
                t.passages.c.section_id == section_id, t.passages.c.active.is_(True)
            ).order_by(t.passages.c.ordinal)
        )
    )
    if not rows:
        return
    hardware = hardware_of(connection, [row.id for row in rows])
    first = rows[0]
    scopes = scopes_of(connection, first.document_id)
    section_scope = connection.execute(
        sa.select(t.sections.c.hardware_scope).where(t.sections.c.id == section_id)
    ).scalar()
    document_scope = sorted(value for kind, value in scopes if kind == "hardware") or [ANY]
    seqs = [row.seq for row in rows]
    lexical.delete(connection, "passage", seqs)
    lexical.delete(connection, "section", [first.section_seq])
    passage_rows, section_row = lexical_rows(
        seq=first.section_seq,
        heading=shadow(" ".join(first.path[-3:])),
        members=[
            (row.seq, hardware.get(row.id, ()), shadow(f"{row.lead}\n{row.text}")) for row in rows
        ],
        section_hardware=section_scope or document_scope,
        scope_parts=(
            sorted(value for kind, value in scopes if kind == "language"),
            first.category,
            first.access_scope,
        ),
    )
    lexical.insert(connection, "passage", passage_rows)
    lexical.insert(connection, "section", [section_row])


def repair_lexical(catalog: Catalog) -> bool:
    """Write the lexical index anew where it is missing, damaged, or not that of the live passages;
    whether it was.
    """
    active = t.passages.c.active.is_(True)
    live = sa.select(sa.func.count()).where(active)
    sections = sa.select(sa.func.count(sa.distinct(t.passages.c.section_id))).where(active)
    with catalog.write() as connection:
        if lexical.is_whole(
            connection,
            {
                "passage": connection.execute(live).scalar_one(),
                "section": connection.execute(sections).scalar_one(),
            },
        ):
            return False
        rebuild_lexical(connection)
    log.warning("lexical index was not whole, rebuilt it")
    return True


def rebuild_lexical(connection: Connection) -> int:
    """Write the whole lexical index anew from the live passages; returns how many there are."""
    lexical.create(connection)
    sections = connection.execute(
        sa.select(t.passages.c.section_id).where(t.passages.c.active.is_(True)).distinct()
    ).scalars()
    for section_id in list(sections):
        reindex_section(connection, section_id)
    bump_revision(connection)
    return lexical.count(connection, "passage")
