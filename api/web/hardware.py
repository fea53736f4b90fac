"""Chips: the list, a chip's page, its facts to decide about, and what a first prompt contains."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from api.bodies import FactsPatch, HardwareBody, validated
from api.http.admission import admitted
from api.http.bodies import signed
from api.http.dependencies import Access, Parts
from api.http.routes.retrieve import answer_of
from api.web.pages import MAX_PAGE, SentForm, page, page_router, paged, see_other
from ingestion import hardware as chips
from kb.errors import InvalidRequest
from kb.hardware.spec import is_shipped
from retrieval.coverage import coverage
from retrieval.documents import list_documents
from retrieval.hardware_removal import remove_hardware
from retrieval.onboarding import onboarding_steps
from retrieval.vocabulary import list_samples, list_symbols

ACTOR = "web"
FIRST_TOKENS = 24_000
router = page_router("/ui/hardware")
Number = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@router.get("")
def list_page(request: Request, parts: Parts, q: str = "") -> HTMLResponse:
    """Every chip with its lineage; `q` is searched in names and aliases."""
    rows = chips.list_hardware(parts.registry)
    words = q.lower().split()
    fitting = [
        row
        for row in rows
        if all(
            w in f"{row['id']} {row['name']} {row['vendor']} {row['aliases']}".lower()
            for w in words
        )
    ]
    return page(request, "hardware_list.html", chips=fitting, q=q)


@router.post("")
def add(request: Request, parts: Parts, form: SentForm) -> Response:
    """Register a chip by its id; the rest of its description can follow."""
    given: dict[str, Any] = {"id": form.text("id")}
    for name in ("name", "vendor", "parent"):
        if form.text(name):
            given[name] = form.text(name)
    if form.text("languages"):
        given["languages"] = form.listed("languages")
    body = validated(HardwareBody, given).model_dump(exclude_none=True)
    answer = parts.register_hardware(body, "the form")
    return see_other(request, f"/hardware/{answer['id']}/setup")


@router.get("/{hardware_id}")
def show(
    hardware_id: str,
    request: Request,
    parts: Parts,
    access: Access,
    facts: chips.FactFilter = "effective",
) -> HTMLResponse:
    """Lineage, facts with sources, documents, coverage, and where to go on."""
    chip = chips.show_hardware(parts.registry, hardware_id)
    known = coverage(parts.catalog, parts.registry, chip["id"], access)
    return page(
        request,
        "hardware.html",
        chip=chip,
        chosen=facts,
        facts=chips.facts_of(parts.registry, chip["id"], facts),
        documents=list_documents(parts, hardware=chip["id"], access_scope=access),
        coverage=known,
        steps=onboarding_steps(parts, chip["id"], access),
        built_in=is_shipped(chip["id"], parts.settings.knowledge_dir),
        symbols=len(list_symbols(parts, chip["id"], access_scope=access)),
        samples=len(list_samples(parts, chip["id"], access_scope=access)),
    )


@router.post("/{hardware_id}/remove")
def remove(hardware_id: str, request: Request, parts: Parts, form: SentForm) -> Response:
    """Remove the chip; the box of the form must be marked."""
    if form.text("sure") != "yes":
        raise InvalidRequest(
            "nothing was removed", hint="Mark the box beside the button, then press it again."
        )
    remove_hardware(parts, hardware_id, with_documents=form.text("documents") == "yes")
    return see_other(request, "/hardware")


@router.post("/{hardware_id}/facts")
def decide(hardware_id: str, request: Request, parts: Parts, form: SentForm) -> Response:
    """Accept or reject the marked facts, or take their corrections back."""
    chip = chips.show_hardware(parts.registry, hardware_id)["id"]
    if form.text("status") == "withdrawn":
        for fact_id in form.values("ids"):
            actor = signed(request, ACTOR)
            chips.decide_fact(parts.registry, fact_id, withdraw=True, actor=actor)
        return see_other(request, f"/hardware/{chip}?facts=all#facts")
    fields = {"status": form.text("status"), "ids": form.values("ids"), "include_unclear": True}
    body = validated(FactsPatch, {**fields, "actor": signed(request, ACTOR)})
    chips.decide_facts(parts.registry, chip, where=None, **body.model_dump(exclude={"where"}))
    return see_other(request, f"/hardware/{chip}?facts=proposed#facts")


@router.get("/{hardware_id}/symbols")
def symbols(
    hardware_id: str,
    request: Request,
    parts: Parts,
    access: Access,
    q: str = "",
    status: Literal["", "proposed", "rejected"] = "",
    number: Number = 1,
) -> HTMLResponse:
    """The names of a chip's languages, searched and paged."""
    chip = chips.show_hardware(parts.registry, hardware_id)
    rows = list_symbols(
        parts, chip["id"], q[:400], access_scope=access, status=status or "accepted"
    )
    return page(
        request,
        "symbols.html",
        chip=chip,
        q=q,
        status=status,
        statuses=("proposed", "rejected"),
        shown=paged(rows, number),
    )


@router.get("/{hardware_id}/samples")
def samples(
    hardware_id: str,
    request: Request,
    parts: Parts,
    access: Access,
    operator: str = "",
    number: Number = 1,
) -> HTMLResponse:
    """Whole kernels for a chip."""
    chip = chips.show_hardware(parts.registry, hardware_id)
    rows = list_samples(parts, chip["id"], operator, access)
    shown = paged(rows, number, 10)
    return page(request, "samples.html", chip=chip, operator=operator, shown=shown)


@router.get("/{hardware_id}/first-prompt", dependencies=[Depends(admitted)])
def first_prompt(
    hardware_id: str,
    request: Request,
    parts: Parts,
    access: Access,
    op: Annotated[str, Query(max_length=200)] = "matmul",
    language: Annotated[str, Query(max_length=200)] = "",
) -> HTMLResponse:
    """Exactly what an optimizer is given before it writes a first kernel."""
    chip = chips.show_hardware(parts.registry, hardware_id)
    body = {"task": "write", "hardware": chip["id"], "max_tokens": FIRST_TOKENS}
    body |= {"op": op} if op else {}
    body |= {"language": language} if language else {}
    answer = answer_of(parts, body, access)
    return page(
        request, "first_prompt.html", chip=chip, op=op, language=language, answer=answer.as_json()
    )
