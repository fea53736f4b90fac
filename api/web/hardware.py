"""Chips: the list, a chip's page, its facts to decide about, and the context of a first kernel."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from api.http.admission import admitted
from api.http.dependencies import Parts
from api.operations import hardware
from api.operations.retrieve import retrieve
from api.web.pages import (
    MAX_PAGE,
    SentForm,
    carry_out,
    check_box,
    form_route,
    page,
    page_router,
    paged,
    see_other,
)
from ingestion.hardware import FactFilter
from kb.errors import NotFound
from kb.hardware.spec import is_shipped
from retrieval.documents import list_documents
from retrieval.onboarding import onboarding_steps
from retrieval.request_body import read_body

FIRST_TOKENS = 24_000
router = page_router("/ui/hardware")
Number = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@router.get("")
def list_page(request: Request, services: Parts, q: str = "") -> HTMLResponse:
    """Every chip with its lineage; `q` is searched in names and aliases."""
    rows = hardware.list_hardware(services).hardware
    words = q.lower().split()
    fitting = [
        row
        for row in rows
        if all(w in f"{row.id} {row.name} {row.vendor} {row.aliases}".lower() for w in words)
    ]
    return page(request, "hardware_list.html", chips=fitting, q=q)


@form_route(router, "", hardware.register_hardware)
def add(request: Request, services: Parts, form: SentForm) -> Response:
    """Register a chip by its id; the rest of its description can follow."""
    given: dict[str, Any] = {"id": form.text("id")}
    for name in ("name", "vendor", "parent"):
        if form.text(name):
            given[name] = form.text(name)
    if form.text("languages"):
        given["languages"] = form.listed("languages")
    answer = carry_out(request, services, hardware.register_hardware, description=given)
    return see_other(request, f"/hardware/{answer.id}/setup")


@router.get("/{hardware_id}")
def show(
    hardware_id: str,
    request: Request,
    services: Parts,
    facts: FactFilter = "effective",
) -> HTMLResponse:
    """Lineage, facts with sources, documents, coverage, and links to further pages."""
    chip = hardware.show_hardware(services, hardware_id)
    return page(
        request,
        "hardware.html",
        chip=chip,
        chosen=facts,
        facts=hardware.list_facts(services, chip.id, facts),
        documents=list_documents(services, hardware=chip.id).documents,
        coverage=hardware.show_coverage(services, chip.id),
        steps=onboarding_steps(services, chip.id),
        built_in=is_shipped(chip.id, services.settings.knowledge_dir),
        symbols=len(hardware.list_symbols(services, chip.id).symbols),
        samples=len(hardware.list_samples(services, chip.id).samples),
    )


@form_route(router, "/{hardware_id}/remove", hardware.remove_hardware)
def remove(hardware_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Remove the chip; the box of the form must be ticked."""
    check_box(form, "nothing was removed")
    with_documents = form.text("documents") == "yes"
    hardware.remove_hardware(services, hardware_id, with_documents=with_documents)
    return see_other(request, "/hardware")


@form_route(router, "/{hardware_id}/facts", hardware.decide_facts)
def decide(hardware_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Accept or reject the ticked facts, or take their corrections back."""
    chip = hardware.show_hardware(services, hardware_id).id
    if form.text("status") == "withdrawn":
        for fact_id in form.values("ids"):
            carry_out(request, services, hardware.decide_fact, fact_id=fact_id, withdraw=True)
        return see_other(request, f"/hardware/{chip}?facts=all#facts")
    carry_out(
        request,
        services,
        hardware.decide_facts,
        hardware_id=chip,
        status=form.text("status"),
        ids=form.values("ids"),
        include_unclear=True,
    )
    return see_other(request, f"/hardware/{chip}?facts=proposed#facts")


@router.get("/{hardware_id}/symbols")
def symbols(
    hardware_id: str,
    request: Request,
    services: Parts,
    q: str = "",
    status: Literal["", "proposed", "rejected"] = "",
    number: Number = 1,
) -> HTMLResponse:
    """The names of a chip's languages, searched and paged."""
    chip = hardware.show_hardware(services, hardware_id)
    rows = hardware.list_symbols(services, chip.id, q[:400], status=status or "accepted").symbols
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
    services: Parts,
    operator: str = "",
    number: Number = 1,
) -> HTMLResponse:
    """Whole kernels for a chip."""
    chip = hardware.show_hardware(services, hardware_id)
    rows = hardware.list_samples(services, chip.id, operator).samples
    shown = paged(rows, number, 10)
    return page(request, "samples.html", chip=chip, operator=operator, shown=shown)


@router.get("/{hardware_id}/acceptance")
def acceptance(hardware_id: str, request: Request, services: Parts) -> HTMLResponse:
    """The last acceptance test of the chip's manuals, or how to make one."""
    chip = hardware.show_hardware(services, hardware_id)
    try:
        result = hardware.show_acceptance(services, chip.id)
    except NotFound:
        result = None
    return page(request, "acceptance.html", chip=chip, result=result)


@router.get("/{hardware_id}/first-prompt", dependencies=[Depends(admitted, scope="function")])
def first_prompt(
    hardware_id: str,
    request: Request,
    services: Parts,
    op: Annotated[str, Query(max_length=200)] = "matmul",
    language: Annotated[str, Query(max_length=200)] = "",
) -> HTMLResponse:
    """The context that an optimizer gets before its first kernel."""
    chip = hardware.show_hardware(services, hardware_id)
    body = {"task": "write", "hardware": chip.id, "max_tokens": FIRST_TOKENS}
    body |= {"op": op} if op else {}
    body |= {"language": language} if language else {}
    answer = retrieve(services, read_body(body))
    return page(
        request, "first_prompt.html", chip=chip, op=op, language=language, answer=answer.as_json()
    )
