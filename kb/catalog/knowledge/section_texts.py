"""Sections read whole: all passages of a section in order, and the documents of a chip section by
section.

Search finds passages; a reader gets the section that they stand in. What is returned is live and
within the scope, checked as every hit is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import visible
from kb.catalog.engine import portions
from kb.catalog.kept import look_up
from kb.catalog.knowledge import passages
from kb.catalog.knowledge.passages import Passage
from kb.catalog.tables import knowledge as t
from kb.scope import CATEGORIES, ScopeFilter

MOST_SECTIONS = 20_000  # that are kept, each for a scope; 1 KB with its text


@dataclass(frozen=True)
class WholeSection:
    """A section with its passages in reading order. `parent_id` is the enclosing section;
    `source_key` orders documents as they were uploaded by path.
    """

    id: str
    seq: int
    parent_id: str | None
    ordinal: int
    level: int
    path: tuple[str, ...]
    document_id: str
    source_key: str
    passages: tuple[Passage, ...]

    @cached_property
    def text(self) -> str:
        """As `section_text` gives it."""
        return section_text(self.passages)


def section_text(passages: Sequence[Passage]) -> str:
    """The passages in order as a reader saw them: pieces of one table share its header, pieces of
    one block of code its fence.
    """
    parts: list[str] = []
    lead, in_code = "", False
    for passage in passages:
        code = passage.kind == "code"
        if in_code and not code:
            parts.append("```")
        if code and not in_code and not passage.text.lstrip().startswith("```"):
            parts.append(f"```{passage.language or ''}")
            in_code = True
        elif not code:
            in_code = False
        parts.append(passage.shown if passage.lead != lead else passage.text)
        lead = passage.lead
    if in_code:
        parts.append("```")
    return "\n".join(parts)


def whole_sections(
    connection: Connection, section_ids: Iterable[str], scope: ScopeFilter
) -> dict[str, WholeSection]:
    """These sections by id; those without a passage that the scope admits are left out."""

    every = replace(scope, categories=CATEGORIES)

    def read(keys: Sequence[tuple[object, ...]]) -> dict[tuple[object, ...], WholeSection | None]:
        sections = _read_sections(connection, [str(key[0]) for key in keys], every)
        return {key: sections.get(str(key[0])) for key in keys}

    # A section has the passages that the scope admits, all of one category.
    keys = [(section_id, *every.key) for section_id in sorted(set(section_ids))]
    sections = look_up(connection, "whole sections", keys, read, most=MOST_SECTIONS)
    return {
        section.id: section
        for section in sections.values()
        if section is not None and section.passages[0].category in scope.categories
    }


def _read_sections(
    connection: Connection, section_ids: Sequence[str], scope: ScopeFilter
) -> dict[str, WholeSection]:
    rows = _heads(connection, section_ids)
    members = passages.sections_of(connection, [row.seq for row in rows])
    live = passages.load(connection, (n for seqs in members.values() for n in seqs), scope)
    sections: dict[str, WholeSection] = {}
    for row in rows:
        own = tuple(live[seq] for seq in members.get(row.seq, ()) if seq in live)
        if own:
            sections[row.id] = _section(row, own)
    return sections


def parents_of(connection: Connection, section_ids: Iterable[str]) -> dict[str, str | None]:
    """The enclosing section of each of these, None at the top; unknown ids are left out."""
    return {row.id: row.parent_id for row in _heads(connection, section_ids)}


def _heads(connection: Connection, section_ids: Iterable[str]) -> list[sa.Row[Any]]:
    """Everything of these sections but their passages."""
    read = partial(_read_heads, connection)
    heads = look_up(connection, "sections", sorted(set(section_ids)), read)
    return [row for row in heads.values() if row is not None]


def _read_heads(
    connection: Connection, section_ids: Sequence[str]
) -> dict[str, sa.Row[Any] | None]:
    """As `_heads`; None for one that is not there."""
    heads: dict[str, sa.Row[Any] | None] = dict.fromkeys(section_ids)
    for part in portions(section_ids):
        rows = connection.execute(_SELECT.where(t.sections.c.id.in_(part)))
        heads |= {row.id: row for row in rows}
    return heads


def below(connection: Connection, parent_ids: Collection[str]) -> dict[str, list[str]]:
    """Ids of the sections directly below these, by parent, in reading order."""
    children = look_up(
        connection, "children", sorted(set(parent_ids)), partial(_read_children, connection)
    )
    return {parent: ids for parent, ids in children.items() if ids}


def _read_children(connection: Connection, parent_ids: Sequence[str]) -> dict[str, list[str]]:
    children: dict[str, list[str]] = {parent: [] for parent in parent_ids}
    for part in portions(parent_ids):
        rows = connection.execute(
            sa.select(t.sections.c.id, t.sections.c.parent_id)
            .where(t.sections.c.parent_id.in_(part))
            .order_by(t.sections.c.ordinal)
        )
        for row in rows:
            children[row.parent_id].append(row.id)
    return children


@dataclass(frozen=True)
class OwnDocument:
    """A document about a chip; `characters` counts its live passages about that chip."""

    id: str
    title: str
    source_key: str
    characters: int


def documents_about(
    connection: Connection, hardware: Sequence[str], scope: ScopeFilter
) -> list[OwnDocument]:
    """Documents with passages scoped to one of these chips, by source key."""
    about = t.passage_hardware
    query = (
        sa.select(
            t.documents.c.id,
            t.documents.c.title,
            t.documents.c.source_key,
            sa.func.sum(sa.func.length(t.passages.c.text)).label("characters"),
        )
        .join(t.passages, t.passages.c.document_id == t.documents.c.id)
        .where(
            t.passages.c.active.is_(True),
            visible.passages(scope.access_scope),
            t.documents.c.category.in_(scope.categories),
            sa.select(about.c.passage_id)
            .where(about.c.passage_id == t.passages.c.id, about.c.hardware_id.in_(hardware))
            .exists(),
        )
        .group_by(t.documents.c.id)
        .order_by(t.documents.c.source_key)
    )
    return [
        OwnDocument(row.id, row.title, row.source_key, int(row.characters))
        for row in connection.execute(query)
    ]


def texts_about(
    connection: Connection, hardware: Sequence[str], scope: ScopeFilter
) -> dict[str, str]:
    """The live text about these chips, by document."""
    about = t.passage_hardware
    rows = connection.execute(
        sa.select(t.passages.c.document_id, t.passages.c.text)
        .join(t.documents, t.documents.c.id == t.passages.c.document_id)
        .where(
            t.passages.c.active.is_(True),
            visible.passages(scope.access_scope),
            t.documents.c.category.in_(scope.categories),
            sa.select(about.c.passage_id)
            .where(about.c.passage_id == t.passages.c.id, about.c.hardware_id.in_(hardware))
            .exists(),
        )
        .order_by(t.passages.c.seq)
    )
    texts: dict[str, list[str]] = {}
    for row in rows:
        texts.setdefault(row.document_id, []).append(row.text)
    return {document: "\n".join(parts) for document, parts in texts.items()}


def code_in(
    connection: Connection, hardware: Sequence[str], language: str, scope: ScopeFilter
) -> list[str]:
    """The live code about these chips whose fence names the language."""
    about = t.passage_hardware
    return list(
        connection.execute(
            sa.select(t.passages.c.text)
            .where(
                t.passages.c.active.is_(True),
                t.passages.c.kind == "code",
                t.passages.c.language == language,
                visible.passages(scope.access_scope),
                sa.select(about.c.passage_id)
                .where(about.c.passage_id == t.passages.c.id, about.c.hardware_id.in_(hardware))
                .exists(),
            )
            .order_by(t.passages.c.seq)
        ).scalars()
    )


def documents_for_language(connection: Connection, language: str) -> frozenset[str]:
    """Documents that were uploaded as being about this language."""
    scopes = t.document_scopes
    return frozenset(
        connection.execute(
            sa.select(scopes.c.document_id).where(
                scopes.c.kind == "language", scopes.c.value == language
            )
        ).scalars()
    )


def sections_of_documents(
    connection: Connection, document_ids: Sequence[str], scope: ScopeFilter
) -> list[WholeSection]:
    """All live sections of these documents, document by document in the given order."""
    ids = connection.execute(
        sa.select(t.sections.c.id)
        .join(t.documents, t.documents.c.current_version_id == t.sections.c.version_id)
        .where(t.documents.c.id.in_(document_ids))
    ).scalars()
    place = {document_id: n for n, document_id in enumerate(document_ids)}
    sections = whole_sections(connection, ids, scope).values()
    return sorted(sections, key=lambda s: (place[s.document_id], s.ordinal))


_SELECT = (
    sa.select(
        t.sections.c.id,
        t.sections.c.seq,
        t.sections.c.parent_id,
        t.sections.c.ordinal,
        t.sections.c.level,
        t.sections.c.path,
        t.documents.c.id.label("document_id"),
        t.documents.c.source_key,
    )
    .join(t.document_versions, t.document_versions.c.id == t.sections.c.version_id)
    .join(t.documents, t.documents.c.id == t.document_versions.c.document_id)
)


def _section(row: Any, own: tuple[Passage, ...]) -> WholeSection:
    return WholeSection(
        id=row.id,
        seq=row.seq,
        parent_id=row.parent_id,
        ordinal=row.ordinal,
        level=row.level,
        path=tuple(row.path),
        document_id=row.document_id,
        source_key=row.source_key,
        passages=own,
    )
