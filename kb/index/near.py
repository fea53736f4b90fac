"""Nearest passages for a service: exactly, over the columns that it keeps in memory; through Chroma
where they are not there yet, or where a request is about more passages than that is fast for.

In a store of 37,858 passages a request about one chip takes 3 ms in this way, and 14 by two queries
of Chroma's graphs (benchmarks/results/retrieval_latency.md). The time of the first grows with the
number of passages, that of the second hardly.

Where the catalog is on a server, other replicas add and remove passages, of which the Chroma of
this process knows nothing until `follow`. Until then the catalog's vectors are searched, exactly.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Mapping, Sequence
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
from kb.index.exact import ExactIndex, nearest
from kb.scope import ALL_ACCESS, AccessScope

EXACT_UP_TO = 60_000  # passages
_KEPT_AS = "rows of scopes"
Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class ScopeRows:
    """The embedded passages of each hardware scope, by scope and access, as ranges of rows of the
    columns: the first row, and the one behind the last. The columns are not held by this: old ones
    shall be gone before new ones are read.
    """

    columns: weakref.ref[Columns]
    ranges: Mapping[tuple[str, str], Ranges]

    def of(self, scopes: Sequence[str] | None, owner: str) -> list[Ranges]:
        """The ranges of these scopes (None: all) under this owner."""
        if scopes is None:
            return [ranges for (_, access), ranges in self.ranges.items() if access == owner]
        return [self.ranges[key] for scope in scopes if (key := (scope, owner)) in self.ranges]


class NearIndex:
    """A service's vector index. `chroma` is open and was made equal to the catalog in the state
    `followed` (`state_of`), and is kept so by this process and by `follow`.
    """

    def __init__(
        self,
        catalog: Catalog,
        model: str,
        chroma: ChromaIndex,
        followed: Hashable = None,
        exact_up_to: int = EXACT_UP_TO,
    ) -> None:
        self._catalog = catalog
        self._model = model
        self._chroma = chroma
        self._exact = ExactIndex(catalog, model)
        self._followed = followed
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
            scope_rows = _of(connection, columns) if columns is not None else None
            behind = self._catalog.on_server and candidates.state(connection) != self._followed
        if columns is not None and scope_rows is not None:
            ranges = scope_rows.of(scopes, access_scope.owner)
            if sum(stop - start for part in ranges for start, stop in part) <= self._exact_up_to:
                return nearest(_cosines(columns, ranges, vector), limit)
        index = self._exact if behind else self._chroma
        return index.query(scopes, vector, limit, access_scope)

    def sync(self, scopes: Iterable[str] | None = None) -> SyncReport:
        """Bring Chroma up to the catalog."""
        return self._chroma.sync(scopes)

    def follow(self) -> bool:
        """Bring Chroma up to what other replicas have stored; whether there was anything. Where so
        few passages are live that every request is answered exactly, Chroma is left as it is.
        """
        with self._catalog.read() as connection:
            state = candidates.state(connection)
            columns = candidates.in_memory(connection, self._model)
        few = columns is not None and len(columns.seqs) <= self._exact_up_to
        if not self._catalog.on_server or state == self._followed or few:
            return False
        self._chroma.sync()
        self._followed = state
        return True


def state_of(catalog: Catalog) -> Hashable:
    """What differs after every change of what an index holds."""
    with catalog.read() as connection:
        return candidates.state(connection)


def _cosines(
    columns: Columns, parts: Iterable[Ranges], vector: Vector
) -> Iterable[tuple[NDArray[np.int64], Vector]]:
    for ranges in parts:
        yield (
            np.concatenate([columns.seqs[start:stop] for start, stop in ranges]),
            np.concatenate([columns.vectors[start:stop] @ vector for start, stop in ranges]),
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
    ranges: dict[tuple[str, str], Ranges] = {}
    for scope, seqs in sorted(numbers.items()):
        places = np.flatnonzero(np.isin(columns.seqs, seqs) & columns.embedded)
        for owner in np.unique(columns.access[places]).tolist():
            ranges[scope, owner] = _ranges(places[columns.access[places] == owner])
    put_made(connection, _KEPT_AS, None, ScopeRows(weakref.ref(columns), ranges))
    return True


def _ranges(places: NDArray[np.int64]) -> Ranges:
    """Ascending numbers as ranges of consecutive ones; there is at least one."""
    ends = np.flatnonzero(np.diff(places) != 1)
    starts = places[[0, *(ends + 1)]]
    stops = places[[*ends, -1]] + 1
    return tuple(zip(starts.tolist(), stops.tolist(), strict=True))


def _of(connection: Connection, columns: Columns) -> ScopeRows | None:
    """The scope_rows of these columns, where they were looked up."""
    last = made(connection, _KEPT_AS)
    scope_rows: ScopeRows | None = None if last is None else last[1]
    return scope_rows if scope_rows is not None and scope_rows.columns() is columns else None
