"""The answers of routes whose functions return plain JSON, as models for the interface description.

Nothing is checked against them at run time; the tests hold every answer of the HTTP tests against
the description. Answers may have fields beside those that are listed. Routes that name a model of
their own (`responses` of the route) are not listed.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from api.http.run_answers import (
    AcceptedStep,
    FlaggedNode,
    FlaggedNodes,
    ListedRuns,
    ListedTrajectories,
    ListedTrajectory,
    RunContext,
    RunTree,
    ShownNode,
    ShownRun,
    ShownTrajectory,
)
from ingestion.hardware import FactConflict
from kb.catalog.jobs import JobState
from kb.catalog.knowledge.documents import Section
from kb.catalog.knowledge.moves import StoredMove
from kb.catalog.knowledge.samples import StoredRecipe
from kb.catalog.skills.reading import SkillEvent
from kb.hardware.facts import SubjectKind
from kb.scope import Category
from optimizer.evaluation.queue import EvaluationJob
from retrieval.coverage import Coverage
from retrieval.diagnose.signals import Signal
from retrieval.knowledge_tree import KnowledgeNode
from skills.skill_library import SkillSummary

Json = dict[str, Any]


# -- service, questions and knowledge


class Alive(BaseModel):
    """The process accepts requests."""

    status: Literal["alive"]
    version: str


class StoredOutcome(BaseModel):
    """An outcome was stored under its retrieval."""

    retrieval_id: str
    outcome_id: str


class Signals(BaseModel):
    """The run-time signals."""

    signals: list[Signal]


class ProposedRecipes(BaseModel):
    """Recipes proposed from manuals."""

    recipes: list[StoredRecipe]


# -- documents


class DocumentVersion(BaseModel):
    """One content of a document."""

    id: str
    number: int
    state: str = Field(description="staged, current, superseded or failed.")
    sha256: str
    pipeline: str = Field(description="Fingerprint of the reader that read it.")
    file_name: str
    format: str
    size_bytes: int
    created_at: str


class ListedDocument(BaseModel):
    """A logical manual, known by its source key."""

    id: str
    source_key: str
    title: str
    category: Category
    origin: str = Field(description="builtin or upload.")
    hardware: list[str]
    languages: list[str]
    created_at: str
    updated_at: str
    passages: int
    version: DocumentVersion | None = Field(description="The current version.")
    job_id: str | None
    job_state: JobState | None


class ListedDocuments(BaseModel):
    """Documents by category and title."""

    documents: list[ListedDocument]
    total: int


class UnfitCorrection(BaseModel):
    """A correction whose text the current version of its document does not have."""

    id: str
    document_id: str
    title: str = Field(description="Title of the document.")
    target: str = Field(description="passage, section or symbol.")
    field: str = Field(description="text, tags, hardware or card.")
    text: str = Field(description="What was corrected to.")
    actor: str
    created_at: str
    path: list[str] = Field(
        description="The headings that it was made under; of a card, the name that it is about."
    )
    passage_id: str | None = Field(description="The passage of the earlier version.")


class DroppedCorrection(BaseModel):
    """A correction that was dropped."""

    id: str
    document_id: str
    dropped: bool


class ShownDocument(ListedDocument):
    """A document with its versions, newest first."""

    report: Json = Field(description="What was read of the current version: pages, warnings, ...")
    corrections_unfit: list[UnfitCorrection] = Field(
        description="To be made again; a correction under the same headings takes its place."
    )
    versions: list[DocumentVersion]


class DeletedDocument(BaseModel):
    """A document that is gone."""

    id: str
    deleted: Literal[True]
    facts_removed: int = Field(description="Facts read from it, which went with it.")
    accepted_facts_removed: int = Field(description="How many of them had been accepted.")
    facts_stated_elsewhere: int = Field(
        description="How many of the accepted values hold still, as another source states them."
    )
    note: str | None = Field(None, description="Only for one that the next start loads again.")


class Sections(BaseModel):
    """The headings of a document in reading order."""

    sections: list[Section]


class DocumentMoves(BaseModel):
    """The remedies that a document states."""

    moves: list[StoredMove]


class OfDocument(BaseModel):
    """The document of a passage, and the number of its version."""

    id: str
    title: str
    version: int


class OfSection(BaseModel):
    """The section of a passage, with its headings from the outermost."""

    id: str
    path: list[str]


class PassagePage(BaseModel):
    """`index` counts from 0; `label` is what is printed on the page."""

    index: int
    label: str | None


class PassageTag(BaseModel):
    """A signal or a topic of a passage."""

    kind: str
    value: str


class ShownPassage(BaseModel):
    """The indexed unit of a document."""

    id: str
    document: OfDocument
    category: Category
    section: OfSection
    ordinal: int
    kind: str
    lead: str = Field(description="Caption and header rows of a table that goes on here.")
    text: str
    language: str | None
    page: PassagePage | None
    boxes: list[Json] = Field(description="Its places on the page.")
    hardware: list[str]
    tags: list[PassageTag]
    corrected: bool


class OnePassage(ShownPassage):
    """A passage, and whether its document has a newer version."""

    superseded: bool = Field(description="Whether another version took the place of its own.")
    current_passage: str | None = Field(
        description="What stands in its place in the current version, where that is known."
    )


class ListedPassages(BaseModel):
    """Passages in reading order. `total` counts all of the document or section."""

    passages: list[ShownPassage]
    total: int
    offset: int
    limit: int


# -- hardware


class ListedChip(BaseModel):
    """A chip, a family or a vendor."""

    id: str
    name: str
    vendor: str
    kind: str
    parent: str | None
    lineage: list[str]
    aliases: list[str]
    languages: list[str]
    summary: str


class ListedHardware(BaseModel):
    """Every registered hardware."""

    hardware: list[ListedChip]


class RegisteredHardware(BaseModel):
    """What became of a description."""

    id: str
    outcome: Literal["created", "updated", "unchanged"]
    lineage: list[str]


class ShownHardware(ListedChip):
    """Everything that a description states."""

    facts: list[Json]
    signatures: list[Json]
    rules: list[Json]
    metrics: dict[str, Json]
    toolchains: dict[str, Json]


class Symbol(BaseModel):
    """The card of a name of a chip's language."""

    id: str
    name: str
    kind: str
    language: str
    signature: str
    operands: list[list[str]] = Field(description="Pairs of a name and what it means.")
    meaning: str
    limits: list[str]
    example: str
    further: list[str]
    hardware: list[str]
    document_id: str
    document_title: str
    version: int
    section_id: str
    path: list[str]
    corrected: bool
    origin: str
    status: str


