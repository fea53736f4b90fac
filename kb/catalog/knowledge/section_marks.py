"""What speaks for a section when a signal is all that is known: its heading, whether its text calls
the signal by its id, its tags, and whether a move rests on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import tables as t
from kb.catalog.kept import look_up
from kb.catalog.knowledge import passages
from kb.catalog.rows import rows_of


class Mark(NamedTuple):
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
    ids = [passage.id for passage in live.values()]
    tags = look_up(connection, "signal tags", ids, partial(_read_tags, connection), skills=False)
    moved = _sections_of_moves(connection, move_ids)
    return [
        Mark(
            seq,
            passage.section_id,
            passage.path,
            passage.hardware,
            passage.text,
            signal in passage.text,
            signal in tags[passage.id],
            passage.section_id in moved,
        )
        for seq, passage in live.items()
    ]


_TAGS = "SELECT passage_id, value FROM passage_tags WHERE kind = 'signal' AND passage_id IN"


def _read_tags(connection: Connection, ids: Sequence[str]) -> dict[str, frozenset[str]]:
    """The signals that passages are tagged with, by passage id."""
    tags: dict[str, set[str]] = {passage_id: set() for passage_id in ids}
    for passage_id, value in rows_of(connection, _TAGS, ids):
        tags[passage_id].add(value)
    return {passage_id: _same(tuple(sorted(values))) for passage_id, values in tags.items()}


@lru_cache(maxsize=20_000)
def _same(values: tuple[str, ...]) -> frozenset[str]:
    """One object for all passages with these tags, which most share with others: a set takes more
    than the text of a passage.
    """
    return frozenset(values)


def _sections_of_moves(connection: Connection, move_ids: Collection[str]) -> set[str]:
    def read(ids: Sequence[str]) -> dict[str, str | None]:
        rows = connection.execute(
            sa.select(t.moves.c.id, t.moves.c.section_id).where(t.moves.c.id.in_(ids))
        )
        return {**dict.fromkeys(ids), **{row.id: row.section_id for row in rows}}

    sections = look_up(connection, "sections of moves", move_ids, read, skills=False)
    return {section_id for section_id in sections.values() if section_id is not None}
