"""Store a read version in the catalog: its content and its findings, and the progress of its job.

Everything happens in the caller's transaction. Knows nothing about parsing and leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ingestion.builtin.samples import with_checks
from ingestion.findings.subjects import FactSource, proposals
from ingestion.hardware import outdated_remarks
from ingestion.read import ReadDocument
from kb.catalog import tables as t
from kb.catalog.facts import Fact, outdated_facts, withdraw_proposals
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.knowledge import corrections, likeness, versions
from kb.catalog.knowledge.moves import replace_document_moves
from kb.catalog.knowledge.samples import replace_document_recipes, replace_version_samples
from kb.catalog.knowledge.symbols import replace_version_symbols
from kb.catalog.work import Job

MAX_NAMED = 12  # headings without a card, in a remark
MAX_LISTED = 20  # rows of each list in a job
_COUNTS = ("pages_seen", "pages_parsed", "sections", "passages", "tables", "code_blocks")


def store_version(
    connection: Connection,
    registry: HardwareRegistry,
    job: Job,
    version: sa.Row[Any],
    read: ReadDocument,
) -> dict[str, Any]:
    """Make a version current with all that was read in it; returns the progress of its job."""
    if job.payload.get("title_given"):  # by its sender, so it wins
        read = replace(read, content=replace(read.content, title=None))
    uploaded = version.origin != "builtin"
    earlier = likeness.before(connection, version.document_id) if uploaded else None
    first = versions.is_first(connection, version.id)  # then there is nothing to replace
    passages = versions.activate(connection, version.id, read.content)
    current = versions.is_current(connection, version.id)
    proposed = 0
    if current:
        if not first:
            withdraw_proposals(connection, version.document_id)
        proposed = registry.propose(connection, _proposals(connection, registry, version, read))
        if read.moves or not first:
            hardware = sorted(version.declared["hardware"])
            replace_document_moves(connection, version.document_id, read.moves, hardware)
        if read.recipes or not first:
            replace_document_recipes(connection, version.id, read.recipes)
    if read.cards or not first:
        replace_version_symbols(connection, version.id, read.cards, current)
    if read.kernels or not first:
        kernels = read.kernels if uploaded else with_checks(read.kernels, read.front_matter)
        replace_version_samples(connection, version.id, kernels, current)
    remarks = likeness.remarks(connection, version.id, earlier) if earlier and current else []
    if current and not first:
        remarks += corrections.remarks(corrections.unfit(connection, version.document_id))
        remarks += outdated_remarks(outdated_facts(connection, document_id=version.document_id))
    return _progress(read, remarks, passages, proposed)


def _proposals(
    connection: Connection, registry: HardwareRegistry, version: sa.Row[Any], read: ReadDocument
) -> list[Fact]:
    """The facts of a document as rows of its hardware, with its current title."""
    if not read.facts:
        return []
    title = connection.execute(
        sa.select(t.documents.c.title).where(t.documents.c.id == version.document_id)
    ).scalar_one()
    file_name = version.file_name
    source = FactSource(version.document_id, version.id, title or file_name, file_name)
    headings = [" > ".join(section.path) for section in read.content.sections]
    texts = [*headings, *(passage.text for passage in read.content.passages)]
    hardware = sorted(version.declared["hardware"])
    return proposals(read.facts, source, hardware, registry.all(), texts)


def _progress(
    read: ReadDocument, remarks: Sequence[str], passages: int, proposed: int
) -> dict[str, Any]:
    """The progress of a job whose document was read and has to be embedded: its final state, the
    counts of the report, and the first rows of its lists.
    """
    report = {**read.content.report, "passages": passages}
    left_out = [f"{' > '.join(s.section[-2:])}: {s.reason}" for s in read.samples_left_out]
    return {
        "stage": "embedding",
        "state": "ready" if read.complete else "partial",
        **{key: report[key] for key in _COUNTS},
        "pages_failed": report["pages_failed"][:MAX_LISTED],
        "characters_left_out": report["characters_left_out"],
        "facts_proposed": proposed,
        "rows_not_read": report.get("rows_not_read", [])[:MAX_LISTED],
        "recipes_proposed": len(read.recipes),
        "symbols": len(read.cards),
        "samples": len(read.kernels),
        "samples_left_out": left_out[:MAX_LISTED],
        "warnings": report["warnings"][:MAX_LISTED],
        "remarks": [*remarks, *_without_card(report.get("headings_without_card", []))],
    }


def _without_card(names: Sequence[str]) -> list[str]:
    """A remark on headings that look like instructions and gave no card."""
    if not names:
        return []
    shown = ", ".join(names[:MAX_NAMED]) + (", ..." if len(names) > MAX_NAMED else "")
    several = len(names) > 1
    look = "headings look like instructions" if several else "heading looks like an instruction"
    return [
        f"{len(names)} {look} and gave no card: {shown}. A line such as `Syntax: {names[0]} ...`"
        " under the heading, or a table with a column Instruction, gives one; `kernlore knowledge"
        " symbols --propose` asks a language model."
    ]
