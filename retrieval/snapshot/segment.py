"""A segment: some documents with their sections and passages, as one immutable mapped file.

The numbers that ranking needs are columns; what a reader needs of a passage or section is one
packed record that is decoded when it is shown. Passages and sections stand scope by scope, so that
those of a chip are a few runs of rows. A segment knows no other segment and no catalog.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kb.catalog.knowledge.passages import About
from kb.catalog.knowledge.samples import Sample
from kb.catalog.knowledge.symbols import Symbol
from retrieval.snapshot.words import Level, LevelRow, build

MAGIC = b"kernlore snapshot segment\n"
ALIGNMENT = 64  # bytes
LEVELS: tuple[Level, Level] = ("passage", "section")


class PassageRow(NamedTuple):
    """A passage to store. `about` is what a scope is checked against; `record` are the fields of
    `Passage` that only a reader needs; `vector` has the bytes of float32 numbers, None without one.
    """

    seq: int
    id: str
    section: int  # its place among the sections of the document
    prose: int
    code: bool
    characters: int  # of the text
    about: About
    record: tuple[Any, ...]
    words: tuple[str, str]  # heading and body as tokens
    vector: bytes | None


class SectionRow(NamedTuple):
    """A section to store; `record` is (parent_id, ordinal, level, path)."""

    seq: int
    id: str
    about: About
    record: tuple[Any, ...]


@dataclass(frozen=True)
class DocumentRows:
    """A document to store, of the state `stamp`. `cards` and `samples` are its active ones."""

    id: str
    stamp: int
    title: str
    category: str
    owner: str
    version: int
    source_key: str
    hardware: tuple[str, ...]
    languages: tuple[str, ...]
    sections: Sequence[SectionRow]
    passages: Sequence[PassageRow]
    cards: Sequence[Symbol] = ()
    samples: Sequence[Sample] = ()


@dataclass(frozen=True)
class StoredDocument:
    """A document as a segment lists it. `passages` and `embedded` count its passages; `cards` are
    the chips that its cards are about, None where it has no cards.
    """

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
    cards: tuple[str, ...] | None
    samples: int


@dataclass(frozen=True, eq=False)
class Segment:
    """A mapped segment. Rows of passages and of sections are counted from 0 in it.

    seqs, ids: of passages, by row; section_rows: the row of each one's section; documents_of: the
    place of its document. prose is per mille, code marks blocks of code, about is the place in
    `abouts`. vectors is (rows, dimension), zero where `embedded` is False. members: rows of the
    passages of section s, in reading order, are `members[member_starts[s]:member_starts[s + 1]]`.
    """

    path: Path
    size: int
    documents: tuple[StoredDocument, ...]
    abouts: tuple[About, ...]
    section_abouts: tuple[About, ...]
    arrays: Mapping[str, NDArray[Any]]
    blobs: Mapping[str, memoryview]
    _mapped: mmap.mmap = field(repr=False)

    def __getattr__(self, name: str) -> NDArray[Any]:
        try:
            return self.arrays[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def rows(self) -> int:
        """The number of passages."""
        return len(self.arrays["seqs"])

    def record(self, blob: str, row: int) -> Any:
        """A packed record: of `passages`, `sections`, `cards` or `samples`."""
        starts = self.arrays[f"{blob}_at"]
        return pickle.loads(self.blobs[blob][int(starts[row]) : int(starts[row + 1])])


def write_segment(path: Path, documents: Sequence[DocumentRows], heading_weight: float) -> None:
    """Write a segment; the file appears whole or not at all."""
    arrays, blobs, header = _columns(documents, heading_weight)
    places: dict[str, Any] = {}
    offset = 0
    for name, array in [*arrays.items(), *((n, np.frombuffer(b, np.uint8)) for n, b in blobs.items())]:
        offset = -(-offset // ALIGNMENT) * ALIGNMENT
        places[name] = (array.dtype.str, array.shape, offset)
        offset += array.nbytes
    head = json.dumps({"arrays": places, "blobs": list(blobs)}).encode()
    info = pickle.dumps(header, 5)
    start = len(MAGIC) + 16 + len(head) + len(info)
    start = -(-start // ALIGNMENT) * ALIGNMENT
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    with scratch.open("wb") as file:
        file.write(MAGIC)
        file.write(len(head).to_bytes(8, "little") + len(info).to_bytes(8, "little"))
        file.write(head + info)
        for name, array in arrays.items():
            file.seek(start + places[name][2])
            file.write(np.ascontiguousarray(array).data)
        for name, blob in blobs.items():
            file.seek(start + places[name][2])
            file.write(blob)
        file.truncate(start + offset)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def open_segment(path: Path) -> Segment:
    """Map a segment. Raises OSError and ValueError where it is missing or damaged."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    view = memoryview(mapped)
    at = len(MAGIC)
    if bytes(view[:at]) != MAGIC:
        raise ValueError(f"{path} is no segment")
    head_size, info_size = (int.from_bytes(view[at + 8 * n : at + 8 * n + 8], "little") for n in (0, 1))
    at += 16
    head = json.loads(bytes(view[at : at + head_size]))
    header = pickle.loads(view[at + head_size : at + head_size + info_size])
    start = -(-(at + head_size + info_size) // ALIGNMENT) * ALIGNMENT
    arrays: dict[str, NDArray[Any]] = {}
    blobs: dict[str, memoryview] = {}
    for name, (kind, shape, offset) in head["arrays"].items():
        dtype = np.dtype(kind)
        count = int(np.prod(shape))
        if start + offset + count * dtype.itemsize > size:
            raise ValueError(f"{path} is cut off")
        if name in head["blobs"]:
            blobs[name] = view[start + offset : start + offset + count]
        else:
            arrays[name] = np.frombuffer(mapped, dtype, count, start + offset).reshape(shape)
    return Segment(path, size, *header, arrays, blobs, mapped)


def as_number(identity: str) -> int:
    """The number in an id such as `psg_0123456789abcdef`."""
    return int(identity.rpartition("_")[2], 16)


# -- columns


def _columns(
    documents: Sequence[DocumentRows], heading_weight: float
) -> tuple[dict[str, NDArray[Any]], dict[str, bytes], tuple[Any, ...]]:
    passages = [(n, p) for n, d in enumerate(documents) for p in d.passages]
    sections = [(n, s) for n, d in enumerate(documents) for s in d.sections]
    abouts, passage_order, about = _by_scope([(p.about, p.seq) for _, p in passages])
    section_abouts, section_order, section_about = _by_scope([(s.about, s.seq) for _, s in sections])
    section_row = np.empty(len(sections), np.int32)
    section_row[section_order] = np.arange(len(sections), dtype=np.int32)
    first_section = np.cumsum([0, *(len(d.sections) for d in documents)])
    ordered = [passages[n] for n in passage_order.tolist()]
    ordered_sections = [sections[n] for n in section_order.tolist()]
    of_section = section_row[[int(first_section[n]) + p.section for n, p in ordered]] if ordered else np.zeros(0, np.int32)
    by_section = np.lexsort(([p.seq for _, p in ordered], of_section)) if ordered else np.zeros(0, np.int64)
    member_starts = np.searchsorted(of_section[by_section], np.arange(len(sections) + 1))
    width = next((len(p.vector) // 4 for _, p in ordered if p.vector is not None), 0)
    vectors = np.zeros((len(ordered), width), np.float32)
    for place, (_, p) in enumerate(ordered):
        if p.vector is not None:
            vectors[place] = np.frombuffer(p.vector, "<f4")
    arrays: dict[str, NDArray[Any]] = {
        "seqs": np.array([p.seq for _, p in ordered], np.int64),
        "ids": np.array([as_number(p.id) for _, p in ordered], np.uint64),
        "section_rows": of_section.astype(np.int32),
        "documents_of": np.array([n for n, _ in ordered], np.int32),
        "prose": np.array([p.prose for _, p in ordered], np.int32),
        "code": np.array([p.code for _, p in ordered], np.bool_),
        "characters": np.array([p.characters for _, p in ordered], np.int32),
        "about": about,
        "embedded": np.array([p.vector is not None for _, p in ordered], np.bool_),
        "vectors": vectors,
        "section_seqs": np.array([s.seq for _, s in ordered_sections], np.int64),
        "section_ids": np.array([as_number(s.id) for _, s in ordered_sections], np.uint64),
        "section_parents": np.array(
            [as_number(s.record[0]) if s.record[0] else 0 for _, s in ordered_sections], np.uint64
        ),
        "section_documents": np.array([n for n, _ in ordered_sections], np.int32),
        "section_about": section_about,
        "members": by_section.astype(np.int32),
        "member_starts": member_starts.astype(np.int64),
    }
    bodies: list[list[str]] = [[] for _ in ordered_sections]
    for row in by_section.tolist():
        bodies[int(of_section[row])].append(ordered[row][1].words[1])
    headings = {int(of_section[row]): p.words[0] for row, (_, p) in enumerate(ordered)}
    level_rows = {
        "passage": [LevelRow(p.seq, _scope_tokens(p.about), *p.words) for _, p in ordered],
        "section": [
            LevelRow(s.seq, _scope_tokens(s.about), headings.get(row, ""), " ".join(bodies[row]))
            for row, (_, s) in enumerate(ordered_sections)
        ],
    }
    for level in LEVELS:
        arrays |= build(level, level_rows[level], heading_weight)
    blobs: dict[str, bytes] = {}
    for name, records in (
        ("passages", [p.record for _, p in ordered]),
        ("sections", [s.record for _, s in ordered_sections]),
        ("cards", [tuple(d.cards) for d in documents]),
        ("samples", [tuple(d.samples) for d in documents]),
    ):
        packed = [pickle.dumps(record, 5) for record in records]
        arrays[f"{name}_at"] = np.cumsum([0, *map(len, packed)]).astype(np.int64)
        blobs[name] = b"".join(packed)
    stored = tuple(
        StoredDocument(
            d.id,
            d.stamp,
            d.title,
            d.category,
            d.owner,
            d.version,
            d.source_key,
            d.hardware,
            d.languages,
            len(d.passages),
            sum(p.vector is not None for p in d.passages),
            tuple(sorted({h for card in d.cards for h in card.hardware})) if d.cards else None,
            len(d.samples),
        )
        for d in documents
    )
    return arrays, blobs, (stored, abouts, section_abouts)


def _scope_tokens(about: About) -> int:
    """How many tokens the scope of a row counts in its length (see `words`)."""
    return len(about.hardware) + 1 + max(1, len(about.languages))


def _by_scope(
    rows: Sequence[tuple[About, int]],
) -> tuple[tuple[About, ...], NDArray[np.int64], NDArray[np.int32]]:
    """The different scopes, the order of rows by scope and number, and the place of each row's
    scope in that order. Scopes about the same hardware stand together.
    """
    abouts = sorted({about for about, _ in rows}, key=lambda a: (a.hardware, a.category, *a))
    place = {about: n for n, about in enumerate(abouts)}
    ranks = np.array([place[about] for about, _ in rows], np.int32)
    order = np.lexsort(([seq for _, seq in rows], ranks)) if rows else np.zeros(0, np.int64)
    return tuple(abouts), order, ranks[order]


def runs_of(about: NDArray[np.int32], admitted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Where each run of rows of admitted scopes begins and ends, in turn; `about` is ascending."""
    edges = np.flatnonzero(np.diff(admitted, prepend=False, append=False))
    return np.searchsorted(about, edges)
