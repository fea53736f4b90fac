"""Sections read whole: all passages of a section in order, and the documents of a chip section by
section.

Search finds passages; a reader gets the section that they stand in. What is returned is live and
within the scope, checked as every hit is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.kept import look_up
from kb.catalog.knowledge import passages
from kb.catalog.knowledge.passages import About, Passage
from kb.catalog.rows import rows_of
from kb.prompt_tokens import count_tokens, least_tokens
from kb.scope import CATEGORIES, ScopeFilter

MOST_SECTIONS = 20_000  # that are kept; 1 KB with its text


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

    @cached_property
    def tokens(self) -> int:
        """Of the text, as a prompt counts them."""
        return count_tokens(self.text)

    @cached_property
    def least_tokens(self) -> int:
        """What the text has at least, without counting."""
        return least_tokens(self.text)


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
    """These sections by id; those without a passage that the scope admits are left out. One that
    the scope admits as a whole is the same object for every scope.
    """
    wanted = sorted(set(section_ids))
    # A section has the passages that the scope admits, all of one category.
    every = replace(scope, categories=CATEGORIES)
    stored = look_up(
        connection,
        "stored sections",
        wanted,
        partial(_read_stored, connection),
        most=MOST_SECTIONS,
        skills=False,
    )
    whole: dict[str, WholeSection] = {}
    parts: list[str] = []
    for section_id, section in stored.items():
        if section is None:
            continue
        admitted = {about.is_within(every) for about in section.about}
        if True in admitted:
            if len(admitted) > 1 or scope.access_scope.restricted:
                parts.append(section_id)
            else:
                whole[section_id] = section.whole
    sections = whole | _parts(connection, parts, every) if parts else whole
    return {
        section_id: sections[section_id]
        for section_id in wanted
        if section_id in sections and sections[section_id].passages[0].category in scope.categories
    }


class _Stored(NamedTuple):
    """A section with all its live passages, and what they are about."""

    whole: WholeSection
    about: frozenset[About]


def _read_stored(connection: Connection, section_ids: Sequence[str]) -> dict[str, _Stored | None]:
    stored: dict[str, _Stored | None] = dict.fromkeys(section_ids)
    heads = _heads(connection, section_ids)
    rows = passages.live_rows(connection, (n for head in heads for n in head.members))
    for head in heads:
        own = [rows[seq] for seq in head.members if seq in rows]
        if own:
            section = _section(head, tuple(row.passage for row in own))
            stored[head.id] = _Stored(section, frozenset(row.about for row in own))
    return stored


def _parts(
    connection: Connection, section_ids: Sequence[str], scope: ScopeFilter
) -> dict[str, WholeSection]:
    """Sections of which the scope admits a part, or shows less about them; kept by scope."""

    def read(keys: Sequence[tuple[object, ...]]) -> dict[tuple[object, ...], WholeSection | None]:
        sections = _read_sections(connection, [str(key[0]) for key in keys], scope)
        return {key: sections.get(str(key[0])) for key in keys}

    keys = [(section_id, *scope.key) for section_id in section_ids]
    kept = look_up(
        connection, "parts of stored sections", keys, read, most=MOST_SECTIONS, skills=False
    )
    return {section.id: section for section in kept.values() if section is not None}


def _read_sections(
    connection: Connection, section_ids: Sequence[str], scope: ScopeFilter
) -> dict[str, WholeSection]:
    heads = _heads(connection, section_ids)
    live = passages.load(connection, (n for head in heads for n in head.members), scope)
    sections: dict[str, WholeSection] = {}
    for head in heads:
        own = tuple(live[seq] for seq in head.members if seq in live)
        if own:
            sections[head.id] = _section(head, own)
    return sections


def parents_of(connection: Connection, section_ids: Iterable[str]) -> dict[str, str | None]:
    """The enclosing section of each of these, None at the top; unknown ids are left out."""
    return {head.id: head.parent_id for head in _heads(connection, section_ids)}


class _Head(NamedTuple):
    """Everything of a section but its passages: of these the numbers, in reading order."""

    id: str
    seq: int
    parent_id: str | None
    ordinal: int
    level: int
    document_id: str
    source_key: str
    path: tuple[str, ...]
    members: tuple[int, ...]


def _heads(connection: Connection, section_ids: Iterable[str]) -> list[_Head]:
    """The heads of these sections, of those that are there."""
    read = partial(_read_heads, connection)
    heads = look_up(connection, "sections", sorted(set(section_ids)), read, skills=False)
    return [head for head in heads.values() if head is not None]


# As text, because a request reads dozens of them.
_READ = (
    "SELECT s.id, s.seq, s.parent_id, s.ordinal, s.level, d.id, d.source_key, s.path,"
    " (SELECT joined(p.seq) FROM passages p WHERE p.section_id = s.id AND p.active)"
    " FROM sections s JOIN document_versions v ON v.id = s.version_id"
    " JOIN documents d ON d.id = v.document_id WHERE s.id IN"
)


def _read_heads(connection: Connection, section_ids: Sequence[str]) -> dict[str, _Head | None]:
    """As `_heads`; None for one that is not there."""
    heads: dict[str, _Head | None] = dict.fromkeys(section_ids)
    for row in rows_of(connection, _READ, section_ids):
        *plain, path, members = row
        seqs = tuple(sorted(map(int, members.split(",")))) if members else ()
        heads[row[0]] = _Head._make([*plain, passages.path_of(path), seqs])
    return heads


def below(connection: Connection, parent_ids: Collection[str]) -> dict[str, list[str]]:
    """Ids of the sections directly below these, by parent, in reading order."""
    children = look_up(
        connection,
        "children",
        sorted(set(parent_ids)),
        partial(_read_children, connection),
        skills=False,
    )
    return {parent: ids for parent, ids in children.items() if ids}


def _read_children(connection: Connection, parent_ids: Sequence[str]) -> dict[str, list[str]]:
    children: dict[str, list[str]] = {parent: [] for parent in parent_ids}
    read = "SELECT id, parent_id, ordinal FROM sections WHERE parent_id IN"
    for child, parent, _ in sorted(rows_of(connection, read, parent_ids), key=lambda row: row[2]):
        children[parent].append(child)
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


def _section(head: _Head, own: tuple[Passage, ...]) -> WholeSection:
    return WholeSection(
        id=head.id,
        seq=head.seq,
        parent_id=head.parent_id,
        ordinal=head.ordinal,
        level=head.level,
        path=head.path,
        document_id=head.document_id,
        source_key=head.source_key,
        passages=own,
    )
