"""What a language model wrote from documents of a chip: for which signals and questions a section
is the answer (readings), and sections about a signal (drafts).

A reading belongs to the headings and the text of a section, by their hash. So it holds for later
versions of the document that keep the section, and no longer once a person corrects the text. A
draft is used after a person has accepted it: the accepted drafts of a chip are one document,
whose source key `is_drafted` recognises, so that an answer can mark it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal, get_args

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import tables as t
from kb.catalog.engine import Catalog, record_of, select_in
from kb.catalog.meta import bump_documents
from kb.errors import NotFound
from kb.ids import derived_id, sha256
from kb.plain import Doc
from kb.scope import ALL_ACCESS, AccessScope


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


def store_readings(catalog: Catalog, readings: Sequence[Reading]) -> None:
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
                r.c.document_id == sa.bindparam("document"), r.c.text_sha256 == sa.bindparam("text")
            ),
            [{"document": document, "text": text} for document, text in values],
        )
        connection.execute(r.insert(), list(values.values()))
        bump_documents(connection, known, at_once=False)


def readings_of(
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


DraftStatus = Literal["proposed", "accepted", "rejected"]
STATUSES: tuple[DraftStatus, ...] = get_args(DraftStatus)
ORIGIN = "draft"  # of the document of accepted drafts
MARK = "drafted by a model from the chip's manuals, accepted by a person"
_KEY, _ON = "drafts of ", " on "


@dataclass(frozen=True)
class DraftSentence:
    """A sentence that rests on a section: `quote` are the words of the section that show it, `path`
    its headings."""

    text: str
    quote: str
    document_id: str
    document_title: str
    section_id: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class Draft:
    """A drafted section; `model` wrote it at `created_at`."""

    id: str
    hardware_id: str
    signal: str
    title: str
    sentences: tuple[DraftSentence, ...]
    model: str
    status: Annotated[DraftStatus, Doc("proposed, accepted or rejected.")]
    created_at: str
    actor: str | None = None


def title_of(signal: str, name: str) -> str:
    """The heading of the section about a signal of the chip with this name."""
    return f"{signal.replace('_', ' ').capitalize()}{_ON}{name}"


def signal_of(title: str) -> str:
    """The signal of such a heading."""
    return title.partition(_ON)[0].lower().replace(" ", "_")


def source_key_of(hardware_id: str) -> str:
    """The source key of the document with a chip's accepted drafts."""
    return f"{_KEY}{hardware_id}"


def is_drafted(source_key: str) -> bool:
    """Whether this is the key of such a document."""
    return source_key.startswith(_KEY)


def propose(
    catalog: Catalog, drafts: Sequence[Draft], access_scope: AccessScope = ALL_ACCESS
) -> None:
    """Store drafts, each in place of an earlier one about the same signal and chip."""
    d = t.drafts
    with catalog.write() as connection:
        for draft in drafts:
            own = derived_id("draft", access_scope.owner, draft.hardware_id, draft.signal)
            connection.execute(d.delete().where(d.c.id == own))
            values = {**asdict(draft), "id": own, "created_at": clock.now()}
            connection.execute(d.insert().values(**values, access_scope=access_scope.owner))


def listed(
    connection: Connection,
    hardware_id: str,
    statuses: Sequence[DraftStatus] = STATUSES,
    access_scope: AccessScope = ALL_ACCESS,
) -> list[Draft]:
    """The drafts of a chip, by title."""
    d = t.drafts
    rows = connection.execute(
        sa.select(d)
        .where(
            d.c.hardware_id == hardware_id,
            d.c.status.in_(statuses),
            d.c.access_scope == access_scope.owner,
        )
        .order_by(d.c.title, d.c.id)
    )
    return [_draft(row) for row in rows]


def document_of(
    connection: Connection, hardware_id: str, access_scope: AccessScope = ALL_ACCESS
) -> str | None:
    """The id of the document with a chip's accepted drafts, None without one."""
    d = t.documents.c
    document_id: str | None = connection.scalar(
        sa.select(d.id).where(
            d.source_key == source_key_of(hardware_id), d.access_scope == access_scope.owner
        )
    )
    return document_id


def decide(
    catalog: Catalog,
    hardware_id: str,
    status: DraftStatus,
    ids: Sequence[str] | None,
    actor: str,
    access_scope: AccessScope = ALL_ACCESS,
) -> list[Draft]:
    """Record a person's decision about drafts of a chip, None for all proposed ones. Raises
    NotFound."""
    d = t.drafts
    with catalog.write() as connection:
        known = {x.id: x for x in listed(connection, hardware_id, access_scope=access_scope)}
        if ids is None:
            ids = [draft.id for draft in known.values() if draft.status == "proposed"]
        for draft_id in ids:
            if draft_id not in known:
                raise NotFound(
                    f"{hardware_id} has no draft {draft_id!r}",
                    hint=f"`kernlore hardware drafts {hardware_id}` lists them.",
                )
        connection.execute(d.update().where(d.c.id.in_(ids)).values(status=status, actor=actor))
        known = {x.id: x for x in listed(connection, hardware_id, access_scope=access_scope)}
    return [known[draft_id] for draft_id in ids]


def quoting(connection: Connection, document_id: str) -> list[Draft]:
    every = map(_draft, connection.execute(sa.select(t.drafts)))
    return [d for d in every if any(s.document_id == document_id for s in d.sentences)]


def withdraw(connection: Connection, document_id: str) -> None:
    """Remove the drafts that quote a document, which is deleted."""
    ids = [draft.id for draft in quoting(connection, document_id)]
    connection.execute(t.drafts.delete().where(t.drafts.c.id.in_(ids)))


def _draft(row: sa.Row[object]) -> Draft:
    rows = row._mapping["sentences"]
    sentences = tuple(DraftSentence(**{**s, "path": tuple(s["path"])}) for s in rows)
    return record_of(Draft, row, sentences=sentences)
