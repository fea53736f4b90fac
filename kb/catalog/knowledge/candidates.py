"""What ranking needs of many passages at once, as columns: section, prose share, kind, category and
vector.

A passage's number is one more than its predecessor's within a version, so a candidate's neighbours
stand beside it. A process that answers many requests keeps the columns of all live passages for one
state of the catalog (`keep_in_memory`); else the rows in question are read, with the same result.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from kb.catalog.dialect import driver_sql
from kb.catalog.kept import keeps, look_up, made, put_made
from kb.catalog.knowledge import embeddings, lexical, passages
from kb.catalog.knowledge.embeddings import Vector, index_state, newest
from kb.catalog.rows import portions
from kb.scope import ScopeFilter

_KEPT_AS = "candidates"
_COUNTS, _COMPLETE = "embedded passages", "all passages embedded"
_Row = tuple[int, int, int, bool, str, str, bytes | None]


@dataclass(frozen=True, eq=False)
class Columns:
    """Live passages in the order of their numbers `seqs`. `sections` are the numbers of their
    sections, `prose` is per mille, `code` says that a passage is a block of code. Where `embedded`
    is False, the row of `vectors` (n, dimension) is zero.
    """

    seqs: NDArray[np.int64]
    sections: NDArray[np.int64]
    prose: NDArray[np.int64]
    code: NDArray[np.bool_]
    categories: NDArray[np.str_]
    access: NDArray[np.str_]
    vectors: Vector
    embedded: NDArray[np.bool_]

    def at(self, places: NDArray[Any]) -> Columns:
        """These rows, by their places or a mask."""
        return Columns(*(getattr(self, column.name)[places] for column in fields(self)))

    def within(self, scope: ScopeFilter) -> Columns:
        """The rows of the scope's categories and access."""
        return self.at(self.admitted(np.arange(len(self.seqs)), scope))

    def admitted(self, places: NDArray[Any], scope: ScopeFilter) -> NDArray[Any]:
        """Those of these places whose rows have one of the scope's categories, and its access."""
        categories = self.categories[places]
        shelved = np.zeros(len(places), np.bool_)
        for category in scope.categories:
            shelved |= categories == category
        admitted: NDArray[Any] = places[shelved & (self.access[places] == scope.access_scope.owner)]
        return admitted

    def neighbours(self) -> NDArray[np.bool_]:
        """Whether each row but the first follows the one before it within a section."""
        follows: NDArray[np.bool_] = (np.diff(self.seqs) == 1) & (np.diff(self.sections) == 0)
        return follows


