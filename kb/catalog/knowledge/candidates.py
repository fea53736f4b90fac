"""What ranking needs of many passages at once: section, prose share and vector, in one raw
statement.

A passage's number is one more than its predecessor's within a version, so a candidate's neighbours
are fetched with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from sqlalchemy import Connection

from kb.catalog.engine import portions
from kb.catalog.kept import look_up
from kb.catalog.knowledge.embeddings import Vector, index_state
from kb.scope import ScopeFilter


@dataclass(frozen=True, eq=False)
class Candidate:
    """`wanted` is False for a neighbour that was fetched only to support a candidate."""

    section_id: str
    prose: int
    kind: str
    category: str
    access_scope: str
    vector: Vector | None
    wanted: bool


def candidates(
    connection: Connection, seqs: Iterable[int], model: str, scope: ScopeFilter
) -> dict[int, Candidate]:
    """The live passages among `seqs` (within category and access) and their neighbours."""
    wanted = set(seqs)
    all_seqs = sorted({n for seq in wanted for n in (seq - 1, seq, seq + 1)})
    rows = look_up(
        connection,
        "candidates",
        all_seqs,
        partial(_read, connection, model),
        detail=(model, index_state(connection)),
    )
    return {
        seq: candidate if seq in wanted else replace(candidate, wanted=False)
        for seq, candidate in rows.items()
        if candidate is not None
        and candidate.access_scope == scope.access_scope.owner
        and candidate.category in scope.categories
    }


def _read(connection: Connection, model: str, seqs: Sequence[int]) -> dict[int, Candidate | None]:
    """What stands under these numbers; None where that is not live."""
    by_seq: dict[int, Candidate | None] = dict.fromkeys(seqs)
    for part in portions(seqs):
        rows = connection.exec_driver_sql(
            "SELECT p.seq, p.section_id, p.prose, p.kind, d.category, p.access_scope, e.vector"
            " FROM passages p JOIN documents d ON d.id = p.document_id"
            " LEFT JOIN embeddings e"
            "   ON e.text_sha256 = p.embed_sha256 AND e.model_fingerprint = ?"
            f" WHERE p.seq IN ({','.join(map(str, part))}) AND p.active",
            (model,),
        )
        for seq, section_id, prose, kind, category, access, vector in rows.all():
            array = np.frombuffer(vector, "<f4") if vector is not None else None
            by_seq[seq] = Candidate(section_id, prose, kind, category, access, array, True)
    return by_seq


def sample(
    connection: Connection, model: str, scope: ScopeFilter, count: int
) -> dict[int, Candidate]:
    """An even sample of about `count` live passages of the scope, with their neighbours."""
    clause, values = "", []
    if scope.hardware is not None:
        clause = f" AND h.hardware_id IN ({','.join('?' * len(scope.hardware))})"
        values = list(scope.hardware)
    rows = connection.exec_driver_sql(
        "SELECT DISTINCT p.seq FROM passages p JOIN documents d ON d.id = p.document_id"
        " JOIN passage_hardware h ON h.passage_id = p.id"
        " WHERE p.active AND p.access_scope = ?"
        f" AND d.category IN ({','.join('?' * len(scope.categories))}){clause} ORDER BY p.seq",
        (scope.access_scope.owner, *scope.categories, *values),
    )
    seqs = [seq for (seq,) in rows]
    return candidates(connection, seqs[:: max(1, len(seqs) // count)], model, scope)
