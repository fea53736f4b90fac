"""Chips: register, read, see what is covered, decide about facts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse

from api.bodies import FactPatch, FactsPatch, HardwareBody, SymbolPatch, check_text, load_json
from api.http.bodies import is_json, json_body, media_type, read_limited
from api.http.dependencies import Access, Parts, api_router
from api.http.openapi import json_request, text_request
from ingestion import hardware as chips
from kb.catalog.knowledge.symbols import SymbolStatus
from kb.errors import InvalidRequest, UnsupportedFormat
from kb.hardware.facts import SubjectKind
from kb.hardware.schema import parse_hardware
from kb.settings import Settings
from retrieval.hardware_removal import remove_hardware
from retrieval.vocabulary import MAX_LISTED, correct_symbol, list_samples, list_symbols

router = api_router("hardware")

_TOML = ("text/toml", "application/toml", "text/plain")
_ORIGIN = "the request"


@router.get("/hardware", summary="List registered hardware")
def list_hardware(parts: Parts) -> dict[str, Any]:
    """Every chip, family and vendor with its lineage, aliases and languages."""
    return {"hardware": chips.list_hardware(parts.registry)}


@dataclass(frozen=True)
class _Description:
    """The bytes of a hardware description, as JSON or as TOML."""

    data: bytes
    is_toml: bool


async def _description(request: Request) -> _Description:
    settings: Settings = request.app.state.settings
    kind = media_type(request)
    if kind not in _TOML and not is_json(kind):
        raise UnsupportedFormat(
            f"{kind or 'a body without content type'} where JSON or TOML belongs",
            hint="Send JSON as application/json, or a hardware.toml as text/toml.",
        )
    limit = settings.max_body_bytes
    data = await read_limited(request, limit, "body", "KERNLORE_MAX_BODY_BYTES")
    return _Description(data, kind in _TOML)


@router.post(
    "/hardware",
    summary="Register a chip, or change one",
    status_code=201,
    openapi_extra=text_request(
        json_request(
            HardwareBody,
            {
                "newcomer": {"value": {"id": "acme-x1"}},
                "child": {"value": {"id": "h100-pcie", "name": "H100 PCIe", "parent": "hopper"}},
            },
        ),
        "text/toml",
        "A hardware.toml.",
        'id = "acme-x1"\nlanguages = ["acme-c"]\n',
    ),
    responses={200: {"description": "It was known before: updated, or unchanged."}},
)
def register(
    parts: Parts, description: Annotated[_Description, Depends(_description)]
) -> JSONResponse:
    """Only `id` is required; every other field of hardware.toml is optional."""
    answer = parts.register_hardware(_structure(description), _ORIGIN)
    return JSONResponse(answer, status_code=201 if answer["outcome"] == "created" else 200)


def _structure(description: _Description) -> Mapping[str, Any]:
    if not description.is_toml:
        value = load_json(description.data)
        if not isinstance(value, dict):
            raise InvalidRequest("no JSON object", hint='Send at least {"id": "..."}.')
        return value
    try:
        text = check_text(description.data.decode("utf-8"), "the file")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the file is not UTF-8: {error}", hint="Save it as UTF-8.") from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        parse_hardware(text, _ORIGIN)  # says where it breaks
        raise


@router.get("/hardware/{hardware_id}", summary="Show one chip, family or vendor")
def show(hardware_id: str, parts: Parts) -> dict[str, Any]:
    """Everything that its description states. `hardware_id` may be an id, name or alias."""
    return chips.show_hardware(parts.registry, hardware_id)


@router.delete("/hardware/{hardware_id}", summary="Remove a chip, family or vendor")
def remove(
    hardware_id: str,
    parts: Parts,
    with_documents: Annotated[
        bool, Query(description="Also the documents that are about it alone.")
    ] = False,
) -> dict[str, Any]:
    """Its description and facts go; what was measured on it stays. 409 with what to do first while
    something uses it, and for one that is built in.
    """
    return remove_hardware(parts, hardware_id, with_documents=with_documents)


@router.get(
    "/hardware/{hardware_id}/coverage",
    summary="Show what is known about a chip, and what is missing",
)
def coverage(hardware_id: str, parts: Parts, access: Access) -> JSONResponse:
    """Coverage by signal, topic and fact, with what would be most useful to upload."""
    from retrieval.coverage import coverage as coverage_of

    resolved = parts.registry.resolve(hardware_id)
    return JSONResponse(coverage_of(parts.catalog, parts.registry, resolved, access).as_json())


@router.get(
    "/hardware/{hardware_id}/symbols", summary="List or search the names of a chip's languages"
)
def symbols(
    hardware_id: str,
    parts: Parts,
    access: Access,
    q: Annotated[str, Query(max_length=400, description="A name, or words about it.")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED, description="Most cards.")] = MAX_LISTED,
    status: Annotated[
        SymbolStatus,
        Query(description="proposed, rejected: cards of a language model that nobody has accepted"),
    ] = "accepted",
    language: Annotated[
        str, Query(max_length=200, description="Without names of another language.")
    ] = "",
) -> JSONResponse:
    """Cards of instructions, functions, directives, types, registers and error codes: signature,
    operands, limits, an example, and the section that defines them.
    """
    rows = list_symbols(parts, hardware_id, q, limit, access, status, language)
    return JSONResponse({"symbols": rows})


@router.get("/hardware/{hardware_id}/samples", summary="List whole kernels for a chip")
def samples(
    hardware_id: str,
    parts: Parts,
    access: Access,
    operator: Annotated[str, Query(max_length=200, description="Only of this operator.")] = "",
) -> JSONResponse:
    """Kernels that runs have verified, then those of the chip's manuals."""
    return JSONResponse({"samples": list_samples(parts, hardware_id, operator, access)})


