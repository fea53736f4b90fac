"""The share of its text that a version has in common with the version that it replaces, and with
other documents about the same hardware.

A version that shares hardly any text with the current one under another title is not stored until
its sender confirms it. Remarks tell the uploader of two manuals under one name, or one under two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import tables as t
from kb.errors import UnrelatedVersion

MAX_TEXT = 200_000  # characters of a version that are compared
RUN = 4  # words in a row that count as the same text
UNRELATED = 0.4  # a revision shares more of its runs with the version before, even if reworded
HARDLY = 0.05
COMPARABLE = 40  # runs of a version whose title alone does not show that it is a revision
CONFIRMED = 0.2  # up to this share, a version with another title needs a confirmation
SAME = 0.6  # from this share on, two documents look like one
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class EarlierDocument:
    """The state of a document before a version of it was stored."""

    title: str
    version_id: str | None


def earlier_document(connection: Connection, document_id: str) -> EarlierDocument:
    """Read it before the new version is made current."""
    row = connection.execute(
        sa.select(t.documents.c.title, t.documents.c.current_version_id).where(
            t.documents.c.id == document_id
        )
    ).one()
    return EarlierDocument(row.title, row.current_version_id)


def check_replacement(
    connection: Connection, earlier: EarlierDocument, title: str, texts: Iterable[str]
) -> None:
    """Raise UnrelatedVersion if a version with these passages is about something else than the
    current version of its document.
    """
    if earlier.version_id is None:
        return
    new, old = _runs(texts), _stored_runs(connection, earlier.version_id)
    share = len(new & old) / max(1, min(len(new), len(old)))
    same_title = _folded(title) == _folded(earlier.title)
    if share > (0 if same_title else CONFIRMED) or (same_title and len(new) < COMPARABLE):
        return
    raise UnrelatedVersion(
        f"'{title}' would replace '{earlier.title}', with which it shares {_shared(share)}",
        hint="Nothing was replaced. Decide about the job (`kernlore jobs decide`): replace,"
        " separate (keep both) or discard; or send the file with replace=true, or with another"
        " source_key.",
        details={"replaces": earlier.title, "share": round(share, 3)},
    )


def remarks(connection: Connection, version_id: str, earlier: EarlierDocument) -> list[str]:
    """One line for an unrelated document that this version replaces, and one for another document
    with mostly the same text. The version is stored and current.
    """
    document = connection.execute(
        sa.select(t.documents)
        .join(t.document_versions, t.document_versions.c.document_id == t.documents.c.id)
        .where(t.document_versions.c.id == version_id)
    ).one()
    said = [_replaced(connection, document.title, version_id, earlier)]
    said.append(_doubled(connection, document, version_id))
    return [line for line in said if line]


def _replaced(connection: Connection, title: str, version_id: str, earlier: EarlierDocument) -> str:
    if earlier.version_id in (None, version_id) or _folded(title) == _folded(earlier.title):
        return ""
    new = _stored_runs(connection, version_id)
    old = _stored_runs(connection, str(earlier.version_id))
    share = len(new & old) / max(1, min(len(new), len(old)))
    if share > UNRELATED:
        return ""
    return (
        f"replaces '{earlier.title}', with which it shares {_shared(share)}; `kernlore documents"
        " restore` takes this back"
    )


def _shared(share: float) -> str:
    if not share:
        return "no text"
    return f"{int(100 * share)} % of its text" if share > HARDLY else "hardly any text"


def _stored_runs(connection: Connection, version_id: str) -> set[tuple[str, ...]]:
    """The runs of words of a version's passages."""
    return _runs(
        connection.execute(
            sa.select(t.passages.c.text)
            .where(t.passages.c.version_id == version_id)
            .order_by(t.passages.c.ordinal)
        ).scalars()
    )


def _runs(texts: Iterable[str]) -> set[tuple[str, ...]]:
    runs: set[tuple[str, ...]] = set()
    left = MAX_TEXT
    for text in texts:
        words = _WORD.findall(text[:left].lower())
        runs.update(zip(*(words[n:] for n in range(RUN)), strict=False))
        left -= len(text)
        if left <= 0:
            break
    return runs


def _doubled(connection: Connection, document: sa.Row[tuple[object, ...]], version_id: str) -> str:
    """Identical passages are known by their hash."""
    own = t.passages.alias()
    mine = dict(
        connection.execute(
            sa.select(own.c.text_sha256, sa.func.max(sa.func.length(own.c.text)))
            .where(own.c.version_id == version_id)
            .group_by(own.c.text_sha256)
        ).all()
    )
    rows = connection.execute(
        sa.select(t.passages.c.document_id, t.passages.c.text_sha256)
        .distinct()
        .where(
            t.passages.c.document_id.in_(_siblings(document)),
            t.passages.c.active.is_(True),
            t.passages.c.text_sha256.in_(
                sa.select(own.c.text_sha256).where(own.c.version_id == version_id)
            ),
        )
    ).all()
    shared: dict[str, int] = {}
    for other, sha in rows:
        shared[other] = shared.get(other, 0) + mine[sha]
    if not shared:
        return ""
    nearest = max(sorted(shared), key=lambda other: shared[other])
    share = shared[nearest] / max(1, sum(mine.values()))
    if share < SAME:
        return ""
    other = connection.execute(
        sa.select(t.documents.c.title, t.documents.c.source_key).where(t.documents.c.id == nearest)
    ).one()
    return (
        f"shares {int(100 * share)} % of its text with '{other.title}'; if it replaces that one,"
        f" delete this document and upload it with --source-key '{other.source_key}'"
    )


def _siblings(document: sa.Row[tuple[object, ...]]) -> sa.Select[tuple[str]]:
    """The uploaded documents about a hardware that this one is about, of the same owner."""
    scope, of = t.document_scopes.alias(), t.document_scopes
    hardware = sa.select(of.c.value).where(of.c.document_id == document.id, of.c.kind == "hardware")
    return (
        sa.select(t.documents.c.id)
        .join(scope, scope.c.document_id == t.documents.c.id)
        .where(
            scope.c.kind == "hardware",
            scope.c.value.in_(hardware),
            t.documents.c.id != document.id,
            t.documents.c.origin == "upload",
            t.documents.c.access_scope == document.access_scope,
        )
    )


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
