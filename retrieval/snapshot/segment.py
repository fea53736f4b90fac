"""A segment: a set of documents with their sections and passages, as one immutable mapped file.

The numbers for ranking are columns; the other fields of a passage or section are one packed record
that is decoded on demand. Rows are ordered by scope, so that those of a chip are a few runs. A
segment is independent of other segments and of the catalog.

`reads_of` gives what language models said about the sections that they have read, for each passage
and signal: a model quotes the words of a section that answer a signal; the passage with the quote
counts fully, the others of the section in part.

The vectors nearest to a query are found exactly, by a scan of 8-bit codes. A code is a vector
rounded to multiples of the step of its row. The product of two codes differs from the cosine by at
most a known margin. The scan reads a quarter of the bytes of the vectors and leaves the rows that
may be among the nearest; only for these the vectors are read.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import simsimd
from numpy.typing import NDArray
from pydantic import TypeAdapter

from kb.catalog.knowledge.drafts import ReadLine
from kb.catalog.knowledge.passages import About
from kb.catalog.knowledge.samples import Sample
from kb.catalog.knowledge.symbols import Symbol
from kb.tokens import shadow
from retrieval.diagnose.signals import load_signals
from retrieval.snapshot.lexicon import Term
from retrieval.snapshot.ontology import load_ontology
from retrieval.snapshot.uses import lexicon_of, own_names, uses_of
from retrieval.snapshot.words import LEVELS, LevelRow, index_words, merge_words

MAGIC = b"kernlore snapshot segment 1\n"
ALIGNMENT = 64  # bytes
Arrays = Mapping[str, NDArray[Any]]
Rows = NDArray[np.int64]


class PassageRow(NamedTuple):
    """A passage to store. `about` is checked against scopes; `record` are the fields of `Passage`
    that only readers need; `vector` holds the bytes of float32 numbers, None without a vector."""

    seq: int
    id: str
    section: int  # index among the sections of the document
    prose: int
    code: bool
    characters: int  # of the text
    about: About
    record: Sequence[Any]
    words: tuple[str, str]  # heading and body as tokens
    vector: bytes | None


class SectionRow(NamedTuple):
    """A section to store; `record` is (parent_id, ordinal, level, path), `tokens` of its text;
    `lines` are those of a model that has read it, None without one."""

    seq: int
    id: str
    about: About
    record: Sequence[Any]
    tokens: int
    lines: tuple[ReadLine, ...] | None = None


@dataclass(frozen=True)
class StoredDocument:
    """The entry of a document in a segment, in the state `stamp`. `passages` and `embedded` count
    its passages; `card_chips` are the chips that its cards are about, None without cards; `kernels`
    counts its samples."""

    id: str
    stamp: int
    title: str
    category: str
    owner: str
    version: int
    source_key: str
    hardware: tuple[str, ...]
    languages: tuple[str, ...]
    passages: int
    embedded: int
    card_chips: tuple[str, ...] | None
    kernels: int


@dataclass(frozen=True)
class DocumentRows:
    """A document to store with the rows that answers may quote, and the terms that it defines."""

    document: StoredDocument
    sections: Sequence[SectionRow]
    passages: Sequence[PassageRow]
    terms: Sequence[Term] = ()
    cards: Sequence[Symbol] = ()
    kernels: Sequence[Sample] = ()


@dataclass(frozen=True)
class _Header:
    documents: tuple[StoredDocument, ...]
    abouts: tuple[About, ...]
    section_abouts: tuple[About, ...]


_HEADER = TypeAdapter(_Header)
_CARDS = TypeAdapter(list[Symbol])
_KERNELS = TypeAdapter(list[Sample])
_TERMS = TypeAdapter(list[Term])


@dataclass(frozen=True, eq=False)
class Segment:
    """Columns and records. Rows of passages and of sections are numbered from 0.

    Of passages: seqs, ids; section_rows, the row of the section; document_places; prose, per mille;
    code, whether it is a block of code; characters, of the text; about, the index in `abouts`;
    embedded, whether `vectors` (rows, dimension) has its vector, which is zero otherwise; codes,
    code_steps and code_errors, see `Codes`; uses, see `Uses`; reads,
    see `reads`.

    Of sections: section_seqs, section_ids, section_parents (ids, 0 at the top), section_tokens (of
    its text), section_documents, section_about, section_uses and section_reasons. The passages of
    section s, in reading order, are the rows `members[member_starts[s]:member_starts[s + 1]]`.
    `words` describes the word indexes.
    """

    arrays: Arrays
    blobs: Mapping[str, memoryview]
    documents: tuple[StoredDocument, ...]
    abouts: tuple[About, ...]
    section_abouts: tuple[About, ...]
    name: str = ""
    size: int = 0  # bytes of the file

    def __getattr__(self, name: str) -> NDArray[Any]:
        try:
            return self.arrays[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def rows(self) -> int:
        """The number of passages."""
        return len(self.arrays["seqs"])

    def passage(self, row: int) -> list[Any]:
        """The record of a passage; see `PassageRow`."""
        record: list[Any] = orjson.loads(self.packed("passages", row))
        return record

    def section(self, row: int) -> list[Any]:
        """The record of a section; see `SectionRow`."""
        record: list[Any] = orjson.loads(self.packed("sections", row))
        return record

    def cards(self, document: int) -> list[Symbol]:
        """The cards of a document, by its index."""
        return _CARDS.validate_json(bytes(self.packed("cards", document)))

    def kernels(self, document: int) -> list[Sample]:
        """The samples of a document, by its index."""
        return _KERNELS.validate_json(bytes(self.packed("kernels", document)))

    def terms(self, document: int) -> list[Term]:
        """The terms for concepts in a document, by its index."""
        return _TERMS.validate_json(bytes(self.packed("terms", document)))

    def packed(self, blob: str, row: int) -> memoryview:
        """One stored record."""
        starts = self.arrays[f"{blob}_at"]
        return self.blobs[blob][starts[row] : starts[row + 1]]


def number_of(identity: str) -> int:
    """The number in an id such as `psg_0123456789abcdef`."""
    return int(identity.rpartition("_")[2], 16)


def runs_of(about: NDArray[np.int32], admitted: NDArray[np.bool_]) -> Rows:
    """Starts and ends of the runs of rows of admitted scopes, alternating; `about` is ascending."""
    edges = np.flatnonzero(np.diff(admitted, prepend=False, append=False))
    return np.searchsorted(about, edges)


# -- files


def write_segment(segment: Segment, path: Path) -> None:
    """Write a segment atomically."""
    blobs = {name: np.frombuffer(blob, np.uint8) for name, blob in segment.blobs.items()}
    parts = {**segment.arrays, **blobs}
    places: dict[str, tuple[str, tuple[int, ...], int]] = {}
    offset = 0
    for name, array in parts.items():
        offset = _aligned(offset)
        places[name] = (array.dtype.str, array.shape, offset)
        offset += array.nbytes
    head = json.dumps({"arrays": places, "blobs": list(blobs)}).encode()
    header = _HEADER.dump_json(_Header(segment.documents, segment.abouts, segment.section_abouts))
    start = _aligned(len(MAGIC) + 16 + len(head) + len(header))
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    with scratch.open("wb") as file:
        file.write(MAGIC)
        file.write(len(head).to_bytes(8, "little") + len(header).to_bytes(8, "little"))
        file.write(head + header)
        for name, array in parts.items():
            file.seek(start + places[name][2])
            file.write(np.ascontiguousarray(array).data)
        file.truncate(start + offset)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def open_segment(path: Path) -> Segment:
    """Map a segment. Raises OSError if it is missing and ValueError if it is damaged."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = memoryview(mapped)
    at = len(MAGIC)
    if bytes(view[:at]) != MAGIC:
        raise ValueError(f"{path} is no segment")
    head_size = int.from_bytes(view[at : at + 8], "little")
    header_size = int.from_bytes(view[at + 8 : at + 16], "little")
    at += 16
    head = json.loads(bytes(view[at : at + head_size]))
    header = _HEADER.validate_json(bytes(view[at + head_size : at + head_size + header_size]))
    start = _aligned(at + head_size + header_size)
    arrays: dict[str, NDArray[Any]] = {}
    blobs: dict[str, memoryview] = {}
    for name, (kind, shape, offset) in head["arrays"].items():
        dtype, count = np.dtype(kind), math.prod(shape)
        if start + offset + count * dtype.itemsize > size:
            raise ValueError(f"{path} is cut off")
        if name in head["blobs"]:
            blobs[name] = view[start + offset : start + offset + count]
        elif count:
            arrays[name] = np.frombuffer(mapped, dtype, count, start + offset).reshape(shape)
        else:
            arrays[name] = np.zeros(shape, dtype)
    return Segment(
        arrays, blobs, header.documents, header.abouts, header.section_abouts, path.name, size
    )


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