class Symbols(BaseModel):
    """Cards, those that a query means best first."""

    symbols: list[Symbol]


class Sample(BaseModel):
    """A whole kernel, from a manual or verified here."""

    id: str
    title: str
    operator: str
    language: str
    hardware: list[str]
    shapes: list[str]
    symbols: list[str]
    code: str
    status: str
    evidence: str
    document_id: str | None
    document_title: str
    version: int | None
    section_id: str | None
    path: list[str]
    run_id: str | None


class Samples(BaseModel):
    """Whole kernels for a chip."""

    samples: list[Sample]


class ShownFact(BaseModel):
    """One number about a hardware with its source."""

    id: str
    hardware_id: str = Field(description="The hardware that states it.")
    key: str
    value: float | str = Field(description="The number in `unit`, or the text of one without.")
    number: float | None
    text: str
    unit: str
    kind: str = Field(description="datasheet, measured or derived.")
    status: str
    origin: str
    title: str
    publisher: str
    locator: str
    inherited: bool
    subject: str | None
    subject_kind: SubjectKind | None
    document_id: str | None


class NowStated(BaseModel):
    """What the current version of a document states."""

    fact_id: str
    value: float | str
    status: str


class OutdatedFact(BaseModel):
    """An accepted fact of a version of a document that another one has replaced."""

    hardware_id: str
    key: str
    unit: str
    subject: str | None
    document_id: str
    title: str = Field(description="Title of the version that states it.")
    fact_id: str
    value: float | str = Field(description="What was accepted; it holds until it is rejected.")
    version: int = Field(description="The version that states it.")
    current_version: int
    now: list[NowStated] = Field(description="What the current version states of the same key.")
    text: str = Field(description="The same in words.")


