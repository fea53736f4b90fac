"""What answers are computed from: the knowledge of one catalog revision, in memory.

Passages, sections and vectors are mapped from the segments' files; hardware, moves, skills and
verified kernels are small and are in memory. A snapshot never changes, and none of its methods
reads the catalog, a clock or other state. Every method that gives text checks the scope that it is
given, so nothing outside of it is ever returned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kb.catalog.knowledge.passages import About, Passage
from kb.catalog.knowledge.samples import Sample
from kb.catalog.knowledge.section_texts import OwnDocument, WholeSection
from kb.catalog.knowledge.symbols import Symbol
from kb.scope import ALL_ACCESS, CATEGORIES, AccessScope, ScopeFilter
from retrieval.snapshot.cache import Cache
from retrieval.snapshot.knowledge import Knowledge
from retrieval.snapshot.segment import LEVELS, Segment, StoredDocument, as_number, runs_of
from retrieval.snapshot.words import Level, Postings, WordIndex

T = TypeVar("T")
Vector = NDArray[np.float32]
Rows = NDArray[np.int64]
MOST_SCOPES_AT_ONCE = 16  # of a search for near passages; more are searched as one set of rows


class Columns(NamedTuple):
    """Passages in the order of their numbers, for ranking. `sections` are the numbers of their
    sections, `prose` is per mille; where `embedded` is False, the row of `vectors` is zero.
    """

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
    """The passages of sections: the numbers of the sections, how many passages each has, and the
    numbers of these, section by section.
    """

    sections: NDArray[np.int64]
    sizes: NDArray[np.int64]
    seqs: NDArray[np.int64]


class Mark(NamedTuple):
    """What speaks for a passage where a signal is all that is known: `named` that its text has the
    signal's id, `tagged` that it has its tag, `moved` that a move for it rests on the section.
    """

    seq: int
    section_id: str
    path: tuple[str, ...]
    hardware: tuple[str, ...]
    text: str
    named: bool
    tagged: bool
    moved: bool


@dataclass(frozen=True, eq=False)
class Part:
    """A segment of a snapshot. Its passages are the rows from `first` on, its sections those from
    `first_section` on; `replaced` are the places of documents that a later segment has.
    """

    segment: Segment
    first: int
    first_section: int
    replaced: frozenset[int]

    @cached_property
    def dead(self) -> Rows:
        """Rows of replaced documents, within the segment."""
        return np.flatnonzero(np.isin(self.segment.documents_of, sorted(self.replaced)))

    @cached_property
    def dead_sections(self) -> Rows:
        return np.flatnonzero(np.isin(self.segment.section_documents, sorted(self.replaced)))

    def postings(self, level: Level) -> Postings:
        """The word index of a level."""
        arrays = self.segment.arrays
        dead = self.dead if level == "passage" else self.dead_sections
        rows, starts = arrays[f"{level}_rows"], arrays[f"{level}_starts"]
        gone: dict[int, int] = {}
        if len(dead):
            hit = np.flatnonzero(np.isin(rows, dead))
            words, counts = np.unique(np.searchsorted(starts, hit, "right") - 1, return_counts=True)
            gone = dict(zip(words.tolist(), counts.tolist(), strict=True))
        return Postings(
            arrays["seqs" if level == "passage" else "section_seqs"],
            arrays[f"{level}_words"],
            starts,
            rows,
            arrays[f"{level}_counts"],
            arrays[f"{level}_lengths"],
            dead,
            gone,
        )


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The knowledge of a catalog at `revision`; `name` tells it from every other snapshot."""

    name: str
    revision: int
    segments: tuple[tuple[Segment, frozenset[int]], ...]
    knowledge: Knowledge
    cache: Cache = field(default_factory=Cache)

    # -- places of rows

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        parts, first, first_section = [], 0, 0
        for segment, replaced in self.segments:
            parts.append(Part(segment, first, first_section, replaced))
            first += segment.rows
            first_section += len(segment.section_seqs)
        return tuple(parts)

    @cached_property
    def documents(self) -> dict[str, StoredDocument]:
        """Every document by id."""
        return {
            document.id: document
            for part in self.parts
            for place, document in enumerate(part.segment.documents)
            if place not in part.replaced
        }

    @cached_property
    def _live(self) -> Rows:
        """Rows of passages, ascending by number."""
        rows = np.arange(sum(part.segment.rows for part in self.parts))
        keep = np.ones(len(rows), np.bool_)
        for part in self.parts:
            keep[part.first + part.dead] = False
        rows = rows[keep]
        ordered: Rows = rows[np.argsort(self._seqs[rows], kind="stable")]
        return ordered

    @cached_property
    def _live_sections(self) -> Rows:
        keep = np.ones(len(self._section_seqs), np.bool_)
        for part in self.parts:
            keep[part.first_section + part.dead_sections] = False
        rows = np.flatnonzero(keep)
        ordered: Rows = rows[np.argsort(self._section_seqs[rows], kind="stable")]
        return ordered

    def _joined(self, name: str, kind: Any = np.int64) -> NDArray[Any]:
        arrays = [part.segment.arrays[name] for part in self.parts]
        return np.concatenate(arrays) if arrays else np.zeros(0, kind)

    @cached_property
    def _seqs(self) -> NDArray[np.int64]:
        return self._joined("seqs")

    @cached_property
    def _section_seqs(self) -> NDArray[np.int64]:
        return self._joined("section_seqs")

    @cached_property
    def _section_of(self) -> NDArray[np.int64]:
        """Of each passage, the row of its section."""
        rows = [part.segment.section_rows.astype(np.int64) + part.first_section for part in self.parts]
        return np.concatenate(rows) if rows else np.zeros(0, np.int64)

    @cached_property
    def _abouts(self) -> tuple[tuple[About, ...], NDArray[np.int64]]:
        """The different scopes of passages, and that of each row."""
        known: dict[About, int] = {}
        columns = []
        for part in self.parts:
            place = [known.setdefault(about, len(known)) for about in part.segment.abouts]
            columns.append(np.array(place, np.int64)[part.segment.about])
        return tuple(known), np.concatenate(columns) if columns else np.zeros(0, np.int64)

    @cached_property
    def _sorted_seqs(self) -> NDArray[np.int64]:
        return self._seqs[self._live]

    @cached_property
    def _by_id(self) -> tuple[NDArray[np.uint64], Rows]:
        ids = self._joined("ids", np.uint64)[self._live]
        order = np.argsort(ids)
        return ids[order], self._live[order]

    @cached_property
    def _sections_by_id(self) -> tuple[NDArray[np.uint64], Rows]:
        ids = self._joined("section_ids", np.uint64)[self._live_sections]
        order = np.argsort(ids)
        return ids[order], self._live_sections[order]

    @cached_property
    def _children(self) -> tuple[NDArray[np.uint64], Rows]:
        """Sections by the id of their parent."""
        parents = self._joined("section_parents", np.uint64)[self._live_sections]
        order = np.argsort(parents, kind="stable")
        return parents[order], self._live_sections[order]

    def _rows_of(self, seqs: NDArray[np.int64]) -> Rows:
        """The rows of those of ascending numbers that are there."""
        places = np.searchsorted(self._sorted_seqs, seqs)
        inside = places < len(self._sorted_seqs)
        places = places[inside]
        rows: Rows = self._live[places[self._sorted_seqs[places] == seqs[inside]]]
        return rows

    def _part_of(self, row: int) -> Part:
        return next(part for part in reversed(self.parts) if row >= part.first)

    def _part_of_section(self, row: int) -> Part:
        return next(part for part in reversed(self.parts) if row >= part.first_section)

    # -- counts

    @property
    def passages(self) -> int:
        return len(self._live)

    @cached_property
    def embedded(self) -> int:
        """Passages that have a vector."""
        return int(np.count_nonzero(self._embedded[self._live]))

    @cached_property
    def _embedded(self) -> NDArray[np.bool_]:
        return self._joined("embedded", np.bool_)

    # -- passages

    def load(self, seqs: Iterable[int], scope: ScopeFilter | None = None) -> dict[int, Passage]:
        """The passages among these numbers, by number; with a scope, those that it admits, as its
        caller may see them.
        """
        wanted = np.unique(np.fromiter(seqs, np.int64))
        rows = self._rows_of(wanted)
        if scope is not None:
            rows = rows[self._within(scope)[self._abouts[1][rows]]]
        access = ALL_ACCESS if scope is None else scope.access_scope
        return {p.seq: _as_seen(p, access) for p in map(self._passage, rows.tolist())}

    def numbers(self, passage_ids: Iterable[str]) -> dict[str, int]:
        """Numbers of passages by id; unknown ids are left out."""
        ids, rows = self._by_id
        numbers = {}
        for identity in passage_ids:
            place = int(np.searchsorted(ids, np.uint64(_number(identity))))
            if place < len(ids) and ids[place] == _number(identity):
                numbers[identity] = int(self._seqs[rows[place]])
        return numbers

    def _passage(self, row: int) -> Passage:
        part = self._part_of(row)
        return self.cache.get((part.segment.path.name, "passage", row - part.first), lambda: self._read(part, row - part.first))

    def _read(self, part: Part, row: int) -> Passage:
        segment = part.segment
        ordinal, kind, lead, text, language, page_index, page_label, boxes, corrected, tags = segment.record("passages", row)
        section = int(segment.section_rows[row])
        document = segment.documents[int(segment.documents_of[row])]
        _, _, _, path = segment.record("sections", section)
        return Passage(
            seq=int(segment.seqs[row]),
            id=f"psg_{int(segment.ids[row]):016x}",
            document_id=document.id,
            document_title=document.title,
            version=document.version,
            category=document.category,
            section_id=f"sec_{int(segment.section_ids[section]):016x}",
            section_seq=int(segment.section_seqs[section]),
            path=path,
            ordinal=ordinal,
            kind=kind,
            lead=lead,
            text=text,
            language=language,
            page_index=page_index,
            page_label=page_label,
            boxes=boxes,
            prose=int(segment.prose[row]),
            hardware=segment.abouts[int(segment.about[row])].hardware,
            tags=tags,
            corrected=corrected,
        )

    # -- sections

    def sections(self, section_ids: Iterable[str], scope: ScopeFilter) -> dict[str, WholeSection]:
        """These sections by id; those without a passage that the scope admits are left out. One
        that it admits as a whole is the same object for every scope.
        """
        # A section has the passages that the scope admits, all of one category.
        every = replace(scope, categories=CATEGORIES)
        whole: dict[str, WholeSection] = {}
        within = self._within(every)
        for identity in sorted(set(section_ids)):
            row = self._section_row(identity)
            if row is None:
                continue
            members = self._member_rows(row)
            admitted = within[self._abouts[1][members]]
            if not admitted.any():
                continue
            if admitted.all() and not scope.access_scope.restricted:
                section = self.keep("section", row, lambda row=row, members=members: self._section(row, [self._passage(m) for m in members.tolist()]))
            else:
                shown = [_as_seen(self._passage(m), scope.access_scope) for m in members[admitted].tolist()]
                section = self._section(row, shown)
            if section.passages[0].category in scope.categories:
                whole[identity] = section
        return whole

    def parents(self, section_ids: Iterable[str]) -> dict[str, str | None]:
        """The enclosing section of each of these, None at the top; unknown ids are left out."""
        found = {}
        for identity in section_ids:
            row = self._section_row(identity)
            if row is not None:
                found[identity] = self._section_record(row)[0]
        return found

    def below(self, parent_ids: Collection[str]) -> dict[str, list[str]]:
        """Ids of the sections directly below these, by parent, in reading order."""
        parents, rows = self._children
        found: dict[str, list[str]] = {}
        for identity in sorted(set(parent_ids)):
            number = np.uint64(_number(identity))
            low, high = np.searchsorted(parents, number), np.searchsorted(parents, number, "right")
            children = sorted(
                (self._section_record(row)[1], self._section_id(row)) for row in rows[low:high].tolist()
            )
            if children:
                found[identity] = [child for _, child in children]
        return found

    def sections_of_documents(
        self, document_ids: Sequence[str], scope: ScopeFilter
    ) -> list[WholeSection]:
        """All sections of these documents, document by document in the given order."""
        place = {document_id: n for n, document_id in enumerate(document_ids)}
        ids = [
            self._section_id(part.first_section + row)
            for part in self.parts
            for row, of in enumerate(part.segment.section_documents.tolist())
            if of not in part.replaced and part.segment.documents[of].id in place
        ]
        sections = self.sections(ids, scope).values()
        return sorted(sections, key=lambda s: (place[s.document_id], s.ordinal))

    def _section_row(self, identity: str) -> int | None:
        ids, rows = self._sections_by_id
        place = int(np.searchsorted(ids, np.uint64(_number(identity))))
        found = place < len(ids) and int(ids[place]) == _number(identity)
        return int(rows[place]) if found else None

    def _section_id(self, row: int) -> str:
        part = self._part_of_section(row)
        return f"sec_{int(part.segment.section_ids[row - part.first_section]):016x}"

    def _section_record(self, row: int) -> tuple[str | None, int, int, tuple[str, ...]]:
        """(parent_id, ordinal, level, path)"""
        part = self._part_of_section(row)
        record: tuple[str | None, int, int, tuple[str, ...]] = part.segment.record("sections", row - part.first_section)
        return record

    def _member_rows(self, section: int) -> Rows:
        """Rows of the passages of a section, in reading order."""
        part = self._part_of_section(section)
        starts, own = part.segment.member_starts, section - part.first_section
        rows: Rows = part.segment.members[int(starts[own]) : int(starts[own + 1])].astype(np.int64) + part.first
        return rows

    def _section(self, row: int, passages: Sequence[Passage]) -> WholeSection:
        part = self._part_of_section(row)
        parent_id, ordinal, level, path = self._section_record(row)
        document = part.segment.documents[int(part.segment.section_documents[row - part.first_section])]
        return WholeSection(
            id=self._section_id(row),
            seq=int(self._section_seqs[row]),
            parent_id=parent_id,
            ordinal=ordinal,
            level=level,
            path=path,
            document_id=document.id,
            source_key=document.source_key,
            passages=tuple(passages),
        )

    def members_of(self, section_seqs: Iterable[int]) -> Members:
        """The passages of sections by number."""
        wanted = np.array(sorted(section_seqs), np.int64)
        live = self._live_sections
        rows = live[np.searchsorted(self._section_seqs[live], wanted)].tolist() if len(wanted) else []
        groups = [self._seqs[self._member_rows(row)] for row in rows]
        sizes = np.fromiter(map(len, groups), np.int64, len(groups))
        return Members(wanted, sizes, np.concatenate(groups) if groups else np.zeros(0, np.int64))

    def passages_of_sections(self, section_ids: Iterable[str]) -> list[Passage]:
        """The passages of sections, by number."""
        rows = [self._section_row(identity) for identity in set(section_ids)]
        members = [m for row in rows if row is not None for m in self._member_rows(row).tolist()]
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

    # -- documents

    def documents_about(self, hardware: Sequence[str], scope: ScopeFilter) -> list[OwnDocument]:
        """Documents with passages about one of these chips, by source key."""
        rows = self._about_chips(hardware, scope)
        counted: dict[str, int] = defaultdict(int)
        for part in self.parts:
            own = rows[(rows >= part.first) & (rows < part.first + part.segment.rows)] - part.first
            sizes = np.bincount(part.segment.documents_of[own], part.segment.characters[own], len(part.segment.documents))
            for place in np.unique(part.segment.documents_of[own]).tolist():
                counted[part.segment.documents[place].id] += int(sizes[place])
        documents = (self.documents[i] for i in counted)
        return [
            OwnDocument(d.id, d.title, d.source_key, counted[d.id])
            for d in sorted(documents, key=lambda d: d.source_key)
        ]

    def texts_about(self, hardware: Sequence[str], scope: ScopeFilter) -> dict[str, str]:
        """The text about these chips, by document."""
        texts: dict[str, list[str]] = {}
        for row in self._about_chips(hardware, scope).tolist():
            passage = self._passage(row)
            texts.setdefault(passage.document_id, []).append(passage.text)
        return {document: "\n".join(parts) for document, parts in texts.items()}

    def code_in(self, hardware: Sequence[str], language: str, scope: ScopeFilter) -> list[str]:
        """The code about these chips whose fence names the language."""
        rows = self._about_chips(hardware, replace(scope, categories=CATEGORIES))
        code = self._joined("code", np.bool_)
        passages = (self._passage(row) for row in rows[code[rows]].tolist())
        return [p.text for p in passages if p.language == language]

    def documents_for_language(self, language: str) -> frozenset[str]:
        """Documents that were uploaded as being about this language."""
        return frozenset(d.id for d in self.documents.values() if language in d.languages)

    def languages_of(self, hardware_id: str, access: AccessScope) -> tuple[str, ...]:
        """The languages that documents about this very hardware name, by name."""
        return tuple(
            sorted(
                {
                    language
                    for d in self.documents.values()
                    if hardware_id in d.hardware and _sees(access, d)
                    for language in d.languages
                }
            )
        )

    def _about_chips(self, hardware: Sequence[str], scope: ScopeFilter) -> Rows:
        """Rows of passages about one of these chips, by number; languages narrow nothing."""
        abouts, about = self._abouts
        chips = replace(scope, hardware=tuple(hardware), languages=None)
        admitted = np.fromiter((a.is_within(chips) for a in abouts), np.bool_, len(abouts))
        rows: Rows = self._live[admitted[about[self._live]]]
        return rows

    # -- ranking

    def around(self, seqs: Iterable[int], scope: ScopeFilter) -> Columns:
        """The passages under these numbers and those next to them, within category and access."""
        middle = np.fromiter(seqs, np.int64)
        return self._columns(self._shelved(self._rows_of(np.unique(np.concatenate([middle - 1, middle, middle + 1]))), scope))

    def _shelved(self, rows: Rows, scope: ScopeFilter) -> Rows:
        abouts, about = self._abouts
        kept = np.fromiter(
            (a.owner == scope.access_scope.owner and a.category in scope.categories for a in abouts),
            np.bool_,
            len(abouts),
        )
        shelved: Rows = rows[kept[about[rows]]]
        return shelved

    def _columns(self, rows: Rows) -> Columns:
        abouts, about = self._abouts
        categories = np.array([a.category for a in abouts], np.str_) if abouts else np.zeros(0, "U1")
        width = max((part.segment.vectors.shape[1] for part in self.parts), default=0)
        vectors = np.zeros((len(rows), width), np.float32)
        for part in self.parts:
            own = np.flatnonzero((rows >= part.first) & (rows < part.first + part.segment.rows))
            if len(own) and part.segment.vectors.shape[1]:
                vectors[own] = part.segment.vectors[rows[own] - part.first]
        return Columns(
            self._seqs[rows],
            self._section_seqs[self._section_of[rows]],
            self._prose[rows],
            self._code[rows],
            categories[about[rows]],
            vectors,
            self._embedded[rows],
        )

    @cached_property
    def _prose(self) -> NDArray[np.int32]:
        return self._joined("prose", np.int32)

    @cached_property
    def _code(self) -> NDArray[np.bool_]:
        return self._joined("code", np.bool_)

    def sample(self, scope: ScopeFilter, count: int) -> tuple[Columns, NDArray[np.bool_]]:
        """An even sample of about `count` passages of a scope, in any language, with the passages
        next to them; which of them were drawn and have a vector.
        """

        def draw() -> tuple[Rows, NDArray[np.bool_]]:
            abouts, about = self._abouts
            inside = np.fromiter(
                (
                    a.owner == scope.access_scope.owner
                    and a.category in scope.categories
                    and (scope.hardware is None or not set(a.hardware).isdisjoint(scope.hardware))
                    for a in abouts
                ),
                np.bool_,
                len(abouts),
            )
            seqs = self._sorted_seqs[inside[about[self._live]]]
            drawn = seqs[:: max(1, len(seqs) // count)]
            beside = np.unique(np.concatenate([drawn - 1, drawn, drawn + 1]))
            rows = self._shelved(self._rows_of(beside), scope)
            return rows, np.isin(self._seqs[rows], drawn) & self._embedded[rows]

        rows, counted = self.keep("sample", (scope.key, count), draw)
        return self._columns(rows), counted

    def near(
        self,
        hardware: Sequence[str] | None,
        vector: Vector,
        limit: int,
        access: AccessScope = ALL_ACCESS,
    ) -> dict[int, float]:
        """At most `limit` passages about this hardware (None: any) nearest to a unit vector, best
        first: number -> cosine. Exact.
        """
        groups = [
            (part.segment.seqs, part.segment.vectors, self._embedded_runs(part, hardware, access))
            for part in self.parts
            if part.segment.vectors.shape[1]
        ]
        best = []
        for seqs, vectors, runs in groups:
            for start, stop in runs:
                best.append(_largest(seqs[start:stop], vectors[start:stop] @ vector, limit))
        return _merged(best, limit)

    def _embedded_runs(
        self, part: Part, hardware: Sequence[str] | None, access: AccessScope
    ) -> list[tuple[int, int]]:
        """Runs of live rows with a vector in a segment."""

        def find() -> list[tuple[int, int]]:
            segment = part.segment
            admitted = np.fromiter(
                (
                    a.owner == access.owner
                    and (hardware is None or not set(a.hardware).isdisjoint(hardware))
                    for a in segment.abouts
                ),
                np.bool_,
                len(segment.abouts),
            )
            inside = admitted[segment.about] & segment.embedded
            inside[part.dead] = False
            edges = np.flatnonzero(np.diff(inside, prepend=False, append=False)).tolist()
            return list(zip(edges[::2], edges[1::2], strict=True))

        key = (part.first, None if hardware is None else tuple(hardware), access.owner)
        return self.keep("embedded runs", key, find)

    def search(
        self, level: Level, tokens: Sequence[str], scope: ScopeFilter, limit: int
    ) -> dict[int, float]:
        """Passages or sections that have any of the tokens within the scope, best first: number ->
        BM25 (> 0).
        """
        if not tokens or not scope.categories or scope.hardware == ():
            return {}
        bounds = self.keep("runs", (level, scope.key), lambda: [self._runs(part, level, scope) for part in self.parts])
        return self._words[level].search(tokens, bounds, limit)

    @cached_property
    def _words(self) -> dict[Level, WordIndex]:
        return {level: WordIndex.of([part.postings(level) for part in self.parts]) for level in LEVELS}

    def _runs(self, part: Part, level: Level, scope: ScopeFilter) -> NDArray[np.int64]:
        segment = part.segment
        abouts, about = (
            (segment.abouts, segment.about)
            if level == "passage"
            else (segment.section_abouts, segment.section_about)
        )
        return runs_of(about, np.fromiter((a.is_within(scope) for a in abouts), np.bool_, len(abouts)))

    def _within(self, scope: ScopeFilter) -> NDArray[np.bool_]:
        """Of each different scope of passages, whether this one admits it."""
        abouts, _ = self._abouts
        return self.keep("within", scope.key, lambda: np.fromiter((a.is_within(scope) for a in abouts), np.bool_, len(abouts)))

    # -- names and kernels

    def symbols(
        self,
        hardware: Sequence[str] | None = None,
        *,
        names: Collection[str] | None = None,
        access: AccessScope = ALL_ACCESS,
    ) -> list[Symbol]:
        """Accepted cards in the order of their documents; with `hardware`, those about one of these
        ids, with `names`, those with one of these names.
        """
        wanted = None if hardware is None else set(hardware)
        cards: list[Symbol] = []
        for part in self.parts:
            for place, document in enumerate(part.segment.documents):
                if document.cards is None or place in part.replaced or not _sees(access, document):
                    continue
                if wanted is not None and wanted.isdisjoint(document.cards):
                    continue
                own = self.cache.get((part.segment.path.name, "cards", place), lambda p=part, n=place: p.segment.record("cards", n))
                cards += [
                    card
                    for card in own
                    if (wanted is None or not wanted.isdisjoint(card.hardware))
                    and (names is None or card.name in names)
                    and access.sees(card.hardware)
                ]
        if access.restricted:
            cards = [replace(card, hardware=access.named(card.hardware)) for card in cards]
        return sorted(cards, key=lambda s: (s.document_title, s.document_id, s.ordinal))

    def samples(
        self, hardware: Sequence[str] | None = None, access: AccessScope = ALL_ACCESS
    ) -> list[Sample]:
        """Whole kernels, those of runs first; with `hardware`, those about one of these ids."""
        samples = list(self.knowledge.verified)
        for part in self.parts:
            for place, document in enumerate(part.segment.documents):
                if document.samples and place not in part.replaced and _sees(access, document):
                    samples += self.cache.get((part.segment.path.name, "samples", place), lambda p=part, n=place: p.segment.record("samples", n))
        if hardware is not None:
            wanted = set(hardware)
            samples = [s for s in samples if not wanted.isdisjoint(s.hardware)]
        if access != ALL_ACCESS:
            samples = [
                replace(s, hardware=access.named(s.hardware))
                for s in samples
                if access.sees(s.hardware)
            ]
        return sorted(samples, key=lambda s: (s.document_id is not None, s.document_title, s.id))

    # -- values made of it

    def keep(self, area: str, key: Hashable, make: Callable[[], T]) -> T:
        """A value that follows from this snapshot and a key, made once while it is in use."""
        return self.cache.get((self.name, area, key), make)


def _as_seen(passage: Passage, access: AccessScope) -> Passage:
    """Without the names of other chips that it is about."""
    if not access.restricted:
        return passage
    return passage._replace(hardware=access.named(passage.hardware))


def _sees(access: AccessScope, document: StoredDocument) -> bool:
    return document.owner == access.owner and access.sees(document.hardware)


def _number(identity: str) -> int:
    try:
        return as_number(identity)
    except ValueError:
        return 0  # no id of ours


def _largest(
    numbers: NDArray[np.int64], cosines: Vector, limit: int
) -> tuple[NDArray[np.int64], Vector]:
    """Those of a group that may be among the best; of equal ones, which differ in the last bit of a
    product, all.
    """
    if len(cosines) <= limit:
        return numbers, cosines
    near = cosines >= np.partition(cosines, -limit)[-limit] - 1e-5
    return numbers[near], cosines[near]


def _merged(
    best: Sequence[tuple[NDArray[np.int64], Vector]], limit: int
) -> dict[int, float]:
    """The best of several groups, best first: number -> cosine."""
    if not best:
        return {}
    seqs, places = np.unique(np.concatenate([numbers for numbers, _ in best]), return_index=True)
    cosines = np.concatenate([of_group for _, of_group in best])[places].astype(np.float64)
    # Equal texts have equal vectors, but not to the last bit of a matrix product.
    order = np.argsort(-np.round(cosines, 5), kind="stable")[:limit]
    return dict(zip(seqs[order].tolist(), cosines[order].tolist(), strict=True))
