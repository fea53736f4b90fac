"""People's corrections, kept apart from what machines read, so that the next revision does not undo
them.

A correction is anchored to the machine's own reading: the SHA-256 of the passage's uncorrected
text, the heading path of a section, or the name of a symbol. When a revision is read again, equal
text gets its correction back; what no longer matches is reported. Cards of symbols that a model has
proposed are kept here too, with what people decided about them (`proposed_symbols`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog.tables.knowledge import corrections
from kb.ids import new_id


@dataclass(frozen=True)
class PassageFix:
    """Corrected fields of a passage; None leaves what the machine read."""

    text: str | None = None
    tags: tuple[tuple[str, str], ...] | None = None
    hardware: tuple[str, ...] | None = None

    @property
    def any(self) -> bool:
        """Whether anything is corrected."""
        return (self.text, self.tags, self.hardware) != (None, None, None)


def section_anchor(path: Sequence[str]) -> str:
    """The anchor of a section: its heading path as JSON."""
    return json.dumps(list(path))


class Corrections:
    """The corrections of one document by anchor; remembers which of them were applied."""

    def __init__(self, rows: Sequence[sa.Row[Any]]) -> None:
        self._rows = {(row.target, row.anchor, row.field): row for row in rows}
        self._matched: set[tuple[str, str, str]] = set()

    def _value(self, target: str, anchor: str, field: str) -> Any:
        row = self._rows.get((target, anchor, field))
        if row is None:
            return None
        self._matched.add((target, anchor, field))
        return row.value["value"]

    def passage(self, anchor: str) -> PassageFix:
        """The fix for the passage with this anchor, the SHA-256 of the machine's text."""
        tags = self._value("passage", anchor, "tags")
        hardware = self._value("passage", anchor, "hardware")
        return PassageFix(
            text=self._value("passage", anchor, "text"),
            tags=tuple((kind, value) for kind, value in tags) if tags is not None else None,
            hardware=tuple(hardware) if hardware is not None else None,
        )

    def section_hardware(self, path: Sequence[str]) -> tuple[str, ...] | None:
        """The corrected hardware scope of a section; None where nobody corrected it."""
        hardware = self._value("section", section_anchor(path), "hardware")
        return tuple(hardware) if hardware is not None else None

    def unmatched(self) -> list[dict[str, Any]]:
        """Corrections that match nothing in this revision, for the report."""
        return [
            {"id": row.id, "target": row.target, "field": row.field}
            for key, row in sorted(self._rows.items())
            if key not in self._matched
        ]


def load(connection: Connection, document_id: str) -> Corrections:
    """The corrections of a document's passages and sections; `symbols` applies those of cards."""
    rows = connection.execute(
        sa.select(corrections)
        .where(
            corrections.c.document_id == document_id,
            corrections.c.target.in_(("passage", "section")),
        )
        .order_by(corrections.c.created_at)
    )
    return Corrections(list(rows))


def record(
    connection: Connection,
    document_id: str,
    target: str,
    anchor: str,
    field: str,
    value: Any,
    actor: str,
) -> None:
    """Store a correction; it replaces an earlier correction of the same place and field."""
    connection.execute(
        corrections.delete().where(
            corrections.c.document_id == document_id,
            corrections.c.target == target,
            corrections.c.anchor == anchor,
            corrections.c.field == field,
        )
    )
    connection.execute(
        corrections.insert().values(
            id=new_id("cor"),
            document_id=document_id,
            target=target,
            anchor=anchor,
            field=field,
            value={"value": value},
            actor=actor,
            created_at=clock.now(),
        )
    )
