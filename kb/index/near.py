"""Nearest passages for a service: exactly, over the columns that it keeps in memory; through Chroma
where they are not there yet, or where a request is about more passages than that is fast for.

Every cosine of 38,000 passages with 384 dimensions takes 5 ms on one core, and two queries of
Chroma's graphs take 14 (benchmarks/results/retrieval_latency.md). The time of the first grows with
the number of passages, that of the second hardly.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from kb.catalog.engine import Catalog
from kb.catalog.kept import made, put_made
from kb.catalog.knowledge import candidates
from kb.catalog.knowledge.candidates import Columns
from kb.catalog.knowledge.embeddings import Vector
from kb.index.chroma import ChromaIndex, SyncReport
from kb.index.exact import nearest
from kb.scope import ALL_ACCESS, AccessScope

EXACT_UP_TO = 60_000  # passages
_KEPT_AS = "shelves"
Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Shelves:
    """The embedded passages of each hardware scope, by scope and access, as runs of rows of the
    columns: from a first one to one before the second number. The columns are not held by this:
    old ones shall be gone before new ones are read.
    """

    columns: weakref.ref[Columns]
    runs: Mapping[tuple[str, str], Runs]

    def of(self, scopes: Sequence[str] | None, owner: str) -> list[Runs]:
        """The runs of these scopes (None: all) that one access sees."""
        if scopes is None:
            return [runs for (_, access), runs in self.runs.items() if access == owner]
        return [self.runs[key] for scope in scopes if (key := (scope, owner)) in self.runs]


class NearIndex:
    """A service's vector index. `chroma` is open and kept equal to the catalog."""

    def __init__(
        self,
        catalog: Catalog,
        model: str,
        chroma: ChromaIndex,
        exact_up_to: int = EXACT_UP_TO,
    ) -> None:
        self._catalog = catalog
        self._model = model
        self._chroma = chroma
        self._exact_up_to = exact_up_to

    def query(
        self,
        scopes: Sequence[str] | None,
        vector: Vector,
        limit: int,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> dict[int, float]:
        """The nearest passages of the scopes (None: all), best first: seq -> cosine."""
        with self._catalog.read() as connection:
            columns = candidates.in_memory(connection, self._model)
            shelves = _of(connection, columns) if columns is not None else None
        if columns is not None and shelves is not None:
            runs = shelves.of(scopes, access_scope.owner)
            if sum(stop - start for part in runs for start, stop in part) <= self._exact_up_to:
                return nearest(_cosines(columns, runs, vector), limit)
        return self._chroma.query(scopes, vector, limit, access_scope)

    def sync(self, scopes: Iterable[str] | None = None) -> SyncReport:
        """Bring Chroma up to the catalog."""
        return self._chroma.sync(scopes)


def _cosines(
    columns: Columns, parts: Iterable[Runs], vector: Vector
) -> Iterable[tuple[NDArray[np.int64], Vector]]:
    for runs in parts:
        yield (
            np.concatenate([columns.seqs[start:stop] for start, stop in runs]),
            np.concatenate([columns.vectors[start:stop] @ vector for start, stop in runs]),
        )


# -- in memory


def keep_in_memory(connection: Connection, model: str) -> bool:
    """Keep which rows of the columns in memory each scope has; whether they were looked up. For a
    transaction that only reads.
    """
    columns = candidates.in_memory(connection, model)
    if columns is None or _of(connection, columns) is not None:
        return False
    rows = connection.exec_driver_sql(
        "SELECT h.hardware_id, p.seq FROM passage_hardware h JOIN passages p ON p.id = h.passage_id"
        " WHERE p.active"
    )
    numbers: dict[str, list[int]] = {}
    for scope, seq in rows:
        numbers.setdefault(scope, []).append(seq)
    runs: dict[tuple[str, str], Runs] = {}
    for scope, seqs in sorted(numbers.items()):
        places = np.flatnonzero(np.isin(columns.seqs, seqs) & columns.embedded)
        for owner in np.unique(columns.access[places]).tolist():
            runs[scope, owner] = _runs(places[columns.access[places] == owner])
    put_made(connection, _KEPT_AS, None, Shelves(weakref.ref(columns), runs))
    return True


def _runs(places: NDArray[np.int64]) -> Runs:
    """Ascending numbers as ranges of consecutive ones; there is at least one."""
    ends = np.flatnonzero(np.diff(places) != 1)
    starts = places[[0, *(ends + 1)]]
    stops = places[[*ends, -1]] + 1
    return tuple(zip(starts.tolist(), stops.tolist(), strict=True))


def _of(connection: Connection, columns: Columns) -> Shelves | None:
    """The shelves of these columns, where they were looked up."""
    last = made(connection, _KEPT_AS)
    shelves: Shelves | None = None if last is None else last[1]
    return shelves if shelves is not None and shelves.columns() is columns else None