# -- from documents


def build_segment(documents: Sequence[DocumentRows], heading_weight: float) -> Segment:
    passages = [(n, p) for n, d in enumerate(documents) for p in d.passages]
    sections = [(n, s) for n, d in enumerate(documents) for s in d.sections]
    abouts, about, order = _by_scope([p.about for _, p in passages], [p.seq for _, p in passages])
    section_abouts, section_about, section_order = _by_scope(
        [s.about for _, s in sections], [s.seq for _, s in sections]
    )
    first = np.cumsum([0, *(len(d.sections) for d in documents)])
    section_rows = _inverse(section_order)[
        np.array([int(first[n]) + p.section for n, p in passages], np.int64)
    ][order]
    passages = [passages[n] for n in order.tolist()]
    sections = [sections[n] for n in section_order.tolist()]
    width = next((len(p.vector) // 4 for _, p in passages if p.vector is not None), 0)
    vectors = np.zeros((len(passages), width), np.float32)
    for row, (_, p) in enumerate(passages):
        if p.vector is not None:
            vectors[row] = np.frombuffer(p.vector, "<f4")
    parents = [number_of(s.record[0]) if s.record[0] else 0 for _, s in sections]
    arrays: dict[str, NDArray[Any]] = {
        "seqs": np.array([p.seq for _, p in passages], np.int64),
        "ids": np.array([number_of(p.id) for _, p in passages], np.uint64),
        "section_rows": section_rows.astype(np.int32),
        "document_places": np.array([n for n, _ in passages], np.int32),
        "prose": np.array([p.prose for _, p in passages], np.int32),
        "code": np.array([p.code for _, p in passages], np.bool_),
        "characters": np.array([p.characters for _, p in passages], np.int32),
        "about": about,
        "embedded": np.array([p.vector is not None for _, p in passages], np.bool_),
        "vectors": vectors,
        **coded(vectors).columns(),
        "section_seqs": np.array([s.seq for _, s in sections], np.int64),
        "section_ids": np.array([number_of(s.id) for _, s in sections], np.uint64),
        "section_parents": np.array(parents, np.uint64),
        "section_tokens": np.array([s.tokens for _, s in sections], np.int32),
        "section_documents": np.array([n for n, _ in sections], np.int32),
        "section_about": section_about,
    }
    arrays |= _members(arrays)
    bodies: list[list[str]] = [[] for _ in sections]
    headings = [""] * len(sections)
    for row in arrays["members"].tolist():
        heading, body = passages[row][1].words
        bodies[section_rows[row]].append(body)
        headings[section_rows[row]] = heading
    rows = {
        "passage": [LevelRow(_scope_tokens(p.about), *p.words) for _, p in passages],
        "section": [
            LevelRow(_scope_tokens(s.about), headings[row], " ".join((*bodies[row], _asked(s))))
            for row, (_, s) in enumerate(sections)
        ],
    }
    for level in LEVELS:
        arrays |= index_words(level, rows[level], heading_weight)
    ontology = load_ontology()
    own = [own_names(ontology, d.document.title, d.document.hardware, d.terms) for d in documents]
    uses = uses_of(arrays, load_signals().ids, ontology, own)
    texts = ["\n".join(p.record[2:4]) for _, p in passages]
    arrays["reads"] = reads_of(arrays, [s.lines for _, s in sections], texts)
    arrays |= {
        "uses": uses.passages,
        "section_uses": uses.sections,
        "section_reasons": uses.reasons,
    }
    terms = lexicon_of(arrays, ontology, own, [d.terms for d in documents])
    records = {
        "passages": [orjson.dumps(p.record) for _, p in passages],
        "sections": [orjson.dumps(s.record) for _, s in sections],
        "cards": [_CARDS.dump_json(list(d.cards)) for d in documents],
        "kernels": [_KERNELS.dump_json(list(d.kernels)) for d in documents],
        "terms": [_TERMS.dump_json(own_terms) for own_terms in terms],
    }
    ends, blobs = _packed(records)
    stored = tuple(d.document for d in documents)
    return Segment(arrays | ends, blobs, stored, abouts, section_abouts)


def _asked(section: SectionRow) -> str:
    """The words of the lines that a model wrote about a section, as tokens."""
    return shadow("\n".join(line.line for line in section.lines or ()))


def _packed(
    records: Mapping[str, Sequence[bytes]],
) -> tuple[dict[str, NDArray[Any]], dict[str, memoryview]]:
    ends = {
        f"{name}_at": np.cumsum([0, *map(len, packed)]).astype(np.int64)
        for name, packed in records.items()
    }
    return ends, {name: memoryview(b"".join(packed)) for name, packed in records.items()}


def _members(arrays: Arrays) -> dict[str, NDArray[Any]]:
    of_section = arrays["section_rows"]
    members = np.lexsort((arrays["seqs"], of_section)).astype(np.int32)
    sections = np.arange(len(arrays["section_seqs"]) + 1)
    return {
        "members": members,
        "member_starts": np.searchsorted(of_section[members], sections).astype(np.int64),
    }


def _scope_tokens(about: About) -> int:
    """The number of tokens that the scope of a row adds to its length (see `words`)."""
    return len(about.hardware) + 1 + max(1, len(about.languages))


def _by_scope(
    abouts: Sequence[About], seqs: Sequence[int]
) -> tuple[tuple[About, ...], NDArray[np.int32], Rows]:
    """The distinct scopes, the scope of each row, and the order of rows: by scope, then by number.
    Scopes about the same hardware are adjacent."""
    different = sorted(set(abouts), key=lambda a: (a.hardware, a.category, *a))
    place = {about: n for n, about in enumerate(different)}
    ranks = np.array([place[about] for about in abouts], np.int32)
    order = np.lexsort((np.array(seqs, np.int64), ranks))
    return tuple(different), ranks[order], order


def _inverse(order: Rows) -> Rows:
    """The new row of each former row."""
    rows = np.empty(len(order), np.int64)
    rows[order] = np.arange(len(order))
    return rows


# -- from segments


class SegmentPart(NamedTuple):
    """A segment without some of its documents, by index."""

    segment: Segment
    without: frozenset[int] = frozenset()


def merge_segments(parts: Sequence[SegmentPart]) -> Segment:
    """The remaining documents of several segments as one; the others are dropped."""
    rest = [_Remainder.of(part) for part in parts]
    abouts, about, order = _merged_scopes(
        [(k.segment.abouts, k.segment.about[k.rows], k.segment.seqs[k.rows]) for k in rest]
    )
    section_abouts, section_about, section_order = _merged_scopes(
        [
            (k.segment.section_abouts, k.segment.section_about[k.sections], k.section_seqs)
            for k in rest
        ]
    )
    widths = [k.segment.vectors.shape[1] for k in rest if k.segment.vectors.shape[1]]
    width = widths[0] if widths else 0
    section_row = _inverse(section_order)
    first_section = np.cumsum([0, *(len(k.sections) for k in rest)])
    first_document = np.cumsum([0, *(len(k.documents) for k in rest)])

    def joined(arrays: Sequence[NDArray[Any]], order: Rows) -> NDArray[Any]:
        return np.concatenate(arrays)[order]

    arrays: dict[str, NDArray[Any]] = {
        name: joined([k.segment.arrays[name][k.rows] for k in rest], order)
        for name in (
            *("seqs", "ids", "prose", "code", "characters", "embedded", "uses"),
            *("code_steps", "code_errors"),
            "reads",
        )
    }
    arrays |= {
        name: joined([k.segment.arrays[name][k.sections] for k in rest], section_order)
        for name in (
            *("section_seqs", "section_ids", "section_parents", "section_tokens"),
            *("section_uses", "section_reasons"),
        )
    }
    of_section = [k.section_place[k.segment.section_rows[k.rows]] for k in rest]
    of_document = [k.document_place[k.segment.document_places[k.rows]] for k in rest]
    by_document = [k.document_place[k.segment.section_documents[k.sections]] for k in rest]
    arrays |= {
        "about": about,
        "section_about": section_about,
        "section_rows": section_row[joined(_shifted(of_section, first_section), order)].astype(
            np.int32
        ),
        "document_places": joined(_shifted(of_document, first_document), order).astype(np.int32),
        "section_documents": joined(_shifted(by_document, first_document), section_order).astype(
            np.int32
        ),
    }
    arrays |= {
        name: joined([k.wide(name, width) for k in rest], order) for name in ("vectors", "codes")
    }
    arrays |= _members(arrays)
    arrays |= merge_words(
        "passage", [(k.segment.arrays, k.rows) for k in rest], _inverse(order)
    ) | merge_words("section", [(k.segment.arrays, k.sections) for k in rest], section_row)
    chosen = {
        "passages": [k.segment.packed("passages", r) for k in rest for r in k.rows.tolist()],
        "sections": [k.segment.packed("sections", r) for k in rest for r in k.sections.tolist()],
    }
    records = {
        "passages": [chosen["passages"][n] for n in order.tolist()],
        "sections": [chosen["sections"][n] for n in section_order.tolist()],
    } | {
        name: [k.segment.packed(name, d) for k in rest for d in k.documents]
        for name in ("cards", "kernels", "terms")
    }
    ends, blobs = _packed(records)
    documents = tuple(k.segment.documents[d] for k in rest for d in k.documents)
    return Segment(arrays | ends, blobs, documents, abouts, section_abouts)


class _Remainder(NamedTuple):
    """The remainder of a segment: indexes of documents, rows of passages and of sections, and the
    new index of each former section and document."""

    segment: Segment
    documents: list[int]
    rows: Rows
    sections: Rows
    section_place: Rows
    document_place: Rows

    @classmethod
    def of(cls, part: SegmentPart) -> _Remainder:
        segment = part.segment
        documents = [n for n in range(len(segment.documents)) if n not in part.without]
        rows = np.flatnonzero(np.isin(segment.document_places, documents))
        sections = np.flatnonzero(np.isin(segment.section_documents, documents))
        section_place = np.zeros(len(segment.section_seqs), np.int64)
        section_place[sections] = np.arange(len(sections))
        document_place = np.zeros(len(segment.documents), np.int64)
        document_place[documents] = np.arange(len(documents))
        return cls(segment, documents, rows, sections, section_place, document_place)

    @property
    def section_seqs(self) -> NDArray[np.int64]:
        return self.segment.section_seqs[self.sections]

    def wide(self, name: str, width: int) -> NDArray[Any]:
        """The rows of a column of vectors; zeros if the segment has none."""
        own = self.segment.arrays[name]
        return own[self.rows] if own.shape[1] else np.zeros((len(self.rows), width), own.dtype)


def _shifted(places: Sequence[Rows], first: Rows) -> list[Rows]:
    return [own + start for own, start in zip(places, first.tolist(), strict=False)]


def _merged_scopes(
    parts: Sequence[tuple[tuple[About, ...], NDArray[np.int32], NDArray[np.int64]]],
) -> tuple[tuple[About, ...], NDArray[np.int32], Rows]:
    """Like `_by_scope`, for rows that have their scopes by index."""
    used = [about[n] for about, places, _ in parts for n in np.unique(places).tolist()]
    different = sorted(set(used), key=lambda a: (a.hardware, a.category, *a))
    rank = {about: n for n, about in enumerate(different)}
    ranks = np.concatenate(
        [
            np.array([rank.get(about, 0) for about in abouts] or [0], np.int32)[places]
            for abouts, places, _ in parts
        ]
    )
    order = np.lexsort((np.concatenate([seqs for *_, seqs in parts]), ranks))
    return tuple(different), ranks[order], order


READ = 200  # the value of an answer
UNREAD = 255  # the value of a passage whose section no model has read
PARTLY = 0.5  # share of a section that helps in part
BESIDE = 0.6  # share of a passage without the quote


def reads_of(
    arrays: Mapping[str, NDArray[Any]],
    lines: Sequence[Sequence[ReadLine] | None],
    texts: Sequence[str],
) -> NDArray[np.uint8]:
    """(rows, signals) from 0 to READ, or UNREAD. `lines` are those of each section, `texts` those
    of each passage."""
    signals = {signal: column for column, signal in enumerate(load_signals().ids)}
    reads = np.full((len(texts), len(signals)), UNREAD, np.uint8)
    starts, members = arrays["member_starts"], arrays["members"]
    for section, own in enumerate(lines):
        if own is None:
            continue
        rows = members[starts[section] : starts[section + 1]]
        reads[rows] = 0
        plain = [" ".join(texts[row].split()) for row in rows.tolist()]
        for line in own:
            if line.signal not in signals:
                continue
            value = READ if line.grade == 2 else PARTLY * READ
            quote = " ".join(line.quote.split())
            column = signals[line.signal]
            holds = [quote in text for text in plain]
            # A quote over the end of a passage is in none of them.
            shares = [1.0 if held or not any(holds) else BESIDE for held in holds]
            reads[rows, column] = np.rint(value * np.array(shares)).astype(np.uint8)
    return reads


Vector = NDArray[np.float32]
CODE_COLUMNS = ("codes", "code_steps", "code_errors")
LARGEST_CODE = 127  # of a code
CODE_ROUNDING = 1e-5  # equal texts have cosines that differ by less, in the last bits of a product


class Codes(NamedTuple):
    """Rows of `codes` (rows, dimension); code times step differs from the vector by a vector of the
    length of the error."""

    codes: NDArray[np.int8]
    steps: NDArray[np.float32]
    errors: NDArray[np.float32]

    def columns(self) -> dict[str, NDArray[Any]]:
        """The arrays by the names of a segment's columns."""
        return dict(zip(CODE_COLUMNS, self, strict=True))


def coded(vectors: Vector) -> Codes:
    """The codes of vectors of shape (rows, dimension)."""
    steps = np.abs(vectors).max(1, initial=0.0) / LARGEST_CODE
    steps[steps == 0] = 1.0
    codes = np.rint(vectors / steps[:, None]).astype(np.int8)
    errors = np.linalg.norm(vectors - codes * steps[:, None], axis=1)
    return Codes(codes, steps.astype(np.float32), errors.astype(np.float32))


def nearest(
    groups: Iterable[tuple[Mapping[str, NDArray[Any]], Sequence[tuple[int, int]]]],
    vector: Vector,
    limit: int,
) -> dict[int, float]:
    """At most `limit` rows nearest to a unit vector, best first: number -> cosine. `groups` are the
    columns of segments, each with the starts and ends of the runs of rows to search."""
    query = coded(vector[None])
    found: list[tuple[Mapping[str, NDArray[Any]], int, NDArray[np.float64]]] = []
    lower: list[NDArray[np.float64]] = []
    for columns, runs in groups:
        for start, stop in runs:
            products = np.asarray(
                simsimd.cdist(query.codes, columns["codes"][start:stop], metric="dot")
            )
            cosines = products[0] * (columns["code_steps"][start:stop] * float(query.steps[0]))
            errors = columns["code_errors"][start:stop].astype(np.float64)
            margin = errors + (1 + errors) * float(query.errors[0]) + CODE_ROUNDING
            found.append((columns, start, cosines + margin))
            lower.append(cosines - margin)
    if not found:
        return {}
    least = np.concatenate(lower)
    worst = np.partition(least, -limit)[-limit] if len(least) > limit else -np.inf
    numbers, exact = [], []
    for columns, start, upper in found:
        rows = start + np.flatnonzero(upper >= worst)
        numbers.append(columns["seqs"][rows])
        exact.append((columns["vectors"][rows] @ vector).astype(np.float64))
    seqs, places = np.unique(np.concatenate(numbers), return_index=True)
    values = np.concatenate(exact)[places]
    order = np.argsort(-np.round(values, 5), kind="stable")[:limit]
    return dict(zip(seqs[order].tolist(), values[order].tolist(), strict=True))
