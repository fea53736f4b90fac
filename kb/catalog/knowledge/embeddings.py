"""Vectors by text: the same text is embedded once per model, whatever document or revision it
stands in.

Stored as little-endian float32 of unit length. Knows nothing about models or nearest neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy import Connection

from kb import clock
from kb.catalog import dialect
from kb.catalog import tables as t
from kb.catalog.kept import revision_of, seen_by
from kb.catalog.rows import portions
from kb.embedding import embedding_text
from kb.scope import ALL_ACCESS, AccessScope

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class MissingText:
    """A text to embed, as the embedder is to read it, with its SHA-256."""

    sha256: str
    text: str


def put(connection: Connection, model: str, vectors: Mapping[str, Vector]) -> None:
    """Keep vectors by the SHA-256 of their text; one already there stays."""
    rows = [
        {
            "text_sha256": sha,
            "model_fingerprint": model,
            "vector": np.ascontiguousarray(vector, "<f4").tobytes(),
            "created_at": clock.now(),
        }
        for sha, vector in vectors.items()
    ]
    if rows:
        connection.execute(dialect.insert_new(connection, t.embeddings), rows)


def delete_unused(connection: Connection, text_sha256s: Sequence[str]) -> None:
    """Remove the vectors of these texts, of every model, where no passage has the text any more."""
    for part in portions(text_sha256s):
        used = sa.select(t.passages.c.embed_sha256).where(t.passages.c.embed_sha256.in_(part))
        connection.execute(
            t.embeddings.delete().where(
                t.embeddings.c.text_sha256.in_(part), t.embeddings.c.text_sha256.not_in(used)
            )
        )


def of_text(connection: Connection, model: str, sha256: str) -> Vector | None:
    """The vector of one text, by its SHA-256; None where this model has not embedded it."""
    vector = connection.execute(
        sa.select(t.embeddings.c.vector).where(
            t.embeddings.c.text_sha256 == sha256, t.embeddings.c.model_fingerprint == model
        )
    ).scalar()
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


@dataclass(frozen=True)
class Pending:
    """What of a document has no vector yet: distinct texts, the passages that have them, and the
    number of the first of these.
    """

    texts: int
    passages: int
    first: int


def pending(connection: Connection, model: str) -> dict[str, Pending]:
    """What has no vector of this model yet, by document id."""
    rows = connection.execute(
        _without_vector(
            sa.select(
                t.passages.c.document_id,
                sa.func.count(t.passages.c.embed_sha256.distinct()),
                sa.func.count(),
                sa.func.min(t.passages.c.seq),
            ),
            model,
        ).group_by(t.passages.c.document_id)
    )
    return {document_id: Pending(*counted) for document_id, *counted in rows}


def missing(
    connection: Connection, model: str, limit: int | Mapping[str, int]
) -> list[MissingText]:
    """Texts of active passages without a vector of this model, each once, oldest first. `limit` is
    the most of each document: a number for all documents, or one by document id.
    """
    first = sa.func.min(t.passages.c.seq)
    texts = _without_vector(
        sa.select(
            t.passages.c.document_id,
            first.label("seq"),
            sa.func.row_number()
            .over(partition_by=t.passages.c.document_id, order_by=first)
            .label("turn"),
        ),
        model,
    ).group_by(t.passages.c.document_id, t.passages.c.embed_sha256)
    if isinstance(limit, int):
        return _texts(connection, texts, {}, limit)
    listed = [
        text
        for part in portions(list(limit))
        for text in _texts(connection, texts.where(t.passages.c.document_id.in_(part)), limit, 0)
    ]
    return list({text.sha256: text for text in listed}.values())


def _texts(
    connection: Connection, texts: sa.Select[Any], limits: Mapping[str, int], otherwise: int
) -> list[MissingText]:
    ranked = texts.subquery()
    rows = connection.execute(
        sa.select(
            ranked.c.document_id,
            ranked.c.turn,
            t.passages.c.embed_sha256,
            t.sections.c.path,
            t.passages.c.lead,
            t.passages.c.text,
        )
        .join(t.passages, t.passages.c.seq == ranked.c.seq)
        .join(t.sections, t.sections.c.id == t.passages.c.section_id)
        .where(ranked.c.turn <= max(limits.values(), default=otherwise))
        .order_by(ranked.c.seq)
    )
    by_sha: dict[str, MissingText] = {}
    for document_id, turn, sha, path, lead, text in rows:
        if turn <= limits.get(document_id, otherwise):
            by_sha.setdefault(sha, MissingText(sha, embedding_text(path, lead, text)))
    return list(by_sha.values())


def _without_vector(select: sa.Select[Any], model: str) -> sa.Select[Any]:
    """Of active passages, those whose text has no vector of this model."""
    return select.outerjoin(
        t.embeddings,
        sa.and_(
            t.embeddings.c.text_sha256 == t.passages.c.embed_sha256,
            t.embeddings.c.model_fingerprint == model,
        ),
    ).where(t.passages.c.active.is_(True), t.embeddings.c.text_sha256.is_(None))


def counts(connection: Connection, model: str) -> tuple[int, int]:
    """(embedded, all) active passages of the store."""
    join = t.passages.outerjoin(
        t.embeddings,
        sa.and_(
            t.embeddings.c.text_sha256 == t.passages.c.embed_sha256,
            t.embeddings.c.model_fingerprint == model,
        ),
    )
    embedded, total = connection.execute(
        sa.select(sa.func.count(t.embeddings.c.text_sha256), sa.func.count())
        .select_from(join)
        .where(t.passages.c.active.is_(True))
    ).one()
    return int(embedded), int(total)


def by_sequence(connection: Connection, model: str, seqs: Iterable[int]) -> dict[int, Vector]:
    """Vectors of passages by their number; passages not embedded yet are left out."""
    wanted = list(seqs)
    vectors: dict[int, Vector] = {}
    for part in portions(wanted):
        rows = connection.execute(
            sa.select(t.passages.c.seq, t.embeddings.c.vector)
            .join(t.embeddings, t.embeddings.c.text_sha256 == t.passages.c.embed_sha256)
            .where(
                t.passages.c.seq.in_(part),
                t.embeddings.c.model_fingerprint == model,
            )
        )
        for seq, vector in rows:
            vectors[seq] = np.frombuffer(vector, "<f4")
    return vectors


@dataclass(frozen=True)
class ScopeVectors:
    """All vectors of one hardware scope: `ids[i]` and `seqs[i]` belong to row i of `matrix` (n,
    dimension).
    """

    ids: tuple[str, ...]
    seqs: tuple[int, ...]
    matrix: Vector

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """`seqs` as an array."""
        return np.array(self.seqs, np.int64)


def of_scope(
    connection: Connection, model: str, hardware_id: str, access_scope: AccessScope
) -> ScopeVectors:
    """Vectors of the active passages of exactly this scope, in the order of their numbers."""
    rows = list(
        connection.execute(
            sa.select(t.passages.c.id, t.passages.c.seq, t.embeddings.c.vector)
            .join(t.embeddings, t.embeddings.c.text_sha256 == t.passages.c.embed_sha256)
            .join(t.passage_hardware, t.passage_hardware.c.passage_id == t.passages.c.id)
            .where(
                t.passage_hardware.c.hardware_id == hardware_id,
                t.passages.c.active.is_(True),
                t.passages.c.access_scope == access_scope.owner,
                t.embeddings.c.model_fingerprint == model,
            )
            .order_by(t.passages.c.seq)
        )
    )
    if not rows:
        return ScopeVectors((), (), np.zeros((0, 0), np.float32))
    matrix = np.frombuffer(b"".join(row.vector for row in rows), "<f4").reshape(len(rows), -1)
    return ScopeVectors(tuple(r.id for r in rows), tuple(r.seq for r in rows), matrix)


def hardware_scopes(connection: Connection, access_scope: AccessScope = ALL_ACCESS) -> list[str]:
    """Every scope that has active passages."""
    return list(
        connection.execute(
            sa.select(t.passage_hardware.c.hardware_id)
            .distinct()
            .join(t.passages, t.passages.c.id == t.passage_hardware.c.passage_id)
            .where(t.passages.c.active.is_(True), t.passages.c.access_scope == access_scope.owner)
            .order_by(t.passage_hardware.c.hardware_id)
        ).scalars()
    )


def text_scopes(connection: Connection, text_sha256s: Sequence[str]) -> set[str]:
    """Hardware scopes of the active passages that have one of these texts."""
    scopes: set[str] = set()
    for part in portions(text_sha256s):
        scopes |= set(
            connection.execute(
                sa.select(t.passage_hardware.c.hardware_id)
                .distinct()
                .join(t.passages, t.passages.c.id == t.passage_hardware.c.passage_id)
                .where(t.passages.c.embed_sha256.in_(part), t.passages.c.active.is_(True))
            ).scalars()
        )
    return scopes


def document_scopes(connection: Connection, document_ids: Sequence[str]) -> set[str]:
    """Hardware scopes of the active passages of some documents."""
    scopes: set[str] = set()
    for part in portions(document_ids):
        scopes |= set(
            connection.execute(
                sa.select(t.passage_hardware.c.hardware_id)
                .distinct()
                .join(t.passages, t.passages.c.id == t.passage_hardware.c.passage_id)
                .where(t.passages.c.document_id.in_(part), t.passages.c.active.is_(True))
            ).scalars()
        )
    return scopes


def index_state(connection: Connection) -> tuple[int, int]:
    """Changes whenever a search over vectors could: (revision, newest vector)."""
    return revision_of(connection), newest(connection)


def newest(connection: Connection) -> int:
    """The number of the newest vector, or on PostgreSQL of who wrote one last; 0 without one. A
    transaction reads it once.
    """

    def read() -> int:
        if dialect.is_postgresql(connection):
            return dialect.last_writer(connection, "embeddings")
        return int(connection.exec_driver_sql("SELECT max(rowid) FROM embeddings").scalar() or 0)

    return seen_by(connection, "newest vector", read)
