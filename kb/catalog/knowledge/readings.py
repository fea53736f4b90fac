"""What a language model wrote about sections of documents: for which signals and questions each is
the answer, in a line with a quote.

A reading belongs to the headings and the text of a section, by their hash. So it holds for later
versions of the document that keep the section, and no longer once a person corrects the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import tables as t
from kb.catalog.engine import Catalog, select_in
from kb.catalog.meta import bump_documents
from kb.ids import sha256


@dataclass(frozen=True)
class ReadLine:
    """What a section is good for. `signal` is empty for a line that is a question; `grade` is 2 if
    the section answers it, 1 if it helps in part; `quote` are words of the section."""

    signal: str
    grade: int
    line: str
    quote: str


@dataclass(frozen=True)
class Reading:
    """The lines of one section, in the order of the model."""

    document_id: str
    text_sha256: str
    model: str
    lines: tuple[ReadLine, ...]


def text_key(path: Sequence[str], text: str) -> str:
    """The hash of a section's headings and text."""
    return sha256("\n".join((*path, "", text)))


def store(catalog: Catalog, readings: Sequence[Reading]) -> None:
    """Store readings, each in place of an earlier one of the same text; their documents are
    published again. Readings of deleted documents are left out."""
    r = t.readings
    with catalog.write() as connection:
        rows = select_in(connection, sa.select(t.documents.c.id), t.documents.c.id, _ids(readings))
        known = {row.id for row in rows}
        now = clock.now()
        values = {
            (reading.document_id, reading.text_sha256): {
                "document_id": reading.document_id,
                "text_sha256": reading.text_sha256,
                "model": reading.model,
                "lines": [asdict(line) for line in reading.lines],
                "created_at": now,
            }
            for reading in readings
            if reading.document_id in known
        }
        if not values:
            return
        connection.execute(
            r.delete().where(
                r.c.document_id == sa.bindparam("document"),
                r.c.text_sha256 == sa.bindparam("text"),
            ),
            [{"document": document, "text": text} for document, text in values],
        )
        connection.execute(r.insert(), list(values.values()))
        bump_documents(connection, known, at_once=False)


def of_documents(
    connection: Connection, document_ids: Sequence[str]
) -> Mapping[tuple[str, str], Reading]:
    """The readings of these documents, by document and hash of the text."""
    rows = select_in(
        connection, sa.select(t.readings), t.readings.c.document_id, list(document_ids)
    )
    return {
        (row.document_id, row.text_sha256): Reading(
            row.document_id,
            row.text_sha256,
            row.model,
            tuple(ReadLine(**line) for line in row.lines),
        )
        for row in rows
    }


def _ids(readings: Sequence[Reading]) -> list[str]:
    return sorted({reading.document_id for reading in readings})
