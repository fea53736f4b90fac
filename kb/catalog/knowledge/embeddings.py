"""Vectors by text: a text that occurs in several documents is embedded once per model.

Stored as little-endian float32 of unit length. Knows nothing about models or nearest neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy import Connection

from kb import clock
from kb.catalog import dialect
from kb.catalog import tables as t
from kb.catalog.engine import portions, select_in
from kb.embedding import embedding_text
from kb.scope import ALL_ACCESS, AccessScope

Vector = NDArray[np.float32]


def put(connection: Connection, model: str, vectors: Mapping[str, Vector]) -> None:
    """Store vectors by the SHA-256 of their text; one that exists already stays."""
    now = clock.now()
    rows = [
        {
            "text_sha256": sha,
            "model_fingerprint": model,
            "vector": np.ascontiguousarray(vector, "<f4").tobytes(),
            "created_at": now,
        }
        for sha, vector in vectors.items()
    ]
    if rows:
        connection.execute(dialect.insert_new(connection, t.embeddings), rows)


def delete_unused(connection: Connection, text_sha256s: Sequence[str]) -> None:
    """Remove the vectors of those texts that no passage has any more, of every model."""
    for part in portions(text_sha256s):
        used = sa.select(t.passages.c.embed_sha256).where(t.passages.c.embed_sha256.in_(part))
        connection.execute(
            t.embeddings.delete().where(
                t.embeddings.c.text_sha256.in_(part), t.embeddings.c.text_sha256.not_in(used)
            )
        )


def of_text(connection: Connection, model: str, sha256: str) -> Vector | None:
    """The vector of one text, by its SHA-256; None if this model has not embedded it."""
    vector = connection.scalar(
        sa.select(t.embeddings.c.vector).where(
            t.embeddings.c.text_sha256 == sha256, t.embeddings.c.model_fingerprint == model
        )
    )
    return None if vector is None else np.frombuffer(vector, "<f4")


def of_active(connection: Connection, model: str) -> dict[str, Vector]:
    """The vectors of all active passages, by the SHA-256 of their text."""
    rows = connection.execute(
        sa.select(t.embeddings.c.text_sha256, t.embeddings.c.vector)
        .distinct()
        .join(t.passages, t.passages.c.embed_sha256 == t.embeddings.c.text_sha256)
        .where(t.passages.c.active.is_(True), t.embeddings.c.model_fingerprint == model)
    )
    return {sha: np.frombuffer(vector, "<f4") for sha, vector in rows}


# -- texts without a vector


@dataclass(frozen=True)
class MissingText:
    """A text to embed, as the embedder reads it, with its SHA-256."""

    sha256: str
    text: str


@dataclass(frozen=True)
class Pending:
    """The part of a document that has no vector yet: distinct texts, the passages that have them,
    and the number of the first of these."""

    texts: int
    passages: int
    first: int


def pending(connection: Connection, model: str) -> dict[str, Pending]:
    """The parts without a vector of this model, by document id."""
    of = t.passages.c
    counted = (sa.func.count(of.embed_sha256.distinct()), sa.func.count(), sa.func.min(of.seq))
    rows = connection.execute(
        _without_vector(sa.select(of.document_id, *counted), model).group_by(of.document_id)
    )
    return {document_id: Pending(*counts) for document_id, *counts in rows}


def missing(connection: Connection, model: str, limits: Mapping[str, int]) -> list[MissingText]:
    """Texts of active passages of these documents without a vector of this model, each once, oldest
    first; of each document at most the limit by its id."""
    document, first = t.passages.c.document_id, sa.func.min(t.passages.c.seq)
    turn = sa.func.row_number().over(partition_by=document, order_by=first).label("turn")
    texts = _without_vector(sa.select(document, first.label("seq"), turn), model)
    texts = texts.group_by(document, t.passages.c.embed_sha256)
    by_sha: dict[str, MissingText] = {}
    for part in portions(list(limits)):
        ranked = texts.where(document.in_(part)).subquery()
        rows = connection.execute(
            sa.select(ranked.c.document_id, ranked.c.turn, t.passages.c.embed_sha256)
            .add_columns(t.sections.c.path, t.passages.c.lead, t.passages.c.text)
            .join(t.passages, t.passages.c.seq == ranked.c.seq)
            .join(t.sections, t.sections.c.id == t.passages.c.section_id)
            .where(ranked.c.turn <= max(limits.values()))
            .order_by(ranked.c.seq)
        )
        for document_id, place, sha, path, lead, text in rows:
            if place <= limits[document_id]:
                by_sha.setdefault(sha, MissingText(sha, embedding_text(path, lead, text)))
    return list(by_sha.values())


def _with_vector(model: str) -> sa.ColumnElement[bool]:
    """The vector of a passage by this model."""
    return sa.and_(
        t.embeddings.c.text_sha256 == t.passages.c.embed_sha256,
        t.embeddings.c.model_fingerprint == model,
    )


def _without_vector(select: sa.Select[Any], model: str) -> sa.Select[Any]:
    """Of active passages, those whose text has no vector of this model."""
    return select.outerjoin(t.embeddings, _with_vector(model)).where(
        t.passages.c.active.is_(True), t.embeddings.c.text_sha256.is_(None)
    )


def counts(connection: Connection, model: str) -> tuple[int, int]:
    """(embedded, all) active passages of the store."""
    embedded, total = connection.execute(
        sa.select(sa.func.count(t.embeddings.c.text_sha256), sa.func.count())
        .select_from(t.passages.outerjoin(t.embeddings, _with_vector(model)))
        .where(t.passages.c.active.is_(True))
    ).one()
    return int(embedded), int(total)


# -- by hardware scope


@dataclass(frozen=True)
class ScopeVectors:
    """All vectors of one hardware scope: `ids[i]` and `seqs[i]` belong to row i of `matrix` (n,
    dimension)."""

    ids: tuple[str, ...]
    seqs: tuple[int, ...]
    matrix: Vector


def of_scope(
    connection: Connection, model: str, hardware_id: str, access_scope: AccessScope
) -> ScopeVectors:
    """Vectors of the active passages of exactly this scope, in the order of their numbers."""
    rows = connection.execute(
        sa.select(t.passages.c.id, t.passages.c.seq, t.embeddings.c.vector)
        .join(t.embeddings, _with_vector(model))
        .join(t.passage_hardware, t.passage_hardware.c.passage_id == t.passages.c.id)
        .where(
            t.passage_hardware.c.hardware_id == hardware_id,
            t.passages.c.active.is_(True),
            t.passages.c.access_scope == access_scope.owner,
        )
        .order_by(t.passages.c.seq)
    ).all()
    if not rows:
        return ScopeVectors((), (), np.zeros((0, 0), np.float32))
    matrix = np.frombuffer(b"".join(row.vector for row in rows), "<f4").reshape(len(rows), -1)
    return ScopeVectors(tuple(r.id for r in rows), tuple(r.seq for r in rows), matrix)


def _scopes() -> sa.Select[Any]:
    """The hardware scopes of active passages."""
    return (
        sa.select(t.passage_hardware.c.hardware_id)
        .distinct()
        .join(t.passages, t.passages.c.id == t.passage_hardware.c.passage_id)
        .where(t.passages.c.active.is_(True))
    )


def hardware_scopes(connection: Connection, access_scope: AccessScope = ALL_ACCESS) -> list[str]:
    """Every scope that has active passages."""
    mine = _scopes().where(t.passages.c.access_scope == access_scope.owner)
    ordered = mine.order_by(t.passage_hardware.c.hardware_id)
    return list(connection.scalars(ordered))


def documents_of(connection: Connection, text_sha256s: Sequence[str]) -> set[str]:
    """Documents with current passages that have one of these texts."""
    c = t.passages.c
    query = sa.select(c.document_id).distinct().where(c.active.is_(True))
    rows = select_in(connection, query, c.embed_sha256, text_sha256s)
    return {row.document_id for row in rows}


def document_scopes(connection: Connection, document_ids: Sequence[str]) -> set[str]:
    """Hardware scopes of the active passages of some documents."""
    return _scopes_with(connection, t.passages.c.document_id, document_ids)


def _scopes_with(connection: Connection, column: sa.Column[str], values: Iterable[str]) -> set[str]:
    return {row.hardware_id for row in select_in(connection, _scopes(), column, values)}
