"""What speaks for a section when a signal is all that is known: its heading, whether its text calls
the signal by its id, its tags, and whether a move rests on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog.engine import portions
from kb.catalog.kept import look_up
from kb.catalog.knowledge import passages
from kb.catalog.tables import knowledge as t


@dataclass(frozen=True)
class Mark:
    """Of one passage, by number: its section, the headings above it with its own last, the
    hardware scopes and the text. `named` says that the text holds the signal's id, `tagged` that
    the passage has its tag, `moved` that one of the moves asked for rests on the section.
    """

    seq: int
    section_id: str
    path: tuple[str, ...]
    hardware: tuple[str, ...]
    text: str
    named: bool
    tagged: bool
    moved: bool


def section_marks(
    connection: Connection, seqs: Iterable[int], signal: str, move_ids: Collection[str]
) -> list[Mark]:
    """The marks of the live passages among `seqs`, by number."""
    live = passages.live(connection, seqs)
    tags = look_up(connection, "signal tags", live, partial(_read_tags, connection))
    moved = _sections_of_moves(connection, move_ids)
    return [
        Mark(
            seq,
            passage.section_id,
            passage.path,
            passage.hardware,
            passage.text,
            signal in passage.text,
            signal in tags[seq],
            passage.section_id in moved,
        )
        for seq, passage in live.items()
    ]


def _read_tags(connection: Connection, seqs: Sequence[int]) -> dict[int, frozenset[str]]:
    """The signals that passages are tagged with."""
    tags: dict[int, set[str]] = {seq: set() for seq in seqs}
    for part in portions(seqs):
        rows = connection.execute(
            sa.select(t.passages.c.seq, t.passage_tags.c.value)
            .join(t.passages, t.passages.c.id == t.passage_tags.c.passage_id)
            .where(t.passages.c.seq.in_(part), t.passage_tags.c.kind == "signal")
        )
        for seq, value in rows:
            tags[seq].add(value)
    return {seq: frozenset(values) for seq, values in tags.items()}


def _sections_of_moves(connection: Connection, move_ids: Collection[str]) -> set[str]:
    def read(ids: Sequence[str]) -> dict[str, str | None]:
        rows = connection.execute(
            sa.select(t.moves.c.id, t.moves.c.section_id).where(t.moves.c.id.in_(ids))
        )
        return {**dict.fromkeys(ids), **{row.id: row.section_id for row in rows}}

    sections = look_up(connection, "sections of moves", move_ids, read)
    return {section_id for section_id in sections.values() if section_id is not None}