def candidates(
    connection: Connection, seqs: Iterable[int], model: str, scope: ScopeFilter
) -> Columns:
    """The live passages under these numbers and those beside them, within category and access."""
    wanted = _with_beside(seqs)
    whole = in_memory(connection, model)
    if whole is not None:
        # Vectors are most of a row, so rows are copied once.
        return whole.at(whole.admitted(_places_in(whole, wanted), scope))
    rows = look_up(
        connection,
        "candidates",
        wanted.tolist(),
        partial(_read, connection, model),
        detail=(model, index_state(connection)),
    )
    live = [row for row in rows.values() if row is not None]
    width = next((len(row[6]) // 4 for row in live if row[6] is not None), 0)
    return _columns(live, len(live), width).within(scope)


def _with_beside(seqs: Iterable[int]) -> NDArray[np.int64]:
    """These numbers and those beside them, ascending."""
    middle = np.fromiter(seqs, np.int64)
    wanted: NDArray[np.int64] = np.unique(np.concatenate([middle - 1, middle, middle + 1]))
    return wanted


def _places_in(whole: Columns, wanted: NDArray[np.int64]) -> NDArray[Any]:
    """Where in all columns these numbers are, of those that are there."""
    places = np.searchsorted(whole.seqs, wanted)
    there = places < len(whole.seqs)
    known: NDArray[Any] = places[there][whole.seqs[places[there]] == wanted[there]]
    return known


_SELECT = (
    "SELECT p.seq, s.seq, p.prose, p.kind = 'code', d.category, p.access_scope, e.vector"
    " FROM passages p JOIN documents d ON d.id = p.document_id"
    " JOIN sections s ON s.id = p.section_id"
    " LEFT JOIN embeddings e ON e.text_sha256 = p.embed_sha256 AND e.model_fingerprint = ?"
    " WHERE p.active"
)


def _read(connection: Connection, model: str, seqs: Sequence[int]) -> dict[int, _Row | None]:
    """What stands under these numbers; None where that is not live."""
    by_seq: dict[int, _Row | None] = dict.fromkeys(seqs)
    for part in portions(seqs):
        rows = connection.exec_driver_sql(
            f"{driver_sql(connection, _SELECT)} AND p.seq IN ({','.join(map(str, part))})", (model,)
        )
        read: list[Any] = [tuple(row) for row in rows.all()]
        by_seq |= {row[0]: row for row in read}
    return by_seq


def _columns(rows: Iterable[_Row], count: int, width: int) -> Columns:
    """The columns of `count` rows that come in the order of their numbers; a vector has `width`
    numbers.
    """
    vectors, embedded = np.zeros((count, width), np.float32), np.zeros(count, np.bool_)
    others: list[tuple[Any, ...]] = []
    for place, row in enumerate(rows):
        others.append(tuple(row[:6]))
        if row[6] is not None:
            vectors[place], embedded[place] = np.frombuffer(row[6], "<f4"), True
    kinds: tuple[Any, ...] = (np.int64, np.int64, np.int64, np.bool_, np.str_, np.str_)
    columns: Iterable[Any] = zip(*others, strict=True) if others else ((),) * len(kinds)
    arrays: list[Any] = [np.array(c, kind) for c, kind in zip(columns, kinds, strict=True)]
    return Columns(*[*arrays, vectors, embedded])


class Rows(NamedTuple):
    """Rows of columns: their vectors (n, dimension), whether each but the first follows the one
    before it within a section, and which count: of a sample the embedded passages that were drawn.
    """

    vectors: Vector
    follows: NDArray[np.bool_]
    counted: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Sample:
    """Passages of a scope with their neighbours. Where all columns are in memory they are named by
    their places there alone: a thousand vectors are 1.5 MB, and a store has hundreds of scopes. The
    columns are not held by this: old ones shall be gone before new ones are read.
    """

    follows: NDArray[np.bool_]
    counted: NDArray[np.bool_]
    own: Vector | None
    columns: weakref.ref[Columns] | None
    places: NDArray[np.int32] | None

    def rows(self) -> Rows | None:
        """Its rows; None where the columns in memory are others now."""
        if self.own is not None:
            return Rows(self.own, self.follows, self.counted)
        columns = None if self.columns is None else self.columns()
        if columns is None:
            return None
        return Rows(columns.vectors[self.places], self.follows, self.counted)


def sample(connection: Connection, model: str, scope: ScopeFilter, count: int) -> Sample:
    """An even sample of about `count` live passages of the scope, with their neighbours."""
    seqs = _seqs_in_memory(connection, model, scope)
    seqs = _read_seqs(connection, scope) if seqs is None else seqs
    drawn = seqs[:: max(1, len(seqs) // count)]
    columns = candidates(connection, drawn, model, scope)
    counted = np.isin(columns.seqs, drawn) & columns.embedded
    follows, whole = columns.neighbours(), in_memory(connection, model)
    if whole is None:
        return Sample(follows, counted, columns.vectors, None, None)
    places = _places_in(whole, columns.seqs).astype(np.int32)
    return Sample(follows, counted, None, weakref.ref(whole), places)


def _read_seqs(connection: Connection, scope: ScopeFilter) -> NDArray[np.int64]:
    """The numbers of the live passages of the scope, ascending."""
    clause, values = "", []
    if scope.hardware is not None:
        clause = f" AND h.hardware_id IN ({','.join('?' * len(scope.hardware))})"
        values = list(scope.hardware)
    statement = (
        "SELECT DISTINCT p.seq FROM passages p JOIN documents d ON d.id = p.document_id"
        " JOIN passage_hardware h ON h.passage_id = p.id"
        " WHERE p.active AND p.access_scope = ?"
        f" AND d.category IN ({','.join('?' * len(scope.categories))}){clause} ORDER BY p.seq"
    )
    rows = connection.exec_driver_sql(
        driver_sql(connection, statement), (scope.access_scope.owner, *scope.categories, *values)
    )
    return np.array([seq for (seq,) in rows], np.int64)


# -- in memory


@dataclass(frozen=True, eq=False)
class _InMemory:
    """The columns of all live passages, the places of each hardware scope's in them, and whether
    each is of an owner and a category. `by_section` are all places in the order of the numbers of
    their sections, which are `sections`.
    """

    columns: Columns
    places: Mapping[str, NDArray[np.int32]]
    shelves: Mapping[tuple[str, str], NDArray[np.bool_]]
    by_section: NDArray[np.int32]
    sections: NDArray[np.int64]

    @classmethod
    def of(cls, columns: Columns, places: Mapping[str, NDArray[np.int32]]) -> _InMemory:
        shelves = {}
        for owner in np.unique(columns.access).tolist():
            own = columns.access == owner
            for category in np.unique(columns.categories[own]).tolist():
                shelves[owner, category] = own & (columns.categories == category)
        order = np.argsort(columns.sections, kind="stable").astype(np.int32)
        return cls(columns, places, shelves, order, columns.sections[order])

    def seqs_of(self, scope: ScopeFilter) -> NDArray[np.int64]:
        """The numbers of the passages of a scope, ascending."""
        within = np.zeros(len(self.columns.seqs), np.bool_)
        if scope.hardware is None:
            for places in self.places.values():
                within[places] = True
        else:
            for name in scope.hardware:
                within[self.places.get(name, _NO_PLACES)] = True
        shelved = np.zeros(len(within), np.bool_)
        for category in scope.categories:
            shelf = self.shelves.get((scope.access_scope.owner, category))
            if shelf is not None:
                shelved |= shelf
        return self.columns.seqs[within & shelved]


_NO_PLACES = np.zeros(0, np.int32)


class Members(NamedTuple):
    """The live passages of sections: the numbers of the sections, how many passages each has, and
    the numbers of these, section by section.
    """

    sections: NDArray[np.int64]
    sizes: NDArray[np.int64]
    seqs: NDArray[np.int64]


def members_of(connection: Connection, sections: Iterable[int], model: str) -> Members:
    """The members of sections by number; of a section that has none, there is none."""
    wanted = np.array(sorted(sections), np.int64)
    kept = _in_memory(connection, model)
    if kept is None:
        members = passages.sections_of(connection, wanted.tolist())
        sizes = np.fromiter(map(len, members.values()), np.int64, len(members))
        seqs = np.fromiter(chain.from_iterable(members.values()), np.int64, int(sizes.sum()))
        return Members(np.fromiter(members, np.int64, len(members)), sizes, seqs)
    starts = kept.sections.searchsorted(wanted)
    sizes = kept.sections.searchsorted(wanted, "right") - starts
    before = np.cumsum(sizes) - sizes
    places = np.arange(sizes.sum()) + np.repeat(starts - before, sizes)
    return Members(wanted, sizes, kept.columns.seqs[kept.by_section[places]])


def keep_in_memory(connection: Connection, model: str) -> bool:
    """Keep the columns of all live passages as this transaction sees them; whether they were read,
    which takes a second for 100,000. For a transaction that only reads.
    """
    seen, last = (model, state(connection)), made(connection, _KEPT_AS)
    if last is not None and last[0] == seen:
        return False
    put_made(connection, _KEPT_AS, None, None)  # else old and new vectors are held at once
    columns = _all(connection, model)
    put_made(connection, _KEPT_AS, seen, _InMemory.of(columns, _places(connection, columns)))
    return True


def in_memory(connection: Connection, model: str) -> Columns | None:
    """The columns of all live passages, where they are what this transaction sees."""
    kept = _in_memory(connection, model)
    return None if kept is None else kept.columns


def places_of_scopes(connection: Connection, model: str) -> Mapping[str, NDArray[np.int32]] | None:
    """For each hardware scope the places of its passages in the columns in memory, ascending; None
    where `in_memory` gives none.
    """
    kept = _in_memory(connection, model)
    return None if kept is None else kept.places


def _in_memory(connection: Connection, model: str) -> _InMemory | None:
    last = made(connection, _KEPT_AS)
    if last is None or last[0] != (model, state(connection)):
        return None
    kept: _InMemory = last[1]
    return kept


def _seqs_in_memory(
    connection: Connection, model: str, scope: ScopeFilter
) -> NDArray[np.int64] | None:
    """As `_read_seqs`; None where the columns are not in memory."""
    kept = _in_memory(connection, model)
    if kept is None:
        return None
    return kept.seqs_of(scope)


def state(connection: Connection) -> Hashable:
    """Differs after every write that could change the columns: of a passage, which is written to
    the lexical tables too, or of a vector. Unlike the revision it stays when a skill is written.
    """
    return lexical.state(connection), newest(connection)


def counts(connection: Connection, model: str) -> tuple[int, int]:
    """(embedded, all) active passages, counted once for a state of the store: of a million that
    takes seconds, and whoever balances loads asks every few.
    """
    now, kept = (state(connection), model), made(connection, _COUNTS)
    if kept is not None and kept[0] == now:
        known: tuple[int, int] = kept[1]
        return known
    counted = embeddings.counts(connection, model)
    if keeps(connection):
        put_made(connection, _COUNTS, now, counted)
    return counted


def pending(connection: Connection, model: str) -> dict[str, embeddings.Pending]:
    """What has no vector of this model yet, by document id. That nothing is missing is looked up
    once for a state of the store: an idle worker asks every few seconds.
    """
    now = (state(connection), model)
    if made(connection, _COMPLETE) == (now, True):
        return {}
    missing = embeddings.pending(connection, model)
    if not missing and keeps(connection):
        put_made(connection, _COMPLETE, now, True)
    return missing


def _all(connection: Connection, model: str) -> Columns:
    counted = (
        "SELECT count(*), (SELECT length(vector) / 4 FROM embeddings WHERE model_fingerprint = ?"
        " LIMIT 1) FROM passages WHERE active"
    )
    count, width = connection.exec_driver_sql(driver_sql(connection, counted), (model,)).one()
    rows = connection.exec_driver_sql(
        driver_sql(connection, f"{_SELECT} ORDER BY p.seq"),
        (model,),
        execution_options={"stream_results": True},
    )
    return _columns(rows, count, width or 0)


def _places(connection: Connection, columns: Columns) -> dict[str, NDArray[np.int32]]:
    rows = connection.exec_driver_sql(
        "SELECT h.hardware_id, p.seq FROM passage_hardware h JOIN passages p ON p.id = h.passage_id"
        " WHERE p.active",
        execution_options={"stream_results": True},
    )
    numbers: dict[str, array[int]] = {}
    for scope, seq in rows:
        numbers.setdefault(scope, array("q")).append(seq)
    return {
        scope: np.searchsorted(columns.seqs, np.unique(seqs)).astype(np.int32)
        for scope, seqs in sorted(numbers.items())
    }
