"""The tree of knowledge, jobs, and proposed recipes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from fastapi.responses import HTMLResponse

from api.http.routes import Parts
from api.operations import documents, hardware, knowledge
from api.web.pages import (
    Number,
    SentForm,
    carry_out,
    form_route,
    is_fragment,
    page,
    page_router,
    paged,
    see_other,
)
from ingestion.progress import STATES
from kb.catalog.jobs import JobState
from retrieval.knowledge_validity import KINDS, MOST, EntryKind, EntryState
from retrieval.knowledge_validity import STATES as VALIDITY_STATES
from retrieval.vocabulary import show_symbol

router = page_router("/ui")


@router.get("/knowledge")
def tree(
    request: Request, services: Parts, path: Annotated[str, Query(max_length=2000)] = ""
) -> HTMLResponse:
    """One place of the tree, with its children."""
    node = knowledge.show_knowledge(services, path)
    steps = [step for step in node.path.split("/") if step]
    above = [("/".join(steps[: n + 1]), step) for n, step in enumerate(steps)]
    return page(request, "knowledge.html", node=node, above=above)


@router.get("/knowledge/validity")
def validity(
    request: Request,
    services: Parts,
    hardware: str = "",
    tool: str = "",
    kind: EntryKind | None = None,
    state: EntryState | None = None,
) -> HTMLResponse:
    """What holds with which tools, by chip, and the entries behind a number."""
    about = {"hardware": hardware, "tool": tool, "kind": kind or "", "state": state or ""}
    shown = knowledge.show_validity(services, hardware, tool, kind, state, MOST)
    return page(
        request, "validity.html", shown=shown, about=about, states=VALIDITY_STATES, kinds=KINDS
    )


@router.get("/jobs")
def jobs(
    request: Request,
    services: Parts,
    state: Annotated[list[JobState] | None, Query()] = None,
    group: str = "",
    hardware: str = "",
    origin: Literal["", "builtin", "upload"] = "",
    cursor: str = "",
) -> HTMLResponse:
    """Jobs, newest first, with counts; the page reloads itself while something is being read.
    Without a filter, those of uploads if there are any."""
    if not (state or group or hardware or origin):
        uploads = documents.list_jobs(services, origin="upload", limit=1).jobs
        origin = "upload" if uploads else ""
    about = {"group": group, "hardware": hardware, "origin": origin}
    shown = documents.list_jobs(
        services, state, hardware, group, origin or None, limit=25, cursor=cursor
    )
    return page(request, "jobs.html", shown=shown, state=state or [], about=about, states=STATES)


@router.get("/jobs/{job_id}")
def job(job_id: str, request: Request, services: Parts) -> HTMLResponse:
    """How far a job is."""
    return page(request, "job.html", job=documents.show_job(services, job_id))


@router.get("/jobs/{job_id}/row")
def job_row(job_id: str, request: Request, services: Parts) -> HTMLResponse:
    """How far a job is, as a row of the list of an upload."""
    job = documents.show_job(services, job_id)
    return page(request, "job_row.html", job=job, discarded=False)


@form_route(router, "/jobs/{job_id}/retry", documents.retry_job)
def retry(job_id: str, request: Request, services: Parts) -> Response:
    """Queue a failed job again."""
    documents.retry_job(services, job_id)
    return see_other(request, f"/jobs/{job_id}")


@form_route(router, "/jobs/{job_id}/decision", documents.decide_version)
def decide_version(job_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Replace, keep both, or discard; to a script, the row of the job that is left."""
    given = form.text("decision")
    job = carry_out(request, services, documents.decide_version, job_id=job_id, decision=given)
    if is_fragment(request):
        return page(request, "job_row.html", job=job, discarded=given == "discard")
    return see_other(request, "/jobs" if given == "discard" else f"/jobs/{job.id}")


@router.get("/recipes")
def recipes(
    request: Request, services: Parts, hardware: str = "", number: Number = 1
) -> HTMLResponse:
    """Recipes proposed from code samples of manuals."""
    rows = knowledge.list_recipes(services, hardware).recipes
    return page(request, "recipes.html", shown=paged(rows, number), hardware=hardware)


@form_route(router, "/recipes/{recipe_id}", knowledge.decide_recipe)
def decide(recipe_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Accept or reject a proposed recipe."""
    status = form.text("status")
    carry_out(request, services, knowledge.decide_recipe, recipe_id=recipe_id, status=status)
    return see_other(request, "/recipes")


# -- a name of a chip's language: its card, and the form that corrects it

TEXTS = ("signature", "meaning", "example")


@router.get("/symbols/{symbol_id}")
def symbol(symbol_id: str, request: Request, services: Parts) -> HTMLResponse:
    """The card of a name with its source."""
    return page(request, "symbol.html", card=show_symbol(services, symbol_id))


@form_route(router, "/symbols/{symbol_id}", hardware.correct_symbol)
def correct(symbol_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Correct the fields that were changed, or decide about a card that a model has proposed."""
    before = show_symbol(services, symbol_id)
    changes: dict[str, Any] = {}
    if form.text("status"):
        changes["status"] = form.text("status")
    else:
        # A browser sends lines with CR LF.
        given = {name: form.text(name).replace("\r\n", "\n") for name in TEXTS}
        changes |= {
            name: text for name, text in given.items() if text != getattr(before, name).strip()
        }
        lines = form.text("limits").replace("\r\n", "\n").split("\n")
        limits = [line.strip() for line in lines if line.strip()]
        if limits != list(before.limits):
            changes["limits"] = limits
    if changes:
        carry_out(request, services, hardware.correct_symbol, symbol_id=symbol_id, **changes)
    return see_other(request, f"/symbols/{symbol_id}")
