"""What was read of a version into the catalog: its content, and all that is proposed or listed of
it. Everything happens in the caller's transaction. Knows nothing about parsing and jobs' turns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from ingestion.findings.proposals import Source, proposals
from ingestion.hardware import outdated_remarks
from ingestion.job_report import progress_of
from ingestion.read import ReadDocument
from ingestion.shipped_samples import believed
from kb.catalog import tables as t
from kb.catalog.facts import Fact, outdated, withdraw_proposals
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.knowledge import corrections, likeness, versions
from kb.catalog.knowledge.moves import replace_document_moves
from kb.catalog.knowledge.samples import replace_document_recipes, replace_version_samples
from kb.catalog.knowledge.symbols import replace_version_symbols
from kb.catalog.work import Job


def titled(job: Job, read: ReadDocument) -> ReadDocument:
    """What was read, without the title that the document gives itself where its sender gave one."""
    if not job.payload.get("title_given"):
        return read
    return replace(read, content=replace(read.content, title=None))


def store_version(
    connection: Connection, registry: HardwareRegistry, version: sa.Row[Any], read: ReadDocument
) -> dict[str, Any]:
    """Make a version current with all that was read in it; returns the progress of its job."""
    hardware = sorted(version.declared["hardware"])
    proposed = 0
    uploaded = version.origin != "builtin"
    earlier = likeness.before(connection, version.document_id) if uploaded else None
    first = versions.is_first(connection, version.id)  # then there is nothing to be replaced
    passages = versions.activate(connection, version.id, read.content)
    current = versions.is_current(connection, version.id)
    if current and not first:
        withdraw_proposals(connection, version.document_id)
    if current:
        rows = _proposals(connection, registry, version, read, hardware)
        proposed = registry.propose(connection, rows)
    if current and (read.moves or not first):
        replace_document_moves(connection, version.document_id, read.moves, hardware)
    if current and (read.recipes or not first):
        replace_document_recipes(connection, version.id, read.recipes)
    if read.cards or not first:
        replace_version_symbols(connection, version.id, read.cards, current)
    if read.kernels or not first:
        kernels = believed(connection, version.document_id, read.kernels, read.front_matter)
        replace_version_samples(connection, version.id, kernels, current)
    said = likeness.remarks(connection, version.id, earlier) if earlier and current else []
    if current and not first:
        said += corrections.remarks(corrections.unfit(connection, version.document_id))
        said += outdated_remarks(outdated(connection, document_id=version.document_id))
    return progress_of(read, said, facts_proposed=proposed, passages=passages)


def _proposals(
    connection: Connection,
    registry: HardwareRegistry,
    version: sa.Row[Any],
    read: ReadDocument,
    hardware: list[str],
) -> list[Fact]:
    """The facts of a document as rows of its hardware, named by the title that it now has."""
    if not read.facts:
        return []
    title = connection.execute(
        sa.select(t.documents.c.title).where(t.documents.c.id == version.document_id)
    ).scalar_one()
    file_name = version.file_name
    source = Source(version.document_id, version.id, title or file_name, file_name)
    headings = [" > ".join(section.path) for section in read.content.sections]
    texts = [*headings, *(passage.text for passage in read.content.passages)]
    return proposals(read.facts, source, hardware, registry.all(), texts)
