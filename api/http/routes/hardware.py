"""Chips: register, read, see what is covered, decide about facts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from api.http.bodies import (
    check_text,
    is_json,
    json_body,
    load_json,
    media_type,
    read_limited,
)
from api.http.dependencies import Access, Parts
from api.http.models import FactPatch, HardwareBody
from api.http.openapi import json_request, text_request
from api.services import Services
from ingestion.findings.facts import FactConflict, SourcedFact, find_conflicts
from kb.catalog.hardware import Fact
from kb.errors import InvalidRequest, UnsupportedFormat
from kb.hardware.lineage import find
from kb.hardware.schema import parse_hardware
from kb.hardware.spec import HardwareSpec
from kb.plain import plain
from kb.settings import Settings
from retrieval.diagnose.signatures import signature_from_mapping

router = APIRouter(tags=["hardware"])

_TOML = ("text/toml", "application/toml", "text/plain")
_ORIGIN = "the request"


@router.get("/hardware", summary="Every registered hardware")
def list_hardware(parts: Parts) -> dict[str, Any]:
    specs = parts.registry.all()
    return {"hardware": [_summary(spec, parts) for spec in specs.values()]}


def _summary(spec: HardwareSpec, parts: Services) -> dict[str, Any]:
    return {
        "id": spec.id,
        "name": spec.name,
        "vendor": spec.vendor,
        "kind": spec.kind,
        "parent": spec.parent,
        "lineage": list(parts.registry.lineage(spec.id)),
        "aliases": list(spec.aliases),
        "languages": list(spec.languages),
        "summary": spec.summary,
    }


@dataclass(frozen=True)
class _Sent:
    data: bytes
    is_toml: bool


async def _sent(request: Request) -> _Sent:
    settings: Settings = request.app.state.settings
    kind = media_type(request)
    if kind not in _TOML and not is_json(kind):
        raise UnsupportedFormat(
            f"{kind or 'a body without content type'} where JSON or TOML belongs",
            hint="Send JSON as application/json, or a hardware.toml as text/toml.",
        )
    limit = settings.max_body_bytes
    data = await read_limited(request, limit, "body", "KERNLORE_MAX_BODY_BYTES")
    return _Sent(data, kind in _TOML)


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
    responses={200: {"description": "It was known: updated, or unchanged."}},
)
def register(parts: Parts, sent: Annotated[_Sent, Depends(_sent)]) -> JSONResponse:
    """Only `id` is required; the rest of hardware.toml is taken where it is given."""
    spec = parse_hardware(_completed(_structure(sent), parts), _ORIGIN)
    for signature in spec.signatures:  # one that retrieval refuses would fail every posted log
        signature_from_mapping(asdict(signature), spec.id)
    outcome = parts.registry.put(spec, "api")
    answer = {"id": spec.id, "outcome": outcome, "lineage": list(parts.registry.lineage(spec.id))}
    shipped = parts.settings.knowledge_dir / "hardware" / spec.id / "hardware.toml"
    if outcome == "updated" and shipped.is_file():
        answer["note"] = (
            f"{spec.id} is built in: the next start restores the shipped description."
            " Register a child of it, or correct single facts, to keep a change."
        )
    return JSONResponse(answer, status_code=201 if outcome == "created" else 200)


def _structure(sent: _Sent) -> Mapping[str, Any]:
    if not sent.is_toml:
        value = load_json(sent.data)
        if not isinstance(value, dict):
            raise InvalidRequest("no JSON object", hint='Send at least {"id": "..."}.')
        return value
    try:
        text = check_text(sent.data.decode("utf-8"), "the file")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the file is not UTF-8: {error}", hint="Save it as UTF-8.") from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        parse_hardware(text, _ORIGIN)  # says where it breaks
        raise


def _completed(given: Mapping[str, Any], parts: Services) -> dict[str, Any]:
    """A newcomer knows its id; name and vendor can wait."""
    spec = {key: value for key, value in given.items() if value is not None}
    known = parts.registry.all()
    parent = spec.get("parent")
    if isinstance(parent, str) and (meant := find(parent, known)) is not None:
        spec["parent"] = meant
        spec.setdefault("vendor", known[meant].vendor)
    identity = spec.get("id")
    if isinstance(identity, str) and identity:
        spec.setdefault("name", identity)
        # A vendor is its own.
        spec.setdefault("vendor", identity if spec.get("kind") == "vendor" else "unknown")
    return spec


@router.get("/hardware/{hardware_id}", summary="One hardware with everything stated of it")
def show(hardware_id: str, parts: Parts) -> dict[str, Any]:
    """By id, name or alias."""
    spec = parts.registry.get(hardware_id)
    described: dict[str, Any] = plain(spec)
    return described | {"lineage": list(parts.registry.lineage(spec.id))}


@router.get("/hardware/{hardware_id}/coverage", summary="What is covered, what is missing")
def coverage(hardware_id: str, parts: Parts, access: Access) -> JSONResponse:
    from retrieval.coverage import coverage as covered

    resolved = parts.registry.resolve(hardware_id)
    return JSONResponse(covered(parts.catalog, parts.registry, resolved, access).as_json())


@router.get("/hardware/{hardware_id}/facts", summary="Facts with their sources")
def list_facts(
    hardware_id: str,
    parts: Parts,
    status: Annotated[
        Literal["effective", "accepted", "proposed", "rejected", "all"],
        Query(description="effective: what holds, inherited included; else its own rows."),
    ] = "effective",
) -> dict[str, Any]:
    """`conflicts` lists where sources about this hardware disagree; `other_kinds` what is stated
    beside the fact that holds, such as a measured bandwidth beside the datasheet's."""
    registry = parts.registry
    resolved = registry.resolve(hardware_id)
    own = registry.facts(resolved)
    if status == "effective":
        shown = list(registry.effective_facts(resolved).values())
    else:
        shown = [fact for fact in own if status in ("all", fact.status)]
    holding = {fact.id for fact in shown}
    return {
        "hardware": resolved,
        "lineage": list(registry.lineage(resolved)),
        "facts": [_fact(fact, resolved) for fact in shown],
        "other_kinds": [
            _fact(fact, resolved)
            for fact in own
            if status == "effective" and fact.status == "accepted" and fact.id not in holding
        ],
        "conflicts": plain(_conflicts(own)),
    }


def _fact(fact: Fact, hardware_id: str) -> dict[str, Any]:
    stated: dict[str, Any] = plain(fact)
    return stated | {"value": plain(fact.value), "inherited": fact.hardware_id != hardware_id}


def _conflicts(facts: list[Fact]) -> list[FactConflict]:
    """Within one kind: a measured bandwidth below the datasheet's contradicts nothing."""
    found: list[FactConflict] = []
    for kind in ("datasheet", "measured", "derived"):
        found += find_conflicts(
            SourcedFact(f.key, f.subject or "", f.value, f.unit, f"{f.title}, {f.locator}")
            for f in facts
            if f.kind == kind and f.status != "rejected"
        )
    return found


@router.patch(
    "/facts/{fact_id}", summary="Decide about a fact", openapi_extra=json_request(FactPatch)
)
def patch_fact(
    fact_id: str, parts: Parts, body: Annotated[FactPatch, Depends(json_body(FactPatch))]
) -> dict[str, Any]:
    """Accept, reject or correct; it holds from then on."""
    fact = parts.registry.patch_fact(
        fact_id,
        status=body.status,
        number=body.number,
        text=body.text,
        note=body.note,
        actor=body.actor,
    )
    return _fact(fact, fact.hardware_id)
