"""Chips: descriptions, facts, coverage, and the names and kernels of their languages."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import MaxLen, MinLen

from api.operations import Media, operation
from api.operations.bodies import HardwareBody
from ingestion import hardware
from ingestion.hardware import RegisteredHardware
from kb.catalog.hardware import HardwareRegistry
from kb.hardware.schema import dump_hardware, parse_hardware
from kb.plain import Doc
from optimizer.evaluation.acceptance import probes, records
from optimizer.evaluation.acceptance.records import Acceptance
from retrieval import vocabulary
from retrieval.coverage import coverage
from retrieval.hardware_removal import remove_hardware as remove

if TYPE_CHECKING:
    from api.services import Services

declared = partial(operation, tag="hardware")
ORIGIN = "the request"


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
    "GET /hardware/{hardware_id}/coverage",
    "Show the knowledge about a chip and its gaps",
)(coverage)
show_acceptance = declared(
    "GET /hardware/{hardware_id}/acceptance",
    "Show the last acceptance test of a chip's manuals",
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
    and references for gaps. Runs the commands of hardware.toml, and takes about a minute.
    """
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
    documents are published again.
    """
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
list_facts = declared(
    "GET /hardware/{hardware_id}/facts", "List facts with their sources", on=_registry
)(hardware.facts_of)
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
