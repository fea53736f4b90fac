"""People's corrections, stored apart from the machine's reading, so that the next revision of a
document does not undo them.

A correction is anchored to the machine's reading: the SHA-256 of the passage's uncorrected text,
the heading path of a section, or the name of a symbol. When a revision is read again, equal text
gets its correction back; one that matches nothing is reported, with its text, until it is made
again under the same heading or dropped. Cards that a model has proposed are stored here too, with
the decisions about them (`kb.catalog.knowledge.symbols`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.tables import corrections
from kb.ids import new_id
from kb.plain import Doc
from kb.scope import ALL_ACCESS, AccessScope

REMARKED = 6  # corrections that a job names
QUOTED = 200  # characters of one in it


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
    place = {"document_id": document_id, "target": target, "anchor": anchor, "field": field}
    same = (corrections.c[name] == wanted for name, wanted in place.items())
    connection.execute(corrections.delete().where(*same))
    row = {"id": new_id("cor"), "value": {"value": value}, "actor": actor}
    connection.execute(corrections.insert().values(**place, **row, created_at=clock.now()))


def of_symbols(connection: Connection, document_id: str, field: str) -> dict[str, Any]:
    """The values of one field by symbol name, oldest first."""
    rows = connection.execute(
        sa.select(corrections.c.anchor, corrections.c.value)
        .where(
            corrections.c.document_id == document_id,
            corrections.c.target == "symbol",
            corrections.c.field == field,
        )
        .order_by(corrections.c.created_at, corrections.c.id)
    )
    return {row.anchor: row.value["value"] for row in rows}


# -- applying them to a revision


@dataclass(frozen=True)
class PassageFix:
    """Corrected fields of a passage; None leaves the machine's reading."""

    text: str | None = None
    tags: tuple[tuple[str, str], ...] | None = None
    hardware: tuple[str, ...] | None = None


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
        """The corrected hardware scope of a section; None without a correction."""
        hardware = self._value("section", json.dumps(list(path)), "hardware")
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


# -- corrections without a match


@dataclass(frozen=True)
class UnfitCorrection:
    """A correction of a text, section or symbol that the current version of its document lacks."""

    id: str
    document_id: str
    title: Annotated[str, Doc("Title of the document.")]
    target: Annotated[str, Doc("passage, section or symbol.")]
    field: Annotated[str, Doc("text, tags, hardware or card.")]
    text: Annotated[str, Doc("The corrected text.")]
    actor: str
    created_at: str
    path: Annotated[
        tuple[str, ...],
        Doc("The headings that it was made under; of a card, the name that it is about."),
    ]
    passage_id: Annotated[str | None, Doc("The passage of the earlier version.")]


def unfit(
    connection: Connection, document_id: str | None = None, access: AccessScope = ALL_ACCESS
) -> list[UnfitCorrection]:
    """The corrections of one document, or of all, that do not fit its current version, oldest
    first."""
    current = t.documents.c.current_version_id
    is_passage = (
        t.passages.c.version_id == current,
        t.passages.c.text_sha256 == corrections.c.anchor,
    )
    is_symbol = t.symbols.c.version_id == current, t.symbols.c.name == corrections.c.anchor
    query = (
        sa.select(corrections, t.documents.c.title, current)
        .join(t.documents, t.documents.c.id == corrections.c.document_id)
        .where(
            current.is_not(None),
            visible.documents(access),
            sa.or_(
                corrections.c.target == "section",
                sa.and_(corrections.c.target == "passage", ~sa.exists().where(*is_passage)),
                sa.and_(
                    corrections.c.target == "symbol",
                    corrections.c.field == "card",  # a proposal goes with its text
                    ~sa.exists().where(*is_symbol),
                ),
            ),
        )
        .order_by(corrections.c.created_at, corrections.c.id)
    )
    if document_id is not None:
        query = query.where(corrections.c.document_id == document_id)
    looked_at = (_unfit(connection, row, access) for row in connection.execute(query).all())
    return [entry for entry in looked_at if entry is not None]


def _unfit(connection: Connection, row: sa.Row[Any], access: AccessScope) -> UnfitCorrection | None:
    """None for a section that exists, and for a correction that the caller may not see."""
    passage_id: str | None = None
    if row.target == "section":
        path = tuple(json.loads(row.anchor))
        paths = connection.scalars(
            sa.select(t.sections.c.path).where(t.sections.c.version_id == row.current_version_id)
        )
        if access.restricted or list(path) in list(paths):
            return None
    elif row.target == "symbol":
        path = (str(row.anchor),)
        if access.restricted:
            return None
    else:
        old = connection.execute(
            sa.select(t.passages.c.id, t.sections.c.path)
            .join(t.sections, t.sections.c.id == t.passages.c.section_id)
            .where(
                t.passages.c.document_id == row.document_id,
                t.passages.c.text_sha256 == row.anchor,
                visible.passages(access),
            )
            .order_by(t.passages.c.seq.desc())
            .limit(1)
        ).one_or_none()
        if old is None and access.restricted:
            return None
        path, passage_id = (tuple(old.path), str(old.id)) if old is not None else ((), None)
    text = _as_text(row.field, row.value["value"])
    shown = (row.title, row.target, row.field, text, row.actor, row.created_at)
    return UnfitCorrection(row.id, row.document_id, *shown, path, passage_id)


def _as_text(field: str, value: Any) -> str:
    if field == "tags":
        return ", ".join(f"{kind}={tag}" for kind, tag in value) or "no tags"
    if field == "hardware":
        return ", ".join(value) or "any hardware"
    if field == "card":
        stated = {k: "; ".join(v) if isinstance(v, list) else v for k, v in value.items()}
        return "\n".join(f"{name}: {text}" for name, text in stated.items())
    return str(value)


def no_longer_fit(entries: Sequence[UnfitCorrection]) -> str:
    """The number of corrections that no longer fit, as text."""
    fit = "correction no longer fits" if len(entries) == 1 else "corrections no longer fit"
    return f"{len(entries)} {fit}"


def remarks(entries: Sequence[UnfitCorrection]) -> list[str]:
    """The remark of a new version's job on corrections that match nothing in it."""
    if not entries:
        return []
    named = []
    for entry in entries[:REMARKED]:
        text = " ".join(entry.text.split())
        text = text if len(text) <= QUOTED else f"{text[: QUOTED - 3]}..."
        place = f" (under {' > '.join(entry.path)})" if entry.path else ""
        named.append(f"{entry.field} '{text}'{place}")
    if len(entries) > REMARKED:
        named.append(f"and {len(entries) - REMARKED} more")
    again = "make it again" if len(entries) == 1 else "make them again"
    return [
        f"{no_longer_fit(entries)} this version: {'; '.join(named)}; {again} on the document's"
        " page, or with `kernlore documents correct`"
    ]


def made_again(
    connection: Connection, document_id: str, fields: Collection[str], path: Sequence[str]
) -> None:
    """A passage of the current version was corrected: drop unfit corrections of the same field and
    heading."""
    for entry in unfit(connection, document_id):
        if entry.target == "passage" and entry.field in fields and entry.path == tuple(path):
            drop(connection, document_id, entry.id)


def drop(connection: Connection, document_id: str, correction_id: str) -> bool:
    """Remove a correction that no longer fits; False if it does not exist."""
    if correction_id not in {entry.id for entry in unfit(connection, document_id)}:
        return False
    connection.execute(corrections.delete().where(corrections.c.id == correction_id))
    return True