@router.patch(
    "/symbols/{symbol_id}",
    summary="Correct the card of a name, or decide about a proposed one",
    openapi_extra=json_request(SymbolPatch),
)
def correct(
    symbol_id: str,
    body: Annotated[SymbolPatch, Depends(json_body(SymbolPatch))],
    parts: Parts,
    access: Access,
) -> JSONResponse:
    """The correction or decision stays with every later version of the document."""
    fix = body.model_dump(exclude_none=True)
    return JSONResponse(correct_symbol(parts, symbol_id, fix, access_scope=access))


@router.get("/hardware/{hardware_id}/facts", summary="List facts with their sources")
def list_facts(
    hardware_id: str,
    parts: Parts,
    status: Annotated[
        chips.FactFilter,
        Query(
            description="effective: the facts that hold, inherited ones included. Any other value"
            " selects among the hardware's own facts by their status."
        ),
    ] = "effective",
    key: Annotated[str | None, Query(max_length=200, description="Only this key.")] = None,
    subject: Annotated[
        str | None,
        Query(
            max_length=200,
            description="A part of what names the subject; empty for facts without a subject.",
        ),
    ] = None,
    subject_kind: Annotated[
        SubjectKind | None,
        Query(description="Read as about the chip itself, a family above it, or unclear."),
    ] = None,
    document: Annotated[
        str | None,
        Query(max_length=200, description="The id of a document, or part of its title."),
    ] = None,
) -> dict[str, Any]:
    """`conflicts` lists where sources about this hardware disagree. `other_kinds` lists what is
    stated beside an effective fact, such as a measured bandwidth beside the datasheet's."""
    where = chips.FactWhere(key, subject, subject_kind, document)
    return chips.facts_of(parts.registry, hardware_id, status, where)


@router.patch(
    "/hardware/{hardware_id}/facts",
    summary="Accept or reject many facts at once",
    openapi_extra=json_request(
        FactsPatch,
        {
            "filter": {"value": {"status": "accepted", "where": {"subject_kind": "chip"}}},
            "ids": {"value": {"status": "rejected", "ids": ["fact_0123456789abcdef"]}},
        },
    ),
)
def patch_facts(
    hardware_id: str, parts: Parts, body: Annotated[FactsPatch, Depends(json_body(FactsPatch))]
) -> dict[str, Any]:
    """`left` lists what was not accepted and why: its subject is unclear, or a filter chose facts
    that state different values for one key."""
    where = None if body.where is None else chips.FactWhere(**body.where.model_dump())
    fields = body.model_dump(exclude={"where"})
    return chips.decide_facts(parts.registry, hardware_id, where=where, **fields)


@router.patch(
    "/facts/{fact_id}",
    summary="Accept, reject or correct a fact",
    openapi_extra=json_request(FactPatch),
)
def patch_fact(
    fact_id: str, parts: Parts, body: Annotated[FactPatch, Depends(json_body(FactPatch))]
) -> dict[str, Any]:
    """The decision applies to every later request."""
    return chips.decide_fact(parts.registry, fact_id, **body.model_dump())