class Facts(BaseModel):
    """Facts, what is stated beside them, where sources disagree, and what is outdated."""

    hardware: str
    lineage: list[str]
    facts: list[ShownFact]
    other_kinds: list[ShownFact]
    conflicts: list[FactConflict]
    outdated: list[OutdatedFact]


class LeftFact(BaseModel):
    """A fact that was not accepted, and why."""

    id: str
    key: str
    value: float | str
    reason: str


class DecidedFacts(BaseModel):
    """What was decided about many facts."""

    hardware: str
    facts: list[ShownFact]
    left: list[LeftFact]


class RemovedHardware(BaseModel):
    """What went with a hardware, and what stays."""

    id: str
    removed: bool
    documents_removed: list[str]
    documents_kept: list[str] = Field(description="They are about other hardware too.")
    facts_removed: int
    decided_facts_removed: int = Field(description="Of those, accepted or entered by a person.")
    runs_kept: int
    note: str | None = None


# -- skills


class ListedSkills(BaseModel):
    """Skills by name, or best first."""

    skills: list[SkillSummary]


class ChangedSkill(BaseModel):
    """A skill after a decision, with the new entry of its history."""

    name: str
    state: str
    event: SkillEvent
    warnings: list[str] = Field(description="What is odd about the scopes of what is active now.")


class SkillHistory(BaseModel):
    """The history of a skill, oldest first."""

    name: str
    events: list[SkillEvent]


ANSWERS: dict[str, type[Any]] = {
    "GET /healthz": Alive,
    "POST /retrievals/{retrieval_id}/outcome": StoredOutcome,
    "GET /signals": Signals,
    "GET /knowledge": KnowledgeNode,
    "GET /knowledge/recipes": ProposedRecipes,
    "GET /documents": ListedDocuments,
    "GET /documents/{document_id}": ShownDocument,
    "DELETE /documents/{document_id}": DeletedDocument,
    "DELETE /documents/{document_id}/corrections/{correction_id}": DroppedCorrection,
    "GET /documents/{document_id}/sections": Sections,
    "GET /documents/{document_id}/moves": DocumentMoves,
    "GET /documents/{document_id}/passages": ListedPassages,
    "GET /passages/{passage_id}": OnePassage,
    "PATCH /passages/{passage_id}": ShownPassage,
    "GET /hardware": ListedHardware,
    "POST /hardware": RegisteredHardware,
    "GET /hardware/{hardware_id}": ShownHardware,
    "DELETE /hardware/{hardware_id}": RemovedHardware,
    "GET /hardware/{hardware_id}/coverage": Coverage,
    "GET /hardware/{hardware_id}/symbols": Symbols,
    "GET /hardware/{hardware_id}/samples": Samples,
    "PATCH /symbols/{symbol_id}": Symbol,
    "GET /hardware/{hardware_id}/facts": Facts,
    "PATCH /hardware/{hardware_id}/facts": DecidedFacts,
    "PATCH /facts/{fact_id}": ShownFact,
    "GET /skills": ListedSkills,
    "PATCH /skills/{name}": ChangedSkill,
    "GET /skills/{name}/history": SkillHistory,
    "POST /evaluations": EvaluationJob,
    "GET /evaluations/{evaluation_id}": EvaluationJob,
    "GET /runs": ListedRuns,
    "POST /runs": ShownRun,
    "GET /runs/{run_id}": ShownRun,
    "GET /runs/{run_id}/tree": RunTree,
    "GET /runs/{run_id}/candidates/{number}": ShownNode,
    "POST /runs/{run_id}/cancel": ShownRun,
    "GET /runs/{run_id}/context": RunContext,
    "POST /runs/{run_id}/candidates": AcceptedStep,
    "GET /runs/{run_id}/flagged": FlaggedNodes,
    "POST /runs/{run_id}/nodes/{number}/review": FlaggedNode,
    "GET /trajectories": ListedTrajectories,
    "POST /trajectories": ListedTrajectory,
    "GET /trajectories/{trajectory_id}": ShownTrajectory,
}
