"""Rows that look like those of real documents and runs, made fast: words by Zipf's law, vectors in
clusters, chips that each have their own manuals. Nothing of it means anything.

Rows go into the tables of a catalog as the product writes them, but without reading any document.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from kb import clock
from kb.catalog.dialect import driver_sql
from kb.catalog.knowledge import lexical
from kb.catalog.knowledge.lexical import LexicalRow, row_scope

MODEL = "synthetic-384"
WIDTH, CLUSTERS = 384, 1_000
WORDS, SHAPE = 200_000, 1.3  # distinct words; the exponent of their frequencies
# Words of a passage and of a heading, passages of a section, sections and passages of a document.
BODY, HEADING, OF_SECTION, SECTIONS = 90, 6, 5, 100
PASSAGES = OF_SECTION * SECTIONS
CATEGORY, ACCESS = "hardware", "all"


@dataclass(frozen=True)
class Size:
    """passages of a store, spread evenly over chips, each chip with documents of its own."""

    passages: int
    chips: int

    def chip_of(self, document: int) -> str:
        """Documents of one chip come one after another, as they do when chips are added."""
        return f"chip{document % self.chips}"


class Text:
    """Words by Zipf's law."""

    def __init__(self, seed: int) -> None:
        self._chance = np.random.default_rng(seed)
        self._names = np.array([f"w{number}" for number in range(WORDS)])
        share = 1.0 / np.arange(1, WORDS + 1) ** SHAPE
        self._upto = np.cumsum(share / share.sum())

    def bodies(self, count: int, words: int) -> list[str]:
        """So many texts of about so many words."""
        drawn = np.searchsorted(self._upto, self._chance.random((count, words)))
        lengths = self._chance.integers(words // 2, words + 1, count)
        names = self._names[np.minimum(drawn, WORDS - 1)]
        return [" ".join(row[:length]) for row, length in zip(names, lengths, strict=True)]

    def query(self, words: int) -> list[str]:
        """Distinct words of a question: rarer ones than those of a text, as questions have."""
        drawn = self._chance.integers(20, 20_000, words)
        return [str(name) for name in self._names[np.unique(drawn)]]


class Vectors:
    """Unit vectors around the middles of clusters."""

    def __init__(self, seed: int) -> None:
        self._chance = np.random.default_rng(seed)
        self._middles = self._chance.standard_normal((CLUSTERS, WIDTH), np.float32)

    def drawn(self, count: int) -> NDArray[np.float32]:
        """(count, WIDTH)."""
        near = self._middles[self._chance.integers(0, CLUSTERS, count)]
        vectors = near + 0.6 * self._chance.standard_normal((count, WIDTH), np.float32)
        unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit


class Filler:
    """Writes documents into a catalog."""

    def __init__(self, size: Size, seed: int = 1) -> None:
        self._size, self.text, self.vectors = size, Text(seed), Vectors(seed)

    def add(self, connection: Connection, first: int, last: int) -> None:
        """The passages from number `first` to `last`, both multiples of PASSAGES, with their
        sections, documents, words and vectors."""
        for document in range(first // PASSAGES, last // PASSAGES):
            self._add(connection, document)

    def _add(self, connection: Connection, number: int) -> None:
        chip, now = self._size.chip_of(number), clock.now()
        document, version = f"doc_{number}", f"ver_{number}"
        first, first_section = number * PASSAGES + 1, number * SECTIONS + 1
        bodies = self.text.bodies(PASSAGES, BODY)
        headings = self.text.bodies(SECTIONS, HEADING)
        about = {"document_id": document, "kind": "hardware", "value": chip}
        insert(connection, "documents", [_document(document, version, now)])
        insert(connection, "document_scopes", [about])
        insert(connection, "document_versions", [_version(document, version, number, now)])
        sections = [
            _section(version, number, first_section + place, place, heading)
            for place, heading in enumerate(headings)
        ]
        insert(connection, "sections", sections)
        rows = [
            _passage(document, version, sections[place // OF_SECTION]["id"], first + place, body)
            for place, body in enumerate(bodies)
        ]
        insert(connection, "passages", rows)
        scoped = [{"passage_id": row["id"], "hardware_id": chip} for row in rows]
        insert(connection, "passage_hardware", scoped)
        self._add_vectors(connection, rows, now)
        _add_words(connection, chip, rows, sections)

    def _add_vectors(
        self, connection: Connection, rows: Sequence[dict[str, Any]], now: str
    ) -> None:
        drawn = np.ascontiguousarray(self.vectors.drawn(len(rows)), "<f4")
        insert(
            connection,
            "embeddings",
            [
                {
                    "text_sha256": row["embed_sha256"],
                    "model_fingerprint": MODEL,
                    "vector": vector.tobytes(),
                    "created_at": now,
                }
                for row, vector in zip(rows, drawn, strict=True)
            ],
        )


def _add_words(
    connection: Connection,
    chip: str,
    rows: Sequence[dict[str, Any]],
    sections: Sequence[dict[str, Any]],
) -> None:
    """Both levels of the lexical index."""
    scope = row_scope([chip], [], CATEGORY, ACCESS)
    words = [
        LexicalRow(row["seq"], scope, sections[place // OF_SECTION]["heading"], row["text"])
        for place, row in enumerate(rows)
    ]
    lexical.insert(connection, "passage", words)
    whole = [
        LexicalRow(
            section["seq"],
            scope,
            section["heading"],
            " ".join(row["text"] for row in rows[place * OF_SECTION : (place + 1) * OF_SECTION]),
        )
        for place, section in enumerate(sections)
    ]
    lexical.insert(connection, "section", whole)


def _document(document: str, version: str, now: str) -> dict[str, Any]:
    return {
        "id": document,
        "source_key": document,
        "title": f"Manual {document}",
        "category": CATEGORY,
        "origin": "upload",
        "current_version_id": version,
        "created_at": now,
        "updated_at": now,
        "access_scope": ACCESS,
    }


def _version(document: str, version: str, number: int, now: str) -> dict[str, Any]:
    return {
        "id": version,
        "document_id": document,
        "number": 1,
        "sha256": f"{number:064x}",
        "pipeline": "synthetic",
        "state": "current",
        "file_name": f"{document}.pdf",
        "format": "pdf",
        "size_bytes": 2_000_000,
        "blob_key": f"{number:064x}",
        "declared": "{}",
        "report": "{}",
        "created_at": now,
    }


def _section(version: str, number: int, seq: int, ordinal: int, heading: str) -> dict[str, Any]:
    return {
        "seq": seq,
        "id": f"sec_{seq}",
        "version_id": version,
        "ordinal": ordinal,
        "level": 2,
        "heading": heading,
        "path": json.dumps([f"Manual {number}", heading]),
        "page_index": ordinal,
    }


def _passage(document: str, version: str, section: str, seq: int, body: str) -> dict[str, Any]:
    return {
        "seq": seq,
        "id": f"psg_{seq:016x}",
        "document_id": document,
        "version_id": version,
        "section_id": section,
        "ordinal": seq % PASSAGES,
        "kind": "text",
        "lead": "",
        "text": body,
        "text_sha256": f"{seq:064x}",
        "embed_sha256": f"{seq:064x}",
        "boxes": "[]",
        "page_index": seq % PASSAGES // 5,
        "prose": 300,
        "active": True,
        "access_scope": ACCESS,
    }


def insert(connection: Connection, table: str, rows: Sequence[dict[str, Any]]) -> None:
    """Rows with the same columns, in one statement."""
    names = list(rows[0])
    marks = ",".join("?" * len(names))
    statement = f"INSERT INTO {table} ({','.join(names)}) VALUES ({marks})"
    values = [tuple(row[name] for name in names) for row in rows]
    connection.exec_driver_sql(driver_sql(connection, statement), values)
