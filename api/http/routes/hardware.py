"""Chips: register, read, see what is covered, decide about facts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from api.bodies import FactPatch, HardwareBody, check_text, load_json
from api.http.bodies import is_json, json_body, media_type, read_limited
from api.http.dependencies import Access, Parts
from api.http.openapi import json_request, text_request
from ingestion import hardware as chips
from kb.errors import InvalidRequest, UnsupportedFormat
from kb.hardware.schema import parse_hardware
from kb.settings import Settings

router = APIRouter(tags=["hardware"])

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


@router.get(
    "/hardware/{hardware_id}/coverage",
    summary="Show what is known about a chip, and what is missing",
)
def coverage(hardware_id: str, parts: Parts, access: Access) -> JSONResponse:
    """Coverage by signal, topic and fact, with what would be most useful to upload."""
    from retrieval.coverage import coverage as coverage_of

    resolved = parts.registry.resolve(hardware_id)
    return JSONResponse(coverage_of(parts.catalog, parts.registry, resolved, access).as_json())


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
) -> dict[str, Any]:
    """`conflicts` lists where sources about this hardware disagree. `other_kinds` lists what is
    stated beside an effective fact, such as a measured bandwidth beside the datasheet's."""
    return chips.facts_of(parts.registry, hardware_id, status)


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
