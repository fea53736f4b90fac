"""Moves in the catalog: remedies with the predicate that says when they apply. Knows no request;
`retrieval.moves` decides which ones to return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.engine import record_of
from kb.catalog.knowledge.versions import StoredVersion
from kb.ids import MoveId, derived_id
from kb.scope import ALL_ACCESS, AccessScope


@dataclass(frozen=True)
class DocumentMove:
    """A remedy that a document states. `section` is the heading that argues for it."""

    name: str
    when: str
    signals: tuple[str, ...]
    change: Mapping[str, Any]
    limit: str | None
    section: str
    why: str


@dataclass(frozen=True)
class StoredMove:
    """A move of the catalog. Empty `hardware` or `languages` means any; `section` is the heading
    that argues for it."""

    id: MoveId
    name: str
    predicate: str
    signals: tuple[str, ...]
    change: Mapping[str, Any]
    limit_fact: str | None
    why: str
    hardware: tuple[str, ...]
    languages: tuple[str, ...]
    document_id: str | None
    document_title: str | None
    section: str | None
    status: str
    origin: str


_SELECT = (
    sa.select(t.moves, t.documents.c.title.label("document_title"), t.sections.c.heading)
    .outerjoin(t.documents, t.documents.c.id == t.moves.c.document_id)
    .outerjoin(t.sections, t.sections.c.id == t.moves.c.section_id)
)


@dataclass(frozen=True)
class AcceptedMove:
    """A move with the section that it rests on and the owner of its document."""

    move: StoredMove
    section_id: str | None
    owner: str


def accepted(connection: Connection) -> list[AcceptedMove]:
    """All accepted moves, by document and name."""
    query = _SELECT.where(t.moves.c.status == "accepted")
    ordered = query.order_by(t.documents.c.title.nulls_first(), t.moves.c.name)
    rows = connection.execute(ordered)
    return [AcceptedMove(_move(row), row.section_id, row.access_scope) for row in rows]


def of_document(
    connection: Connection, document_id: str, access_scope: AccessScope = ALL_ACCESS
) -> list[StoredMove]:
    """Moves of one document in every status, by name."""
    rows = connection.execute(
        _SELECT.where(
            t.moves.c.document_id == document_id, visible.read_from(t.moves, access_scope)
        ).order_by(t.moves.c.name)
    )
    moves = (_move(row) for row in rows if access_scope.sees(row.hardware))
    return [replace(move, hardware=access_scope.visible_hardware(move.hardware)) for move in moves]


def _move(row: sa.Row[Any]) -> StoredMove:
    return record_of(StoredMove, row, section=row.heading)


def replace_document_moves(
    connection: Connection, stated: Sequence[tuple[StoredVersion, Sequence[DocumentMove]]]
) -> None:
    """Replace the moves of documents; ids depend on document and name, so references survive."""
    rows = []
    for version, moves in stated:
        document = version.document
        if not version.first:
            connection.execute(t.moves.delete().where(t.moves.c.document_id == document.id))
        # Of equal headings, the first.
        by_heading = {section.heading: section.id for section in reversed(version.sections)}
        builtin = document.origin == "builtin"
        rows += [
            {
                "id": derived_id("mv", document.id, move.name),
                "name": move.name,
                "document_id": document.id,
                "section_id": by_heading.get(move.section),
                "hardware": sorted(version.declared["hardware"]),
                "languages": sorted(version.declared["languages"]),
                "signals": list(move.signals),
                "predicate": move.when,
                "change": dict(move.change),
                "limit_fact": move.limit,
                "why": move.why,
                "status": "accepted" if builtin else "proposed",
                "origin": "builtin" if builtin else "manual",
                "created_at": clock.now(),
                "access_scope": document.access_scope,
            }
            for move in moves
        ]
    if rows:
        connection.execute(t.moves.insert(), rows)
