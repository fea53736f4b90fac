"""What speaks for a section when a signal is all that is known: its heading, whether its text calls
the signal by its id, its tags, and whether a move rests on it. One raw statement for many passages.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sqlalchemy import Connection

from kb.catalog.engine import portions


@dataclass(frozen=True)
class Mark:
    """Of one passage, by number: its section, the headings above it with its own last, the title,
    the hardware scopes and the text. `named` says that the text holds the signal's id, `tagged`
    that the passage has its tag, `moved` that one of the moves asked for rests on the section.
    """

    seq: int
    section_id: str
    path: tuple[str, ...]
    title: str
    hardware: tuple[str, ...]
    text: str
    named: bool
    tagged: bool
    moved: bool


def section_marks(
    connection: Connection, seqs: Iterable[int], signal: str, move_ids: Collection[str]
) -> list[Mark]:
    """The marks of the live passages among `seqs`, by number."""
    ids = list(move_ids)
    marks: list[Mark] = []
    for part in portions(sorted(set(seqs))):
        rows = connection.exec_driver_sql(
            "SELECT p.seq, p.section_id, s.path, d.title,"
            " (SELECT group_concat(h.hardware_id) FROM passage_hardware h"
            "   WHERE h.passage_id = p.id), p.text,"
            " instr(p.text, ?) > 0,"
            " EXISTS (SELECT 1 FROM passage_tags t"
            "   WHERE t.passage_id = p.id AND t.kind = 'signal' AND t.value = ?),"
            f" EXISTS (SELECT 1 FROM moves m WHERE m.section_id = p.section_id"
            f"   AND m.id IN ({','.join('?' * len(ids))}))"
            " FROM passages p JOIN sections s ON s.id = p.section_id"
            " JOIN documents d ON d.id = p.document_id"
            f" WHERE p.active AND p.seq IN ({','.join(map(str, part))}) ORDER BY p.seq",
            (signal, signal, *ids),
        )
        marks += [
            Mark(
                seq,
                section_id,
                tuple(json.loads(path)),
                title,
                tuple((hardware or "").split(",")),
                text,
                bool(named),
                bool(tagged),
                bool(moved),
            )
            for seq, section_id, path, title, hardware, text, named, tagged, moved in rows.all()
        ]
    return marks
