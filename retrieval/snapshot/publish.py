"""Read documents from the catalog as rows of a segment. Everything that depends on a text alone is
computed here, once: tokens, words, scopes, counts.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import tables as t
from kb.catalog.engine import portions
from kb.catalog.knowledge import samples, symbols
from kb.catalog.knowledge.passages import About
from kb.catalog.knowledge.samples import Sample
from kb.catalog.knowledge.section_texts import Piece, section_text
from kb.catalog.knowledge.symbols import Symbol
from kb.prompt_tokens import count_once
from kb.scope import ANY
from kb.tokens import shadow
from retrieval.snapshot.lexicon import SectionTexts, corrected, terms_of
from retrieval.snapshot.ontology import load_ontology
from retrieval.snapshot.segment import DocumentRows, PassageRow, SectionRow, StoredDocument

PORTION = 50  # documents read at a time


def document_stamps(connection: Connection) -> dict[str, int]:
    """The state of every document that answers may quote, by id."""
    rows = connection.execute(
        sa.select(t.documents.c.id, t.documents.c.stamp).where(
            t.documents.c.current_version_id.is_not(None)
        )
    )
    return {row.id: row.stamp for row in rows}


def read_documents(
    connection: Connection, stamps: Mapping[str, int], model: str
) -> Iterator[DocumentRows]:
    """These documents with the rows that answers may quote; vectors are of this model."""
    ids = sorted(stamps)
    for start in range(0, len(ids), PORTION):
        yield from _read(connection, ids[start : start + PORTION], stamps, model)


def _read(
    connection: Connection, ids: Sequence[str], stamps: Mapping[str, int], model: str
) -> list[DocumentRows]:
    documents = connection.execute(
        sa.select(
            t.documents.c.id,
            t.documents.c.title,
            t.documents.c.category,
            t.documents.c.access_scope,
            t.documents.c.source_key,
            t.document_versions.c.number,
            t.document_versions.c.id.label("version_id"),
        )
        .join(t.document_versions, t.document_versions.c.id == t.documents.c.current_version_id)
        .where(t.documents.c.id.in_(ids))
        .order_by(t.documents.c.id)
    ).all()
    scopes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in connection.execute(
        sa.select(t.document_scopes)
        .where(t.document_scopes.c.document_id.in_(ids))
        .order_by(t.document_scopes.c.value)
    ):
        scopes[row.document_id, row.kind].append(row.value)
    versions = [row.version_id for row in documents]
    decided = _terms_decided(connection)
    sections = _sections(connection, versions)
    passages = _passages(connection, versions, model)
    cards: dict[str, list[Symbol]] = defaultdict(list)
    for card in symbols.of_versions(connection, versions):
        cards[card.document_id].append(card)
    kernels: dict[str, list[Sample]] = defaultdict(list)
    for kernel in samples.of_versions(connection, versions):
        kernels[str(kernel.document_id)].append(kernel)
    return [
        _document(
            row,
            stamps[row.id],
            tuple(scopes[row.id, "hardware"]),
            tuple(scopes[row.id, "language"]),
            sections[row.version_id],
            passages[row.version_id],
            cards[row.id],
            kernels[row.id],
            {term: c for chip in scopes[row.id, "hardware"] for term, c in decided(chip).items()},
        )
        for row in documents
    ]


def _terms_decided(connection: Connection) -> Callable[[str], Mapping[str, str]]:
    """The terms that the description of each hardware states, with their concepts."""
    columns = t.hardware.c
    query = sa.select(columns.id, columns.spec).where(columns.spec.contains("[terms]"))
    stated = {row.id: tomllib.loads(row.spec).get("terms", {}) for row in connection.execute(query)}
    return lambda chip: stated.get(chip, {})


def _sections(connection: Connection, versions: Sequence[str]) -> dict[str, list[sa.Row[Any]]]:
    rows: dict[str, list[sa.Row[Any]]] = defaultdict(list)
    for row in connection.execute(
        sa.select(t.sections)
        .where(t.sections.c.version_id.in_(versions))
        .order_by(t.sections.c.ordinal)
    ):
        rows[row.version_id].append(row)
    return rows


def _passages(
    connection: Connection, versions: Sequence[str], model: str
) -> dict[str, list[dict[str, Any]]]:
    """The active passages of versions, with hardware, tags and vector."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    by_id: dict[str, dict[str, Any]] = {}
    query = (
        sa.select(t.passages, t.embeddings.c.vector)
        .outerjoin(
            t.embeddings,
            sa.and_(
                t.embeddings.c.text_sha256 == t.passages.c.embed_sha256,
                t.embeddings.c.model_fingerprint == model,
            ),
        )
        .where(t.passages.c.version_id.in_(versions), t.passages.c.active.is_(True))
        .order_by(t.passages.c.seq)
    )
    for row in connection.execute(query):
        passage = {**row._mapping, "hardware": [], "tags": []}
        rows[row.version_id].append(passage)
        by_id[row.id] = passage
    for part in portions(list(by_id)):
        for link in connection.execute(
            sa.select(t.passage_hardware)
            .where(t.passage_hardware.c.passage_id.in_(part))
            .order_by(t.passage_hardware.c.hardware_id)
        ):
            by_id[link.passage_id]["hardware"].append(link.hardware_id)
        for tag in connection.execute(
            sa.select(t.passage_tags)
            .where(t.passage_tags.c.passage_id.in_(part), t.passage_tags.c.kind == "signal")
            .order_by(t.passage_tags.c.value)
        ):
            by_id[tag.passage_id]["tags"].append((tag.kind, tag.value))
    return rows


