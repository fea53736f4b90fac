"""Sections about a signal of a chip that a language model drafted from the chip's manuals.

A draft is used after a person has accepted it: the accepted drafts of a chip are one document,
whose source key `is_drafted` recognises, so that an answer can mark it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal, get_args

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import tables as t
from kb.catalog.engine import Catalog, record_of
from kb.errors import NotFound
from kb.ids import derived_id
from kb.plain import Doc
from kb.scope import ALL_ACCESS, AccessScope

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
    """The drafts that quote a document."""
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
