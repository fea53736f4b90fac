"""Nearest passages for a service: exactly, over the columns that it keeps in memory; through Chroma
where they are not there yet, or where that is faster. While a Chroma server does not answer,
exactly for all that is in memory or small.

In a store of 37,858 passages a request about one chip takes 3 ms in this way, and 14 by two queries
of Chroma's graphs (benchmarks/results/retrieval_latency.md). The time of the first grows with the
number of passages, that of the second with the number of graphs, one for each hardware scope: a
request about 200 chips and 100,000 passages took 2.3 s (scale_passages.md).

Where the catalog is on a server, other replicas add and remove passages, of which the Chroma of
this process knows nothing until `follow`. Until then the catalog's vectors are searched, exactly.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import structlog
from numpy.typing import NDArray
from sqlalchemy import Connection

from kb.catalog.engine import Catalog
from kb.catalog.kept import made, put_made
from kb.catalog.knowledge import candidates
from kb.catalog.knowledge.candidates import Columns
from kb.catalog.knowledge.embeddings import Vector
from kb.errors import StoreAway
from kb.index.chroma import ChromaIndex, IndexSyncReport
from kb.index.exact import ExactIndex, largest, merged, nearest
from kb.scope import ALL_ACCESS, AccessScope

EXACT_UP_TO = 60_000  # passages for each graph that Chroma would be asked for
MOST_KEYS = 16  # scopes of a query whose nearest passages are kept; all chips are hundreds
MOST_NEAREST = 1_000  # groups that are kept, of 4 KB
MOST_UNIONS = 16  # of 8 bytes a passage
_KEPT_AS = "rows of scopes"
AGAIN = "Ask again; until then answers go by words."
OPENING = StoreAway("the vector index is being opened", hint=AGAIN)

log = structlog.get_logger(__name__)

Ranges = tuple[tuple[int, int], ...]
_Key = tuple[str, str]  # a hardware scope, and the owner of the access
_Group = tuple[NDArray[np.int64], Vector]  # passages by number, and their cosines


@dataclass(frozen=True, eq=False)
class ScopeRows:
    """The embedded passages of each hardware scope, by scope and access, as ranges of rows of the
    columns: the first row, and the one behind the last. The columns are not held by this: old ones
    shall be gone before new ones are read.

    A request about very many scopes, such as all, is answered by one product over all rows. What
    is nearest in a scope is kept by vector: a request asks for it again for single categories,
    and those about a signal ask for the same in what is about no chip, whichever chip is theirs.
    """

    columns: weakref.ref[Columns]
    ranges: Mapping[_Key, Ranges]
    _nearest: dict[tuple[_Key, int, bytes], _Group] = field(default_factory=dict)
    _unions: dict[tuple[_Key, ...], NDArray[np.int64]] = field(default_factory=dict)

    def of(self, scopes: Sequence[str] | None, owner: str) -> list[_Key]:
        """The keys of these scopes (None: all) under this owner, of those that have passages."""
        if scopes is None:
            return [key for key in self.ranges if key[1] == owner]
        return [key for scope in scopes if (key := (scope, owner)) in self.ranges]

    def count(self, keys: Iterable[_Key]) -> int:
        """The passages under these keys."""
        return sum(stop - start for key in keys for start, stop in self.ranges[key])

    def nearest(
        self, columns: Columns, keys: Sequence[_Key], vector: Vector, limit: int
    ) -> dict[int, float]:
        """The `limit` passages under these keys that are nearest to a vector."""
        if len(keys) > MOST_KEYS:
            if 2 * self.count(keys) < len(columns.seqs):
                return nearest((self._cosines(columns, key, vector) for key in keys), limit)
            rows = self._union(columns, tuple(keys))
            return nearest([(columns.seqs[rows], (columns.vectors @ vector)[rows])], limit)
        name, best = vector.tobytes(), []
        for key in keys:
            kept = self._nearest.get((key, limit, name))
            if kept is None:
                kept = largest(*self._cosines(columns, key, vector), limit)
                if len(self._nearest) >= MOST_NEAREST:
                    self._nearest.clear()
                self._nearest[key, limit, name] = kept
            best.append(kept)
        return merged(best, limit)

    def _union(self, columns: Columns, keys: tuple[_Key, ...]) -> NDArray[np.int64]:
        """The rows under any of these keys, ascending, each once."""
        rows = self._unions.get(keys)
        if rows is None:
            under = np.zeros(len(columns.seqs), np.bool_)
            for key in keys:
                for start, stop in self.ranges[key]:
                    under[start:stop] = True
            rows = np.flatnonzero(under)
            if len(self._unions) >= MOST_UNIONS:
                self._unions.clear()
            self._unions[keys] = rows
        return rows

    def _cosines(self, columns: Columns, key: _Key, vector: Vector) -> _Group:
        ranges = self.ranges[key]
        return (
            np.concatenate([columns.seqs[start:stop] for start, stop in ranges]),
            np.concatenate([columns.vectors[start:stop] @ vector for start, stop in ranges]),
        )


class NearIndex:
    """A service's vector index. `catch_up` opens Chroma, and again after its server was away;
    until then Chroma is not asked. In the state `followed` (`state_of`) it was equal to the
    catalog, and is kept so by this process and by `follow`. Without `chroma` it is that of a
    service that is opening one: exact search in memory for any size, else over the catalog's
    vectors.
    """

    def __init__(
        self,
        catalog: Catalog,
        model: str,
        chroma: ChromaIndex | None,
        followed: Hashable = None,
        exact_up_to: int = EXACT_UP_TO,
    ) -> None:
        self._catalog = catalog
        self._model = model
        self._chroma = chroma
        self._exact = ExactIndex(catalog, model)
        self._followed = followed
        self._exact_up_to = exact_up_to
        self._away: StoreAway | None = None if chroma is not None else OPENING
        self._lost = 0  # how many times Chroma did not answer
        self.generation = 0  # how many times Chroma was brought up to the catalog

    @property
    def away(self) -> StoreAway | None:
        """Why Chroma is not asked; None where it is."""
        return self._away

    def catch_up(self) -> IndexSyncReport:
        """Make Chroma equal to the catalog and ask it from now on. Raises StoreAway."""
        assert self._chroma is not None
        lost, followed = self._lost, state_of(self._catalog)
        try:
            report = self._chroma.open_or_rebuild()
        except StoreAway as error:
            self._lose(error)
            raise
        if self._lost == lost:  # else a change of the meantime may be missing
            self._away, self._followed = None, followed
        self.generation += 1
        return report

    def check(self) -> None:
        """Find out whether a server still answers; see `away`."""
        assert self._chroma is not None
        try:
            self._chroma.check()
        except StoreAway as error:
            self._lose(error)

    def query(
        self,
        scopes: Sequence[str] | None,
        vector: Vector,
        limit: int,
        access_scope: AccessScope = ALL_ACCESS,
        transaction: Connection | None = None,
    ) -> dict[int, float]:
        """The nearest passages of the scopes (None: all), best first: seq -> cosine. Raises
        StoreAway where Chroma is needed and does not answer.
        """
        with self._catalog.within(transaction) as connection:
            columns = candidates.in_memory(connection, self._model)
            scope_rows = _of(connection, columns) if columns is not None else None
            behind = self._catalog.on_server and candidates.state(connection) != self._followed
        if columns is not None and scope_rows is not None:
            keys = scope_rows.of(scopes, access_scope.owner)
            most = self._exact_up_to * max(1, len(keys))
            if scope_rows.count(keys) <= most or self._away is not None:
                return scope_rows.nearest(columns, keys, vector, limit)
        if self._chroma is not None and self._away is None and not behind:
            try:
                return self._chroma.query(scopes, vector, limit, access_scope)
            except StoreAway as error:
                self._lose(error)
                if columns is not None and scope_rows is not None:
                    return scope_rows.nearest(columns, keys, vector, limit)
        return self._without_chroma(scopes, vector, limit, access_scope)

    def _without_chroma(
        self,
        scopes: Sequence[str] | None,
        vector: Vector,
        limit: int,
        access_scope: AccessScope,
    ) -> dict[int, float]:
        """From the catalog's vectors, where they are not too many to be read for a request."""
        with self._catalog.read() as connection:
            embedded, _ = candidates.counts(connection, self._model)
        if embedded > self._exact_up_to:
            raise self._away or StoreAway(
                "the vector index is catching up with other replicas",
                hint=AGAIN,
            )
        return self._exact.query(scopes, vector, limit, access_scope)

    def asks_chroma(self) -> bool:
        """Whether some request would be answered by Chroma as things are: one about a scope with
        more passages than exact search is fast for, or any while vectors are not in memory.
        """
        with self._catalog.read() as connection:
            columns = candidates.in_memory(connection, self._model)
            scope_rows = _of(connection, columns) if columns is not None else None
        if scope_rows is None:
            return True
        return any(scope_rows.count([key]) > self._exact_up_to for key in scope_rows.ranges)

    def sync(self, scopes: Iterable[str] | None = None) -> IndexSyncReport | None:
        """Bring Chroma up to the catalog; None where it does not answer: `catch_up` does it then.
        The vectors are in the catalog.
        """
        if self._away is not None or self._chroma is None:
            self._lost += 1  # what is catching up now may have passed these scopes already
            return None
        try:
            report = self._chroma.sync(scopes)
        except StoreAway as error:
            self._lose(error)
            return None
        self.generation += 1
        return report

    def _lose(self, error: StoreAway) -> None:
        if self._away is None:
            log.warning("searching without Chroma", reason=error.message)
        self._lost += 1
        self._away = error

    def follow(self) -> bool:
        """Bring Chroma up to what other replicas have stored; whether there was anything. Where so
        few passages are live that every request is answered exactly, Chroma is left as it is.
        """
        if not self._catalog.on_server:
            return False
        with self._catalog.read() as connection:
            state = candidates.state(connection)
            columns = candidates.in_memory(connection, self._model)
        few = columns is not None and len(columns.seqs) <= self._exact_up_to
        if state == self._followed or few:
            return False
        if self.sync() is None:
            return False
        self._followed = state
        return True


def is_in_memory(catalog: Catalog, model: str) -> bool:
    """Whether vectors are searched in memory now, whatever a request is about and however many."""
    with catalog.read() as connection:
        columns = candidates.in_memory(connection, model)
        return columns is not None and _of(connection, columns) is not None


def state_of(catalog: Catalog) -> Hashable:
    """What differs after every change of what an index holds."""
    with catalog.read() as connection:
        return candidates.state(connection)


# -- in memory


def keep_in_memory(connection: Connection, model: str) -> bool:
    """Keep which rows of the columns in memory each scope has; whether they were looked up. For a
    transaction that only reads.
    """
    columns = candidates.in_memory(connection, model)
    if columns is None or _of(connection, columns) is not None:
        return False
    ranges: dict[_Key, Ranges] = {}
    for scope, rows in (candidates.places_of_scopes(connection, model) or {}).items():
        places = rows[columns.embedded[rows]]
        for owner in np.unique(columns.access[places]).tolist():
            ranges[scope, owner] = _ranges(places[columns.access[places] == owner])
    put_made(connection, _KEPT_AS, None, ScopeRows(weakref.ref(columns), ranges))
    return True


def _ranges(places: NDArray[np.int32]) -> Ranges:
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
