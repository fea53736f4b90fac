"""The knowledge of one catalog revision, from which answers are computed.

Passages, sections and vectors are mapped from the segments' files; hardware, moves, skills and
verified kernels are small and are in memory. A snapshot is immutable, and none of its methods reads
the catalog, a clock or other state. Every method that returns text checks its scope, so nothing
outside of it is ever returned.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kb.catalog.knowledge.passages import About, Passage
from kb.catalog.knowledge.samples import Sample
from kb.catalog.knowledge.section_texts import WholeSection
from kb.catalog.knowledge.symbols import Symbol
from kb.catalog.meta import State
from kb.scope import ALL_ACCESS, CATEGORIES, AccessScope, ScopeFilter
from kb.tokens import tokenize
from retrieval.diagnose.signals import load_signals
from retrieval.snapshot.cache import Cache
from retrieval.snapshot.knowledge import Knowledge
from retrieval.snapshot.lexicon import Term
from retrieval.snapshot.ontology import REASONS
from retrieval.snapshot.segment import (
    READ,
    UNREAD,
    Segment,
    SegmentPart,
    StoredDocument,
    Vector,
    nearest,
    number_of,
    runs_of,
)
from retrieval.snapshot.uses import FULL, TREATED
from retrieval.snapshot.words import Level, Postings, WordIndex

# Documents that a question names, at most; the share of the best one's score that others need; and
# letters of a word that names by the beginning, as MI300 does MI300X.
MOST_NAMED, NAMED_SHARE, LEAST_PREFIX = 4, 0.8, 3
_EDITION = re.compile(r"(?:v|r|rev)?\d+(?:_\d+)+|(?:v|r|rev)\d+|(?:19|20)\d\d")
T = TypeVar("T")
Rows = NDArray[np.int64]


class Columns(NamedTuple):
    """Passages in the order of their numbers, for ranking. `sections` are the numbers of their
    sections, `prose` is per mille; if `embedded` is False, the row of `vectors` is zero."""

    seqs: NDArray[np.int64]
    sections: NDArray[np.int64]
    prose: NDArray[np.int32]
    code: NDArray[np.bool_]
    categories: NDArray[np.str_]
    vectors: Vector
    embedded: NDArray[np.bool_]

    def follows(self) -> NDArray[np.bool_]:
        """Whether each row but the first follows the one before it within a section."""
        follows: NDArray[np.bool_] = (np.diff(self.seqs) == 1) & (np.diff(self.sections) == 0)
        return follows


class Members(NamedTuple):
    """The passages of sections: the numbers of the sections, the number of passages of each, and
    the numbers of these, section by section."""

    sections: NDArray[np.int64]
    sizes: NDArray[np.int64]
    seqs: NDArray[np.int64]


@dataclass(frozen=True)
class OwnDocument:
    """A document about a chip; `characters` counts its passages about that chip."""

    id: str
    title: str
    source_key: str
    characters: int

    @property
    def builtin(self) -> bool:
        """Whether it ships; uploads may not have such a key."""
        return self.source_key.startswith("builtin/")


class Mark(NamedTuple):
    """Evidence for a passage with a bare signal: `named` if its text contains the signal's id,
    `tagged` if it has its tag, `moved` if a move for it is taken from the section."""

    seq: int
    section_id: str
    path: tuple[str, ...]
    hardware: tuple[str, ...]
    text: str
    named: bool
    tagged: bool
    moved: bool


class _MountedSegment(NamedTuple):
    """A segment of a snapshot. Its passages are the rows from `first` on, its sections those from
    `first_section` on. `dead` and `dead_sections` are its rows of documents outside the snapshot;
    `without` are the indexes of these."""

    segment: Segment
    first: int
    first_section: int
    without: frozenset[int]
    dead: Rows
    dead_sections: Rows

    @classmethod
    def of(
        cls, part: SegmentPart, first: int, first_section: int, hidden: frozenset[str]
    ) -> _MountedSegment:
        segment, without = part
        if hidden:
            own = (place for place, d in enumerate(segment.documents) if d.id in hidden)
            without = without.union(own)
        places = sorted(without)
        numbers = [number_of(identity) for identity in hidden if identity.startswith("sec_")]
        dead_sections = np.isin(segment.section_documents, places)
        dead_sections |= np.isin(segment.arrays["section_ids"], np.array(numbers, np.uint64))
        return cls(
            segment,
            first,
            first_section,
            without,
            np.flatnonzero(dead_sections[segment.section_rows]),
            np.flatnonzero(dead_sections),
        )

    @property
    def documents(self) -> Iterator[tuple[int, StoredDocument]]:
        """The documents of the snapshot, with their indexes."""
        return (pair for pair in enumerate(self.segment.documents) if pair[0] not in self.without)

    def own(self, rows: Rows) -> Rows:
        """Those of these rows of the snapshot that are in the segment, as its rows."""
        inside: Rows = rows[(rows >= self.first) & (rows < self.first + self.segment.rows)]
        return inside - self.first


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The knowledge of a catalog at `state`; `name` identifies the snapshot. `hidden` are ids of
    documents and sections that it leaves out."""

    name: str
    state: State
    segments: tuple[SegmentPart, ...]
    knowledge: Knowledge
    cache: Cache = field(default_factory=Cache)
    hidden: frozenset[str] = frozenset()

    def hiding(self, refuted: Collection[str], knowledge: Knowledge) -> Snapshot:
        """The snapshot without the documents and sections among these subjects, and with the
        knowledge that is left without all of them."""
        hidden = frozenset(i for i in refuted if i.startswith(("doc_", "sec_")))
        name = f"{self.name} without {' '.join(sorted(refuted))}"
        return replace(self, name=name, knowledge=knowledge, hidden=hidden)

    # -- rows: of passages and of sections, counted over all segments

    @cached_property
    def _parts(self) -> tuple[_MountedSegment, ...]:
        parts, first, first_section = [], 0, 0
        for part in self.segments:
            parts.append(_MountedSegment.of(part, first, first_section, self.hidden))
            first += part.segment.rows
            first_section += len(part.segment.section_seqs)
        return tuple(parts)

    @cached_property
    def documents(self) -> dict[str, StoredDocument]:
        """Every document by id."""
        return {document.id: document for part in self._parts for _, document in part.documents}

    def _joined(self, name: str, kind: Any = np.int64) -> NDArray[Any]:
        return np.concatenate([np.zeros(0, kind), *(p.segment.arrays[name] for p in self._parts)])

    @cached_property
    def _seqs(self) -> NDArray[np.int64]:
        return self._joined("seqs")

    @cached_property
    def _section_seqs(self) -> NDArray[np.int64]:
        return self._joined("section_seqs")

    @cached_property
    def _embedded(self) -> NDArray[np.bool_]:
        return self._joined("embedded", np.bool_)

    @cached_property
    def _prose(self) -> NDArray[np.int32]:
        return self._joined("prose", np.int32)

    @cached_property
    def _code(self) -> NDArray[np.bool_]:
        return self._joined("code", np.bool_)

    @cached_property
    def _section_of(self) -> NDArray[np.int64]:
        """The row of the section of each passage."""
        rows = (p.segment.section_rows.astype(np.int64) + p.first_section for p in self._parts)
        return np.concatenate([np.zeros(0, np.int64), *rows])

    @cached_property
    def _live(self) -> Rows:
        """Rows of passages, ascending by number."""
        gone = np.concatenate([np.zeros(0, np.int64), *(p.first + p.dead for p in self._parts)])
        rows = np.delete(np.arange(len(self._seqs)), gone)
        ordered: Rows = rows[np.argsort(self._seqs[rows], kind="stable")]
        return ordered

    @cached_property
    def _live_sections(self) -> Rows:
        """Rows of sections, ascending by number."""
        dead = (p.first_section + p.dead_sections for p in self._parts)
        rows = np.delete(
            np.arange(len(self._section_seqs)), np.concatenate([np.zeros(0, np.int64), *dead])
        )
        ordered: Rows = rows[np.argsort(self._section_seqs[rows], kind="stable")]
        return ordered

    @cached_property
    def _live_seqs(self) -> NDArray[np.int64]:
        return self._seqs[self._live]

    @cached_property
    def _abouts(self) -> tuple[tuple[About, ...], NDArray[np.int64]]:
        """The distinct scopes of passages, and the scope of each row."""
        known: dict[About, int] = {}
        columns = [np.zeros(0, np.int64)]
        for part in self._parts:
            place = [known.setdefault(about, len(known)) for about in part.segment.abouts]
            columns.append(np.array(place, np.int64)[part.segment.about])
        return tuple(known), np.concatenate(columns)

    def _rows_of(self, seqs: NDArray[np.int64]) -> Rows:
        """The rows of ascending numbers, without unknown numbers."""
        places = np.searchsorted(self._live_seqs, seqs)
        inside = places < len(self._live_seqs)
        places = places[inside]
        rows: Rows = self._live[places[self._live_seqs[places] == seqs[inside]]]
        return rows

    @cached_property
    def _by_id(self) -> tuple[NDArray[np.uint64], Rows]:
        return _indexed(self._joined("ids", np.uint64), self._live)

    @cached_property
    def _sections_by_id(self) -> tuple[NDArray[np.uint64], Rows]:
        return _indexed(self._joined("section_ids", np.uint64), self._live_sections)

    @cached_property
    def _sections_by_parent(self) -> tuple[NDArray[np.uint64], Rows]:
        return _indexed(self._joined("section_parents", np.uint64), self._live_sections)

    # -- counts

    @property
    def passages(self) -> int:
        return len(self._live)

    @cached_property
    def embedded(self) -> int:
        """Passages that have a vector."""
        return sum(document.embedded for document in self.documents.values())

    # -- passages

    def load(self, seqs: Iterable[int], scope: ScopeFilter | None = None) -> dict[int, Passage]:
        """The passages among these numbers, by number; with a scope, those in it, with the fields
        that its caller may see."""
        rows = self._rows_of(np.unique(np.fromiter(seqs, np.int64)))
        if scope is None:
            return {p.seq: p for p in map(self._passage, rows.tolist())}
        rows = rows[self._within(scope)[self._abouts[1][rows]]]
        passages = map(self._passage, rows.tolist())
        return {p.seq: p.seen_by(scope.access_scope) for p in passages}

    def numbers(self, passage_ids: Iterable[str]) -> dict[str, int]:
        """Numbers of passages by id; unknown ids are left out."""
        rows = {identity: _found(self._by_id, identity) for identity in passage_ids}
        return {i: int(self._seqs[own[0]]) for i, own in rows.items() if len(own)}

    def passages_of_sections(self, section_ids: Iterable[str]) -> list[Passage]:
        """The passages of sections, by number."""
        rows = [row for i in set(section_ids) for row in _found(self._sections_by_id, i).tolist()]
        members = [member for row in rows for member in self._members(row).tolist()]
        return sorted(map(self._passage, members), key=lambda p: p.seq)

    def marks(self, seqs: Iterable[int], signal: str, move_ids: Collection[str]) -> list[Mark]:
        """The marks of passages for a signal, by number."""
        moved = self.knowledge.sections_of_moves(move_ids)
        return [
            Mark(
                p.seq,
                p.section_id,
                p.path,
                p.hardware,
                p.text,
                signal in p.text,
                ("signal", signal) in p.tags,
                p.section_id in moved,
            )
            for p in self.load(seqs).values()
        ]

    def uses(self, seqs: Sequence[int], signal: str) -> NDArray[np.float64]:
        """How much each passage of these numbers helps with a signal, 0 to 1."""
        return self._of_signal("uses", seqs, signal) / FULL

    def reads(self, seqs: Sequence[int], signal: str) -> NDArray[np.float64]:
        """How clearly a model that has read the section of each passage called it an answer to a
        signal, 0 to 1; -1 where no model has read it."""
        values = self._of_signal("reads", seqs, signal)
        return np.where(values == UNREAD, -1.0, values / READ)

    def _of_signal(self, name: str, seqs: Sequence[int], signal: str) -> NDArray[np.float64]:
        column = load_signals().ids.index(signal)
        numbers = np.fromiter(seqs, np.int64, len(seqs))
        places = np.searchsorted(self._live_seqs, numbers)
        rows = self._live[places]
        values = np.zeros(len(rows))
        for part in self._parts:
            inside = (rows >= part.first) & (rows < part.first + part.segment.rows)
            values[inside] = part.segment.arrays[name][rows[inside] - part.first, column]
        return values

    def treating(self, hardware: Sequence[str], access: AccessScope) -> dict[str, Rows]:
        """The numbers of the passages about any of this hardware that treat a signal, by signal."""

        def find() -> dict[str, Rows]:
            rows = self._about_chips(hardware, ScopeFilter(None, access_scope=access))
            found: dict[str, list[Rows]] = {signal: [] for signal in load_signals().ids}
            for part in self._parts:
                own = part.own(rows)
                high = part.segment.uses[own] >= TREATED * FULL
                for column, signal in enumerate(found):
                    found[signal].append(part.segment.seqs[own[high[:, column]]])
            return {s: np.concatenate(r or [np.zeros(0, np.int64)]) for s, r in found.items()}

        return self.keep("treating", (tuple(hardware), access), find)

    def reasons(self, section_ids: Iterable[str], signal: str) -> dict[str, str]:
        """What each of these sections offers for a signal, one of REASONS; sections that hardly
        help with it are left out."""
        column, found = load_signals().ids.index(signal), {}
        for identity in section_ids:
            for row in _found(self._sections_by_id, identity).tolist():
                part = self._section_part(row)
                reason = int(part.segment.section_reasons[row - part.first_section, column])
                if reason:
                    found[identity] = REASONS[reason - 1]
        return found

    def lexicon(self, hardware: Sequence[str], access: AccessScope) -> list[tuple[str, Term]]:
        """The terms for concepts in the documents about any of this hardware, with the id of the
        document, in the order of the documents."""
        about, found = set(hardware), []
        for part in self._parts:
            for place, document in part.documents:
                if not about.isdisjoint(document.hardware) and _sees(access, document):
                    key = (part.segment.name, "terms", place)
                    terms = self.cache.get(key, partial(part.segment.terms, place))
                    found += [(document.id, term) for term in terms]
        return sorted(found, key=lambda pair: pair[0])  # stable: reading order within a document

    def _passage(self, row: int) -> Passage:
        part = self._parts[bisect_right(self._firsts, row) - 1]
        own = row - part.first
        return self.cache.get((part.segment.name, "passage", own), lambda: _passage(part, own))

    # -- sections

    def sections(self, section_ids: Iterable[str], scope: ScopeFilter) -> dict[str, WholeSection]:
        """These sections by id, without those that have no passage in the scope. A section that is
        completely in the scope is the same object for every scope."""
        return {
            identity: self._whole_section(row) if part is None else self._section(row, part)
            for identity, row, part in self._visible_sections(section_ids, scope)
        }

    def section_tokens(self, section_ids: Iterable[str], scope: ScopeFilter) -> dict[str, int]:
        """The tokens of the texts of `sections`; those of complete sections are stored."""
        return {
            identity: self._of_section("tokens", row)
            if part is None
            else self._section(row, part).tokens
            for identity, row, part in self._visible_sections(section_ids, scope)
        }

    def _visible_sections(
        self, section_ids: Iterable[str], scope: ScopeFilter
    ) -> Iterator[tuple[str, int, list[Passage] | None]]:
        """The id and row of each section with passages in the scope, and these passages; None if
        all are in it."""
        # A section has the passages that are in the scope, all of one category.
        within = self._within(replace(scope, categories=CATEGORIES))
        about = self._abouts[1]
        for identity in sorted(set(section_ids)):
            for row in _found(self._sections_by_id, identity).tolist():
                members = self._members(row)
                admitted = within[about[members]]
                if not admitted.any() or self._document_of(row).category not in scope.categories:
                    continue
                part = None
                if scope.access_scope.restricted or not admitted.all():
                    shown = map(self._passage, members[admitted].tolist())
                    part = [passage.seen_by(scope.access_scope) for passage in shown]
                yield identity, row, part

    def parents(self, section_ids: Iterable[str]) -> dict[str, str | None]:
        """The enclosing section of each of these, None at the top; unknown ids are left out."""
        rows = {identity: _found(self._sections_by_id, identity) for identity in section_ids}
        numbers = {i: self._of_section("parents", own[0]) for i, own in rows.items() if len(own)}
        return {i: f"sec_{number:016x}" if number else None for i, number in numbers.items()}

    def documents_of(self, section_ids: Iterable[str]) -> dict[str, str]:
        """The document of each of these sections; unknown ids are left out."""
        rows = {identity: _found(self._sections_by_id, identity) for identity in section_ids}
        return {i: self._document_of(own[0]).id for i, own in rows.items() if len(own)}

    def below(self, parent_ids: Collection[str]) -> dict[str, list[str]]:
        """Ids of the child sections, by parent, in reading order."""
        found: dict[str, list[str]] = {}
        for identity in sorted(set(parent_ids)):
            rows = _found(self._sections_by_parent, identity).tolist()
            if rows:
                rows.sort(key=lambda row: self._section_record(row)[1])
                found[identity] = [self._section_id(row) for row in rows]
        return found

    def sections_of_documents(
        self, document_ids: Sequence[str], scope: ScopeFilter
    ) -> list[WholeSection]:
        """All sections of these documents, document by document in the given order."""
        order = {document_id: n for n, document_id in enumerate(document_ids)}
        ids = []
        for part in self._parts:
            places = [place for place, document in part.documents if document.id in order]
            rows = np.flatnonzero(np.isin(part.segment.section_documents, places))
            ids += [self._section_id(part.first_section + row) for row in rows.tolist()]
        sections = self.sections(ids, scope).values()
        return sorted(sections, key=lambda s: (order[s.document_id], s.ordinal))

    def members_of(self, section_seqs: Iterable[int]) -> Members:
        """The passages of sections by number."""
        numbers = np.array(sorted(section_seqs), np.int64)
        live = self._live_sections
        rows = live[np.searchsorted(self._section_seqs[live], numbers)] if len(numbers) else numbers
        members, starts = self._all_members
        sizes = starts[rows + 1] - starts[rows]
        before = np.cumsum(sizes) - sizes
        places = np.arange(sizes.sum()) + np.repeat(starts[rows] - before, sizes)
        return Members(numbers, sizes, self._seqs[members[places]])

    @cached_property
    def _all_members(self) -> tuple[Rows, Rows]:
        """Rows of passages, section by section; those of section s begin at the s-th start."""
        members = (p.segment.members.astype(np.int64) + p.first for p in self._parts)
        starts = (p.segment.member_starts[:-1] + p.first for p in self._parts)
        none = np.zeros(0, np.int64)
        ends = np.array([len(self._seqs)])
        return np.concatenate([none, *members]), np.concatenate([none, *starts, ends])

    def _section_part(self, row: int) -> _MountedSegment:
        return self._parts[bisect_right(self._first_sections, row) - 1]

    @cached_property
    def _first_sections(self) -> list[int]:
        return [part.first_section for part in self._parts]

    @cached_property
    def _firsts(self) -> list[int]:
        return [part.first for part in self._parts]

    def _of_section(self, column: str, row: int) -> int:
        """The value of a section in `section_COLUMN`."""
        part = self._section_part(row)
        return int(part.segment.arrays[f"section_{column}"][row - part.first_section])

    def _section_id(self, row: int) -> str:
        return f"sec_{self._of_section('ids', row):016x}"

    def _document_of(self, row: int) -> StoredDocument:
        return self._section_part(row).segment.documents[self._of_section("documents", row)]

    def _section_record(self, row: int) -> list[Any]:
        """[parent_id, ordinal, level, path]"""
        part = self._section_part(row)
        return part.segment.section(row - part.first_section)

    def _members(self, row: int) -> Rows:
        """Rows of the passages of a section, in reading order."""
        members, starts = self._all_members
        rows: Rows = members[starts[row] : starts[row + 1]]
        return rows

    def _whole_section(self, row: int) -> WholeSection:
        part = self._section_part(row)

        def make() -> WholeSection:
            passages = list(map(self._passage, self._members(row).tolist()))
            return self._section(row, passages, self._of_section("tokens", row))

        return self.cache.get((part.segment.name, "section", row - part.first_section), make)

    def _section(
        self, row: int, passages: Sequence[Passage], tokens: int | None = None
    ) -> WholeSection:
        parent_id, ordinal, level, path = self._section_record(row)
        document = self._document_of(row)
        return WholeSection(
            id=self._section_id(row),
            seq=int(self._section_seqs[row]),
            parent_id=parent_id,
            ordinal=ordinal,
            level=level,
            path=tuple(path),
            document_id=document.id,
            source_key=document.source_key,
            passages=tuple(passages),
            counted=tokens,
        )

    # -- documents

    def documents_about(self, hardware: Sequence[str], scope: ScopeFilter) -> list[OwnDocument]:
        """Documents with passages about one of these chips, by source key."""
        rows = self._about_chips(hardware, scope)
        found = []
        for part in self._parts:
            own, segment = part.own(rows), part.segment
            places = segment.document_places[own]
            sizes = np.bincount(places, segment.characters[own], len(segment.documents))
            for place in np.unique(places).tolist():
                document = segment.documents[place]
                size = int(sizes[place])
                found.append(OwnDocument(document.id, document.title, document.source_key, size))
        return sorted(found, key=lambda d: d.source_key)

    def texts_about(self, hardware: Sequence[str], scope: ScopeFilter) -> dict[str, str]:
        """The text about these chips, by document."""
        texts: dict[str, list[str]] = {}
        for passage in map(self._passage, self._about_chips(hardware, scope).tolist()):
            texts.setdefault(passage.document_id, []).append(passage.text)
        return {document: "\n".join(parts) for document, parts in texts.items()}

    def code_in(self, hardware: Sequence[str], language: str, scope: ScopeFilter) -> list[str]:
        """The code about these chips in fences labelled with the language."""
        rows = self._about_chips(hardware, replace(scope, categories=CATEGORIES))
        passages = map(self._passage, rows[self._code[rows]].tolist())
        return [p.text for p in passages if p.language == language]

    def documents_for_language(self, language: str) -> frozenset[str]:
        """Documents that were uploaded for this language."""
        return frozenset(d.id for d in self.documents.values() if language in d.languages)

    def languages_of(self, hardware_id: str, access: AccessScope) -> tuple[str, ...]:
        """The languages named by documents about exactly this hardware, by name."""
        about = (d for d in self.documents.values() if hardware_id in d.hardware)
        named = {language for d in about if _sees(access, d) for language in d.languages}
        return tuple(sorted(named))

    def _about_chips(self, hardware: Sequence[str], scope: ScopeFilter) -> Rows:
        """Rows of passages about one of these chips, by number, of any language."""
        within = self._within(replace(scope, hardware=tuple(hardware), languages=None))
        rows: Rows = self._live[within[self._abouts[1][self._live]]]
        return rows

    # -- ranking

    def around(self, seqs: Iterable[int], scope: ScopeFilter) -> Columns:
        """The passages of these numbers and their neighbours, within category and access."""
        middle = np.fromiter(seqs, np.int64)
        with_neighbours = np.unique(np.concatenate([middle - 1, middle, middle + 1]))
        return self._columns(self._on_shelf(self._rows_of(with_neighbours), scope))

    def sample(self, scope: ScopeFilter, count: int) -> tuple[Columns, NDArray[np.bool_]]:
        """An even sample of about `count` passages of a scope, in any language, with their
        neighbours; and a mask of the drawn passages with a vector."""

        def draw() -> tuple[NDArray[Any], ...]:
            about = self._abouts[1][self._live]
            shelf, places = self._shelf(scope), self._places(scope.hardware)
            seqs = self._live_seqs[(shelf & places)[about]]
            drawn = seqs[:: max(1, len(seqs) // count)]
            with_neighbours = np.unique(np.concatenate([drawn - 1, drawn, drawn + 1]))
            rows = self._on_shelf(self._rows_of(with_neighbours), scope)
            counted = np.isin(self._seqs[rows], drawn) & self._embedded[rows]
            return *self._columns(rows), counted

        *columns, counted = self.keep("sample", (scope.key, count), draw)
        return Columns(*columns), counted

    def near(
        self,
        hardware: Sequence[str] | None,
        vector: Vector,
        limit: int,
        access: AccessScope = ALL_ACCESS,
    ) -> dict[int, float]:
        """At most `limit` passages about this hardware (None: any) nearest to a unit vector, best
        first: number -> cosine. Exact."""
        groups = (
            (part.segment.arrays, self._runs_with_vectors(part, hardware, access))
            for part in self._parts
            if part.segment.vectors.shape[1]
        )
        return nearest(groups, vector, limit)

    def with_vectors(self, hardware: Sequence[str] | None, access: AccessScope) -> int:
        """The number of passages about this hardware (None: any) with a vector."""
        runs = (run for p in self._parts for run in self._runs_with_vectors(p, hardware, access))
        return sum(stop - start for start, stop in runs)

    @cached_property
    def hardware_scopes(self) -> tuple[str, ...]:
        """Every hardware that passages are about, sorted, including `any`."""
        return tuple(sorted({chip for about in self._abouts[0] for chip in about.hardware}))

    def search(
        self,
        level: Level,
        tokens: Sequence[str],
        scope: ScopeFilter,
        limit: int,
        documents: frozenset[str] | None = None,
    ) -> dict[int, float]:
        """Passages or sections that have any of the tokens within the scope, and in one of the
        `documents` if given, best first: number -> BM25 (> 0)."""
        if not tokens or not scope.categories or scope.hardware == ():
            return {}
        key = (level, scope.key, documents)
        runs = self.keep("runs", key, lambda: self._runs(level, scope, documents))
        return self._words_for(level, scope.access_scope).search(tokens, runs, limit)

    def _words_for(self, level: Level, access: AccessScope) -> WordIndex:
        """The word index, with words counted over the rows that a caller may see."""
        if not access.restricted:
            return self._words[level]
        visible = ScopeFilter(None, access_scope=access)

        def count() -> WordIndex:
            return self._words[level].counted_over(self._runs(level, visible))

        return self.keep("words counted", (level, visible.key), count)

    @cached_property
    def _words(self) -> dict[Level, WordIndex]:
        passages = [
            Postings.of("passage", p.segment.arrays, p.segment.seqs, p.dead) for p in self._parts
        ]
        sections = [
            Postings.of("section", p.segment.arrays, p.segment.section_seqs, p.dead_sections)
            for p in self._parts
        ]
        return {"passage": WordIndex.of(passages), "section": WordIndex.of(sections)}

    def _runs(
        self, level: Level, scope: ScopeFilter, documents: frozenset[str] | None = None
    ) -> list[Rows]:
        """For each segment, the start and end of each run of rows of a scope (and documents)."""
        runs = []
        for segment in (part.segment for part in self._parts):
            passages = level == "passage"
            abouts = segment.abouts if passages else segment.section_abouts
            about = segment.about if passages else segment.section_about
            within = _mask(a.is_within(scope) for a in abouts)
            if documents is None:
                runs.append(runs_of(about, within))
                continue
            column = "document_places" if passages else "section_documents"
            own = _mask(d.id in documents for d in segment.documents)
            inside = within[about] & own[segment.arrays[column]]
            runs.append(np.flatnonzero(np.diff(inside, prepend=False, append=False)))
        return runs

    def documents_named(self, names: Sequence[str], scope: ScopeFilter) -> frozenset[str]:
        """The documents of a scope that these tokens of a question name best: by several words of
        their title and file, one of them a year or the number of a version, as in "ISA 1.10" or
        "guide 2024". Empty if they name none, or more than MOST_NAMED."""
        pairs = (first + second for first, second in pairwise(names))  # Best Buy: BestBuy
        asked = sorted({name for name in (*names, *pairs) if len(name) > 1})
        if not any(map(_EDITION.fullmatch, asked)):
            return frozenset()
        titles = self.keep("names of documents", scope.key, lambda: self._titles(scope))
        scores: dict[str, list[float]] = {}
        editions: set[str] = set()
        for name in asked:
            named = titles.with_word(name)
            rare = math.log(1 + titles.total / (1 + len(named)))
            for document in named:
                scores.setdefault(document, []).append(rare)
            if _EDITION.fullmatch(name):
                editions |= named
        totals = {d: sum(scores[d]) for d in editions if len(scores[d]) > 1}
        best = max(totals.values(), default=0.0)
        chosen = frozenset(d for d, total in totals.items() if total > NAMED_SHARE * best)
        return chosen if len(chosen) <= MOST_NAMED else frozenset()

    def _titles(self, scope: ScopeFilter) -> _Titles:
        chips = scope.hardware
        documents: dict[str, set[str]] = {}
        count = 0
        for d in self.documents.values():
            if d.category not in scope.categories or not _sees(scope.access_scope, d):
                continue
            if chips is not None and d.hardware and set(chips).isdisjoint(d.hardware):
                continue
            count += 1
            stem = re.sub("[-_]", " ", PurePosixPath(d.source_key).stem)
            for word in tokenize(f"{d.title} {stem}"):
                documents.setdefault(word, set()).add(d.id)
        return _Titles(count, sorted(documents), documents)

    def _runs_with_vectors(
        self, part: _MountedSegment, hardware: Sequence[str] | None, access: AccessScope
    ) -> list[tuple[int, int]]:
        """Runs of live rows about this hardware with a vector, in a segment."""

        def find() -> list[tuple[int, int]]:
            segment = part.segment
            places = None if hardware is None else set(hardware)
            admitted = _mask(
                a.owner == access.owner and (places is None or not places.isdisjoint(a.hardware))
                for a in segment.abouts
            )
            inside = admitted[segment.about] & segment.embedded
            inside[part.dead] = False
            edges = np.flatnonzero(np.diff(inside, prepend=False, append=False)).tolist()
            return list(zip(edges[::2], edges[1::2], strict=True))

        key = (part.first, None if hardware is None else tuple(hardware), access.owner)
        return self.keep("runs with vectors", key, find)

    def _columns(self, rows: Rows) -> Columns:
        abouts, about = self._abouts
        categories = np.array([a.category for a in abouts] or [""], np.str_)
        width = max((part.segment.vectors.shape[1] for part in self._parts), default=0)
        vectors = np.zeros((len(rows), width), np.float32)
        for part in self._parts:
            inside = (rows >= part.first) & (rows < part.first + part.segment.rows)
            if part.segment.vectors.shape[1] and inside.any():
                vectors[inside] = part.segment.vectors[rows[inside] - part.first]
        return Columns(
            self._seqs[rows],
            self._section_seqs[self._section_of[rows]],
            self._prose[rows],
            self._code[rows],
            categories[about[rows]],
            vectors,
            self._embedded[rows],
        )

    # -- masks over the distinct scopes of passages

    def _within(self, scope: ScopeFilter) -> NDArray[np.bool_]:
        abouts = self._abouts[0]
        return self.keep("within", scope.key, lambda: _mask(a.is_within(scope) for a in abouts))

    def _shelf(self, scope: ScopeFilter) -> NDArray[np.bool_]:
        """Whether each has the owner and one of the categories."""
        owner, categories = scope.access_scope.owner, scope.categories
        return _mask(a.owner == owner and a.category in categories for a in self._abouts[0])

    def _places(self, hardware: Sequence[str] | None) -> NDArray[np.bool_]:
        """Whether each is about some of this hardware; None: any."""
        chips = None if hardware is None else set(hardware)
        return _mask(
            chips is None or not chips.isdisjoint(about.hardware) for about in self._abouts[0]
        )

    def _on_shelf(self, rows: Rows, scope: ScopeFilter) -> Rows:
        shelf = self.keep("shelf", scope.key, lambda: self._shelf(scope))
        admitted: Rows = rows[shelf[self._abouts[1][rows]]]
        return admitted

    def unknown_ids(self, ids: Iterable[str], access: AccessScope) -> list[str]:
        """Those ids, in order, that are not a passage, section, document, card or kernel visible to
        the caller."""
        unique = list(dict.fromkeys(ids))
        if not unique:
            return []
        within = self._within(ScopeFilter(None, access_scope=access))
        known = {card.id for card in self.symbols(access=access)}
        known |= {kernel.id for kernel in self.kernels(access=access)}
        for identity in unique:
            rows = _found(self._by_id, identity).tolist()
            for section in _found(self._sections_by_id, identity).tolist():
                rows += self._members(section).tolist()
            document = self.documents.get(identity)
            if within[self._abouts[1][rows]].any() or (document and _sees(access, document)):
                known.add(identity)
        return [identity for identity in unique if identity not in known]

    # -- names and kernels

    def symbols(
        self,
        hardware: Sequence[str] | None = None,
        *,
        names: Collection[str] | None = None,
        access: AccessScope = ALL_ACCESS,
    ) -> list[Symbol]:
        """Accepted cards in the order of their documents; with `hardware`, those about one of these
        ids, where rows of tables without a text are part of the card that describes their name;
        with `names`, those with one of these names."""
        about = None if hardware is None else set(hardware)
        cards: list[Symbol] = []
        for part in self._parts:
            for place, document in part.documents:
                chips = document.card_chips
                if chips is None or not _sees(access, document):
                    continue
                if about is None or not about.isdisjoint(chips):
                    cards += self._cards_of(part.segment, place)
        chosen = [
            card
            for card in cards
            if (about is None or not about.isdisjoint(card.hardware))
            and (names is None or card.name in names)
            and card.section_id not in self.hidden
            and access.sees(card.hardware)
        ]
        if access.restricted:
            chosen = [
                replace(card, hardware=access.visible_hardware(card.hardware)) for card in chosen
            ]
        chosen.sort(key=lambda s: (s.document_title, s.document_id, s.ordinal))
        return chosen if hardware is None else _with_rows(chosen)

    def kernels(
        self, hardware: Sequence[str] | None = None, access: AccessScope = ALL_ACCESS
    ) -> list[Sample]:
        """Whole kernels, those of runs first; with `hardware`, those about one of these ids."""
        samples = [run.sample for run in self.knowledge.kernels if run.owner == access.owner]
        for part in self._parts:
            for place, document in part.documents:
                if document.kernels and _sees(access, document):
                    samples += self._kernels_of(part.segment, place)
        about = None if hardware is None else set(hardware)
        chosen = [
            sample
            for sample in samples
            if (about is None or not about.isdisjoint(sample.hardware))
            and access.sees(sample.hardware)
            and sample.section_id not in self.hidden
        ]
        if access.restricted:
            chosen = [replace(s, hardware=access.visible_hardware(s.hardware)) for s in chosen]
        return sorted(chosen, key=lambda s: (s.document_id is not None, s.document_title, s.id))

    def _cards_of(self, segment: Segment, place: int) -> list[Symbol]:
        return self.cache.get((segment.name, "cards", place), lambda: segment.cards(place))

    def _kernels_of(self, segment: Segment, place: int) -> list[Sample]:
        return self.cache.get((segment.name, "kernels", place), lambda: segment.kernels(place))

    # -- cached values derived from the snapshot

    def keep(self, area: str, key: Hashable, make: Callable[[], T]) -> T:
        """A value derived from this snapshot and a key, cached while the snapshot is in use."""
        return self.cache.get((self.name, area, key), make)


def _indexed(numbers: NDArray[np.uint64], rows: Rows) -> tuple[NDArray[np.uint64], Rows]:
    """Rows by the number of each, ascending."""
    own = numbers[rows]
    order = np.argsort(own, kind="stable")
    return own[order], rows[order]


def _found(index: tuple[NDArray[np.uint64], Rows], identity: str) -> Rows:
    """The rows of an id in an index; none for an invalid id."""
    numbers, rows = index
    try:
        number = np.uint64(number_of(identity))
    except (ValueError, OverflowError):
        return rows[:0]
    return rows[numbers.searchsorted(number) : numbers.searchsorted(number, "right")]


def _passage(part: _MountedSegment, row: int) -> Passage:
    segment = part.segment
    ordinal, kind, lead, text, language, index, label, boxes, corrected, tags = segment.passage(row)
    section = int(segment.section_rows[row])
    document = segment.documents[int(segment.document_places[row])]
    return Passage(
        seq=int(segment.seqs[row]),
        id=f"psg_{int(segment.ids[row]):016x}",
        document_id=document.id,
        document_title=document.title,
        version=document.version,
        category=document.category,
        section_id=f"sec_{int(segment.section_ids[section]):016x}",
        section_seq=int(segment.section_seqs[section]),
        path=tuple(segment.section(section)[3]),
        ordinal=ordinal,
        kind=kind,
        lead=lead,
        text=text,
        language=language,
        page_index=index,
        page_label=label,
        boxes=tuple(boxes),
        prose=int(segment.prose[row]),
        hardware=segment.abouts[int(segment.about[row])].hardware,
        tags=tuple(map(tuple, tags)),
        corrected=corrected,
    )


def _sees(access: AccessScope, document: StoredDocument) -> bool:
    return document.owner == access.owner and access.sees(document.hardware)


class _Titles(NamedTuple):
    """The words of titles and files of `total` documents, sorted, and the documents of each."""

    total: int
    words: Sequence[str]
    documents: dict[str, set[str]]

    def with_word(self, name: str) -> set[str]:
        """The documents that have this word, or one that begins with it."""
        if len(name) < LEAST_PREFIX:
            return self.documents.get(name, set())
        start, end = (bisect_left(self.words, text) for text in (name, name + "\uffff"))
        return set().union(*(self.documents[word] for word in self.words[start:end]))


def _with_rows(cards: Sequence[Symbol]) -> list[Symbol]:
    """The cards, without those that have cells of a table alone, such as a support matrix, where
    another card describes the same name: that one gets their cells, after the title of the table's
    section."""

    bare = {
        card.id: card
        for card in cards
        if not (card.signature or card.meaning or card.operands or card.limits or card.example)
    }
    names = {card.name for card in bare.values()}
    main = {c.name: c.id for c in reversed(cards) if c.name in names and c.id not in bare}
    cells: dict[str, list[str]] = defaultdict(list)
    for card in bare.values():
        if card.name in main:
            cells[main[card.name]] += [f"{card.path[-1]}, {cell}" for cell in card.further]
    return [
        replace(card, further=(*card.further, *cells[card.id])) if card.id in cells else card
        for card in cards
        if card.id not in bare or card.name not in main
    ]


def _mask(values: Iterable[bool]) -> NDArray[np.bool_]:
    return np.fromiter(values, np.bool_)