def _document(
    row: Any,
    stamp: int,
    hardware: tuple[str, ...],
    languages: tuple[str, ...],
    sections: Sequence[sa.Row[Any]],
    passages: Sequence[Mapping[str, Any]],
    cards: Sequence[Symbol],
    kernels: Sequence[Sample],
    decided: Mapping[str, str],
) -> DocumentRows:
    used = {passage["section_id"] for passage in passages}
    shown = [section for section in sections if section.id in used]
    place = {section.id: n for n, section in enumerate(shown)}
    headings = {section.id: shadow(" ".join(section.path[-3:])) for section in shown}
    chips = tuple(sorted({chip for card in cards for chip in card.hardware}))

    def about(scope: Sequence[str]) -> About:
        return About(row.access_scope, row.category, tuple(sorted(scope)), languages, hardware)

    document = StoredDocument(
        id=row.id,
        stamp=stamp,
        title=row.title,
        category=row.category,
        owner=row.access_scope,
        version=row.number,
        source_key=row.source_key,
        hardware=hardware,
        languages=languages,
        passages=len(passages),
        embedded=sum(p["vector"] is not None for p in passages),
        card_chips=chips if cards else None,
        kernels=len(kernels),
    )
    pieces: dict[str, list[Piece]] = {section.id: [] for section in shown}
    for p in passages:
        piece = Piece(p["kind"], p["lead"], p["text"], p["language"])
        pieces[p["section_id"]].append(piece)
    section_rows = [
        SectionRow(
            section.seq,
            section.id,
            about(section.hardware_scope or hardware or (ANY,)),
            (section.parent_id, section.ordinal, section.level, section.path),
            count_once(section_text(pieces[section.id])),
        )
        for section in shown
    ]
    passage_rows = [
        PassageRow(
            seq=p["seq"],
            id=p["id"],
            section=place[p["section_id"]],
            prose=p["prose"],
            code=p["kind"] == "code",
            characters=len(p["text"]),
            about=about(p["hardware"]),
            record=[
                *(p[name] for name in ("ordinal", "kind", "lead", "text", "language")),
                *(p[name] for name in ("page_index", "page_label", "boxes", "corrected", "tags")),
            ],
            words=(headings[p["section_id"]], shadow(f"{p['lead']}\n{p['text']}")),
            vector=p["vector"],
        )
        for p in passages
    ]
    read = (
        SectionTexts(section.id, section.path, [piece.text for piece in pieces[section.id]])
        for section in shown
    )
    terms = corrected(terms_of(read, load_ontology()), decided)
    return DocumentRows(document, section_rows, passage_rows, terms, cards, kernels)
