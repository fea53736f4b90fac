"""From the catalog to snapshots: what a document consists of, and what is known beside documents.

Everything that follows from a text alone is computed here, once: tokens, words, scopes, counts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import meta
from kb.catalog.engine import portions
from kb.catalog.hardware import _FACT_COLUMNS, _KIND_RANK, _ORIGIN_RANK, REMOVED, Fact
from kb.catalog.knowledge import moves as move_rows
from kb.catalog.knowledge import samples as sample_rows
from kb.catalog.knowledge import symbols as symbol_rows
from kb.catalog.knowledge.passages import About
from kb.catalog.skills import EvidenceRow
from kb.catalog.skills import reading as skill_rows
from kb.catalog.skills.support import tested
from kb.catalog.tables import hardware as hardware_tables
from kb.catalog.tables import knowledge as t
from kb.catalog.tables import skills as skill_tables
from kb.hardware.schema import parse_hardware
from kb.hardware.spec import HardwareSpec
from kb.scope import ANY
from kb.tokens import shadow
from retrieval.snapshot.knowledge import Knowledge, KnownSkill
from retrieval.snapshot.segment import DocumentRows, PassageRow, SectionRow

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
    """These documents with all that answers may quote of them; vectors are of this model."""
    for part in portions(sorted(stamps), PORTION):
        yield from _read(connection, part, stamps, model)


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
    sections = _sections(connection, versions)
    passages = _passages(connection, versions, model)
    cards = _grouped(connection, symbol_rows.active_of(connection, versions))
    kernels = _grouped(connection, sample_rows.active_of(connection, versions))
    return [
        _document(
            row,
            stamps[row.id],
            tuple(scopes[row.id, "hardware"]),
            tuple(scopes[row.id, "language"]),
            sections[row.version_id],
            passages[row.version_id],
            cards.get(row.id, ()),
            kernels.get(row.id, ()),
        )
        for row in documents
    ]


def _grouped(connection: Connection, rows: Iterable[Any]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        groups[row.document_id].append(row)
    return groups


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
    row: sa.Row[Any],
    stamp: int,
    hardware: tuple[str, ...],
    languages: tuple[str, ...],
    sections: Sequence[sa.Row[Any]],
    passages: Sequence[Mapping[str, Any]],
    cards: Sequence[Any],
    kernels: Sequence[Any],
) -> DocumentRows:
    used = {passage["section_id"] for passage in passages}
    shown = [section for section in sections if section.id in used]
    place = {section.id: n for n, section in enumerate(shown)}
    headings = {section.id: shadow(" ".join(section.path[-3:])) for section in shown}

    def about(scope: Sequence[str]) -> About:
        return About(row.access_scope, row.category, tuple(sorted(scope)), languages, hardware)

    return DocumentRows(
        id=row.id,
        stamp=stamp,
        title=row.title,
        category=row.category,
        owner=row.access_scope,
        version=row.number,
        source_key=row.source_key,
        hardware=hardware,
        languages=languages,
        sections=[
            SectionRow(
                section.seq,
                section.id,
                about(section.hardware_scope or hardware or (ANY,)),
                (section.parent_id, section.ordinal, section.level, tuple(section.path)),
            )
            for section in shown
        ],
        passages=[
            PassageRow(
                seq=p["seq"],
                id=p["id"],
                section=place[p["section_id"]],
                prose=p["prose"],
                code=p["kind"] == "code",
                characters=len(p["text"]),
                about=about(p["hardware"]),
                record=(
                    p["ordinal"],
                    p["kind"],
                    p["lead"],
                    p["text"],
                    p["language"],
                    p["page_index"],
                    p["page_label"],
                    tuple(p["boxes"]),
                    bool(p["corrected"]),
                    tuple(p["tags"]),
                ),
                words=(headings[p["section_id"]], shadow(f"{p['lead']}\n{p['text']}")),
                vector=p["vector"],
            )
            for p in passages
        ],
        cards=cards,
        samples=kernels,
    )


# -- beside documents


def read_knowledge(connection: Connection, parsed: dict[str, tuple[str, HardwareSpec]]) -> Knowledge:
    """Hardware, moves, skills and verified kernels. `parsed` are descriptions by id with their
    text, so that one that has not changed is not parsed again; it is brought up to date.
    """
    moves = list(move_rows.accepted(connection))
    return Knowledge(
        specs=_specs(connection, parsed),
        facts=_facts(connection),
        moves=tuple(move for move, _, _ in moves),
        move_sections={move.id: section for move, section, _ in moves if section is not None},
        owners={move.id: owner for move, _, owner in moves},
        verified=tuple(sample_rows.verified(connection)),
        skills=tuple(_skills(connection)),
        toolchains=meta.get(connection, "toolchains") or {},
        document_hardware=_document_hardware(connection),
    )


def _specs(
    connection: Connection, parsed: dict[str, tuple[str, HardwareSpec]]
) -> dict[str, HardwareSpec]:
    hardware = hardware_tables.hardware
    rows = connection.execute(
        sa.select(hardware.c.id, hardware.c.spec)
        .where(hardware.c.origin != REMOVED)
        .order_by(hardware.c.id)
    ).all()
    for identity, text in rows:
        if identity not in parsed or parsed[identity][0] != text:
            parsed[identity] = (text, parse_hardware(text, identity))
    return {identity: parsed[identity][1] for identity, _ in rows}


def _facts(connection: Connection) -> dict[str, list[Fact]]:
    """Accepted facts by hardware, those of one key in the order in which they hold."""
    facts = hardware_tables.facts
    stated: dict[str, list[Fact]] = defaultdict(list)
    for row in connection.execute(sa.select(*_FACT_COLUMNS).where(facts.c.status == "accepted")):
        stated[row.hardware_id].append(Fact(**row._mapping))
    for own in stated.values():
        own.sort(key=lambda f: (_ORIGIN_RANK.get(f.origin, 9), _KIND_RANK.get(f.kind, 9), f.id))
    return dict(stated)


def _document_hardware(connection: Connection) -> dict[str, tuple[str, ...]]:
    about: dict[str, tuple[str, ...]] = {}
    rows = connection.execute(
        sa.select(t.document_scopes.c.document_id, t.document_scopes.c.value)
        .where(t.document_scopes.c.kind == "hardware")
        .order_by(t.document_scopes.c.value)
    )
    for document_id, value in rows:
        about[document_id] = (*about.get(document_id, ()), value)
    return about


def _skills(connection: Connection) -> Iterator[KnownSkill]:
    skills = skill_tables.skills
    heads = skill_rows.heads(connection)
    trials = tested(connection, [head.id for head in heads])
    evidence: dict[str, list[EvidenceRow]] = _evidence(connection)
    rows = connection.execute(
        sa.select(skills.c.id, skills.c.access_scope, skills.c.recipe, skills.c.metadata)
    )
    more = {row.id: row for row in rows}
    for head in heads:
        row = more[head.id]
        mends = head.transformation.lower().startswith(skill_rows.MEND)
        error = (row.metadata or {}).get("error") if mends else None
        yield KnownSkill(
            head,
            row.access_scope,
            row.recipe is not None,
            None if error is None else str(error),
            trials.get(head.id, (0, 0)),
            tuple(evidence.get(head.id, ())),
        )


def _evidence(connection: Connection) -> dict[str, list[EvidenceRow]]:
    from kb.catalog.skills.evidence import evidence_of_all

    return evidence_of_all(connection)


__all__ = ["document_stamps", "json", "read_documents", "read_knowledge"]
