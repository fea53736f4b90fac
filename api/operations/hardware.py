"""Chips: descriptions, facts, coverage, and the names and kernels of their languages."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from api.operations import Media, operation
from api.operations.bodies import HardwareBody
from ingestion import hardware
from ingestion.drafts import DraftReport, drafts_upload, outdated_drafts
from ingestion.hardware import RegisteredHardware
from ingestion.model_calls import AT_ONCE, SECONDS
from ingestion.readings import ReadingReport
from ingestion.uploads import Submitted
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.knowledge import drafts
from kb.catalog.knowledge.drafts import Draft, DraftStatus
from kb.hardware.schema import dump_hardware, parse_hardware
from kb.plain import Doc
from optimizer.evaluation.acceptance import probes, records
from optimizer.evaluation.acceptance.records import Acceptance
from retrieval import vocabulary
from retrieval.coverage import coverage
from retrieval.documents import delete_document
from retrieval.hardware_removal import remove_hardware as remove

if TYPE_CHECKING:
    from api.services import Services

declared = partial(operation, tag="hardware")
ORIGIN = "the request"
READ_CALLS, DRAFT_CALLS = 200, 50  # of a model, unless the caller says otherwise
Models = Annotated[str, Doc("The litellm name of one language model, like openai/gpt-4o.")]
ApiBase = Annotated[
    str | None, Doc("Address of an OpenAI-compatible server. Default: that of the provider.")
]
Calls = Annotated[int, Doc("Most calls of the model."), Ge(1), Le(10_000)]
AtOnce = Annotated[int, Doc("Calls at the same time."), Ge(1), Le(32)]
Usd = Annotated[float | None, Doc("Make no further call once so many USD were spent.")]
Seconds = Annotated[float, Doc("Longest time of a call."), Gt(0), Le(86_400)]


def _registry(services: Services) -> HardwareRegistry:
    return services.registry


list_hardware = declared("GET /hardware", "List registered hardware", on=_registry)(
    hardware.list_hardware
)


def _read_toml(text: str, _: None) -> Any:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        parse_hardware(text, ORIGIN)  # raises an error that names the place
        raise


@declared(
    "POST /hardware",
    "Register a chip, or change one",
    role="writer",
    status=201,
    status_of=lambda answer: 201 if answer.outcome == "created" else 200,
    responses={200: "It was known before: updated, or unchanged."},
    media=(
        Media(
            ("text/toml", "application/toml", "text/plain"),
            "A hardware.toml.",
            'id = "acme-x1"\nlanguages = ["acme-c"]\n',
            read=_read_toml,
        ),
    ),
    examples=lambda: {
        "newcomer": {"value": {"id": "acme-x1"}},
        "child": {"value": {"id": "h100-pcie", "name": "H100 PCIe", "parent": "hopper"}},
    },
)
def register_hardware(services: Services, description: HardwareBody) -> RegisteredHardware:
    """Only `id` is required; every other field of hardware.toml is optional."""
    return services.register_hardware(description.structure, ORIGIN)


show_hardware = declared(
    "GET /hardware/{hardware_id}", "Show one chip, family or vendor", on=_registry
)(hardware.show_hardware)
remove_hardware = declared(
    "DELETE /hardware/{hardware_id}", "Remove a chip, family or vendor", role="admin"
)(remove)
show_coverage = declared(
    "GET /hardware/{hardware_id}/coverage", "Show the knowledge about a chip and its gaps"
)(coverage)
show_acceptance = declared(
    "GET /hardware/{hardware_id}/acceptance", "Show the last acceptance test of a chip's manuals"
)(records.show_acceptance)

show_probes = declared(
    "GET /hardware/{hardware_id}/probes",
    "Show what probes measured of a chip, against its facts and manuals",
)(probes.show_probes)


@declared(
    "POST /hardware/{hardware_id}/acceptance",
    "Test a chip's manuals on its own toolchain",
    role="admin",
    runs_code=True,
    body=("AcceptanceBody", "Which language of the chip to test."),
)
def accept_manuals(
    services: Services,
    hardware_id: str,
    language: Annotated[str, Doc("Only this language; empty: every one with commands.")] = "",
) -> Acceptance:
    """Compile its kernels, try examples, names, operands, latencies and ranges, and check tables
    and references for gaps. Runs the commands of hardware.toml, and takes about a minute."""
    from optimizer.evaluation.acceptance import accept  # loads torch

    return accept.accept_manuals(services, hardware_id, language)


list_lexicon = declared(
    "GET /hardware/{hardware_id}/lexicon", "List what a chip's manuals call concepts of the field"
)(vocabulary.list_lexicon)


@declared(
    "PATCH /hardware/{hardware_id}/lexicon",
    "Correct or remove a term of a chip's lexicon",
    role="writer",
    body=("TermDecision", "A term with the concept that it means on this chip."),
    examples=lambda: {
        "correct": {"value": {"term": "SBUF", "concept": "on_chip_memory"}},
        "remove": {"value": {"term": "SBUF", "concept": ""}},
    },
)
def correct_term(
    services: Services,
    hardware_id: str,
    term: Annotated[str, Doc("A word of its manuals."), MinLen(1), MaxLen(40)],
    concept: Annotated[
        str | None, Doc("A concept of the lexicon, empty for none; null: as the manuals say.")
    ] = None,
) -> RegisteredHardware:
    """Stored in `terms` of the chip's description, so an export of it has the correction. Its
    documents are published again."""
    spec = services.registry.get(hardware_id)
    terms = {name: c for name, c in spec.terms.items() if name != term}
    if concept is not None:
        terms[term] = concept
    text = dump_hardware(replace(spec, terms=terms))
    return services.register_hardware(tomllib.loads(text), ORIGIN)


list_symbols = declared(
    "GET /hardware/{hardware_id}/symbols", "List or search the names of a chip's languages"
)(vocabulary.list_symbols)
list_samples = declared("GET /hardware/{hardware_id}/samples", "List whole kernels for a chip")(
    vocabulary.list_samples
)
correct_symbol = declared(
    "PATCH /symbols/{symbol_id}",
    "Correct the card of a name, or decide about a proposed one",
    role="writer",
    body=(
        "SymbolPatch",
        "A correction of the card of a name, or a decision about a proposed one; fields that are"
        " left out stay.",
    ),
)(vocabulary.correct_symbol)


# -- language models over a chip's manuals


@declared(
    "POST /hardware/{hardware_id}/readings",
    "Have a language model read a chip's documents",
    body=("ReadingBody", "The model, and the limits of its calls."),
)
def read_documents(
    services: Services,
    hardware_id: str,
    models: Models,
    api_base: ApiBase = None,
    most: Calls = READ_CALLS,
    at_once: AtOnce = AT_ONCE,
    usd: Usd = None,
    seconds: Seconds = SECONDS,
    again: Annotated[bool, Doc("Also sections that a model has read before.")] = False,
) -> ReadingReport:
    """It writes for which signals and questions each section is the answer, with a quote that must
    be in the section. Answers rank by it at no further cost. The same request goes on where an
    earlier one ended."""
    from api import section_models

    chip = services.registry.resolve(hardware_id)
    model = section_models.section_model(models, api_base, seconds)
    limits = section_models.limits_of(model, most, at_once, usd)
    return section_models.read_sections(services, chip, model, limits, again)


@declared(
    "POST /hardware/{hardware_id}/prepare",
    "Have a language model draft sections about a chip's signals",
    body=("DraftBody", "The model, the signals, and the limits of its calls."),
)
def prepare_hardware(
    services: Services,
    hardware_id: str,
    models: Models,
    api_base: ApiBase = None,
    signals: Annotated[
        Annotated[list[str], MaxLen(100)] | None, Doc("Only these signals; null: all.")
    ] = None,
    most: Calls = DRAFT_CALLS,
    at_once: AtOnce = AT_ONCE,
    usd: Usd = None,
    seconds: Seconds = SECONDS,
    again: Annotated[bool, Doc("Also signals with a decided draft.")] = False,
) -> DraftReport:
    """Each is drafted from the chip's own manuals; each sentence quotes the section that it rests
    on. Sentences whose quote, numbers or names are not in that section are dropped. A draft is
    proposed: answers use it after a person has accepted it."""
    from api import section_models

    chip = services.registry.resolve(hardware_id)
    model = section_models.section_model(models, api_base, seconds)
    limits = section_models.limits_of(model, most, at_once, usd)
    return section_models.draft_sections(services, chip, model, limits, signals or (), again)


@dataclass(frozen=True)
class ListedDrafts:
    """Drafts of a chip, by title. `outdated` are the ids of those that quote words which their
    document no longer contains."""

    hardware: str
    drafts: list[Draft]
    outdated: list[str]


@dataclass(frozen=True)
class DecidedDrafts:
    """The drafts of a decision. `document_id` is the document of all accepted drafts of the chip,
    `job_id` the job that reads it; null if there is none, or if nothing changed."""

    hardware: str
    drafts: list[Draft]
    document_id: str | None = None
    job_id: str | None = None


@declared("GET /hardware/{hardware_id}/drafts", "List sections that a model drafted for a chip")
def list_drafts(
    services: Services,
    hardware_id: str,
    status: Annotated[
        DraftStatus | None, Doc("Only drafts with this status. Default: all.")
    ] = None,
) -> ListedDrafts:
    """Each sentence has its quote and the section that it rests on."""
    chip = services.registry.resolve(hardware_id)
    statuses = drafts.STATUSES if status is None else (status,)
    with services.catalog.read() as connection:
        stored = drafts.listed(connection, chip, statuses, services.access)
        return ListedDrafts(chip, stored, outdated_drafts(connection, stored))


@declared(
    "PATCH /hardware/{hardware_id}/drafts",
    "Accept or reject drafted sections of a chip",
    role="curator",
    body=("DraftsPatch", "Accepts or rejects drafts of a chip."),
)
def decide_drafts(
    services: Services,
    hardware_id: str,
    status: Annotated[Literal["accepted", "rejected"], Doc("The decision.")],
    ids: Annotated[
        Annotated[list[str], MinLen(1), MaxLen(1000)] | None,
        Doc("Drafts of this chip; null: all proposed ones."),
    ] = None,
    actor: Annotated[str, Doc("Who decides."), MaxLen(200)] = "api",
) -> DecidedDrafts:
    """The accepted drafts of a chip are one document, apart from those of the vendor. It is queued
    to be read, or deleted when no draft is accepted."""
    spec, access = services.registry.get(hardware_id), services.access
    access.check_change((spec.id,), f"a draft about {spec.id}")
    decided = drafts.decide(services.catalog, spec.id, status, ids, actor, access)
    sent = publish_drafts(services, spec.id)
    if sent is None:
        return DecidedDrafts(spec.id, decided)
    return DecidedDrafts(spec.id, decided, sent.document_id, sent.job_id)


def publish_drafts(services: Services, chip: str, anew: bool = False) -> Submitted | None:
    """Queue the document of a chip's accepted drafts, or delete it if none is accepted. With `anew`
    its earlier versions are deleted."""
    access = services.access
    with services.catalog.read() as connection:
        accepted = drafts.listed(connection, chip, ("accepted",), access)
        document = drafts.document_of(connection, chip, access)
    if document is not None and (anew or not accepted):
        delete_document(services, document)
    if not accepted:
        return None
    return services.uploads.submit(drafts_upload(services.registry.get(chip), accepted, access))


# -- facts

list_facts = declared(
    "GET /hardware/{hardware_id}/facts", "List facts with their sources", on=_registry
)(hardware.facts_of)
add_fact = declared(
    "POST /hardware/{hardware_id}/facts",
    "Add a fact by hand",
    role="curator",
    status=201,
    on=_registry,
    body=("NewFact", "A number or short text about a chip, and its place in a document."),
    examples=lambda: {"newcomer": {"value": {"key": "clock_boost", "text": "400 MHz"}}},
)(hardware.add_fact)
decide_facts = declared(
    "PATCH /hardware/{hardware_id}/facts",
    "Accept or reject many facts at once",
    role="curator",
    on=_registry,
    body=(
        "FactsPatch",
        "Accepts or rejects many facts at once: those in `ids`, or the proposed ones of a filter.",
    ),
    examples=lambda: {
        "filter": {"value": {"status": "accepted", "where": {"subject_kind": "chip"}}},
        "ids": {"value": {"status": "rejected", "ids": ["fact_0123456789abcdef"]}},
    },
)(hardware.decide_facts)
show_fact = declared("GET /facts/{fact_id}", "Show one fact", on=_registry)(hardware.show_fact)
decide_fact = declared(
    "PATCH /facts/{fact_id}",
    "Accept, reject or correct a fact",
    role="curator",
    on=_registry,
    body=(
        "FactPatch",
        "Accepts or rejects a fact, or corrects its value. A corrected value counts as accepted.",
    ),
)(hardware.decide_fact)
