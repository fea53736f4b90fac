"""Whole sections: the passages of a section as one text. Knows nothing about ranking or prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import tables as t
from kb.catalog.engine import record_of, select_in
from kb.catalog.knowledge import passages
from kb.catalog.knowledge.passages import Passage
from kb.prompt_tokens import count_tokens
from kb.scope import AccessScope


@dataclass(frozen=True)
class WholeSection:
    """A section with its passages in reading order. `parent_id` is the enclosing section;
    `source_key` orders documents as they were uploaded by path; `counted` are the tokens of the
    text if they are known."""

    id: str
    seq: int
    parent_id: str | None
    ordinal: int
    level: int
    path: tuple[str, ...]
    document_id: str
    source_key: str
    passages: tuple[Passage, ...]
    counted: int | None = None

    @cached_property
    def text(self) -> str:
        """As `section_text` gives it."""
        return section_text(self.passages)

    @cached_property
    def tokens(self) -> int:
        """Tokens of the text, as a prompt counts them."""
        return count_tokens(self.text) if self.counted is None else self.counted


class Piece(NamedTuple):
    """The fields of a passage that the text of a section consists of."""

    kind: str
    lead: str
    text: str
    language: str | None


def section_text(passages: Sequence[Passage | Piece]) -> str:
    """The passages in order as a reader saw them: pieces of one table share its header, pieces of
    one block of code its fence."""
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
        if passage.lead and passage.lead != lead:
            parts.append(passage.lead)
        parts.append(passage.text)
        lead = passage.lead
    if in_code:
        parts.append("```")
    return "\n".join(parts)


def current_texts(connection: Connection, document_ids: Sequence[str]) -> dict[str, str]:
    """The headings and texts of the current versions of these documents, by document."""
    p = t.passages.c
    query = (
        sa.select(p.document_id, t.sections.c.path, p.kind, p.lead, p.text, p.language)
        .join(t.sections, t.sections.c.id == p.section_id)
        .where(p.active.is_(True))
        .order_by(p.document_id, p.ordinal)
    )
    parts: dict[str, list[str]] = {}
    pieces: dict[tuple[str, tuple[str, ...]], list[Piece]] = {}
    for row in select_in(connection, query, p.document_id, document_ids):
        piece = Piece(row.kind, row.lead, row.text, row.language)
        pieces.setdefault((row.document_id, tuple(row.path)), []).append(piece)
    for (document_id, path), own in pieces.items():
        parts.setdefault(document_id, []).append("\n".join((*path, section_text(own))))
    return {document_id: "\n".join(own) for document_id, own in parts.items()}


def sections_about(
    connection: Connection, hardware_id: str, access_scope: AccessScope
) -> list[WholeSection]:
    """The current sections with passages about a chip, and these passages, by document."""
    members: dict[str, list[Passage]] = {}
    for passage in passages.about(connection, hardware_id, access_scope):
        members.setdefault(passage.section_id, []).append(passage)
    query = sa.select(
        t.sections, t.documents.c.id.label("document_id"), t.documents.c.source_key
    ).join(t.documents, t.documents.c.current_version_id == t.sections.c.version_id)
    sections = [
        record_of(WholeSection, row, passages=tuple(members[row.id]), counted=None)
        for row in select_in(connection, query, t.sections.c.id, list(members))
    ]
    return sorted(sections, key=lambda section: (section.source_key, section.ordinal))
