"""The tree of knowledge, what is being read, and recipes that wait for a decision."""

from __future__ import annotations

from typing import Annotated, get_args

from fastapi import Query, Request, Response
from fastapi.responses import HTMLResponse

from api.http.dependencies import Access, Parts
from api.web.pages import MAX_PAGE, SentForm, page, page_router, paged, see_other
from ingestion.progress import STATES, JobFilter, list_jobs, retry_job, show_job
from kb.catalog.jobs import JobState
from kb.catalog.knowledge.samples import RecipeStatus
from kb.errors import InvalidRequest
from retrieval.documents import decide_proposed_recipe, list_proposed_recipes
from retrieval.knowledge_tree import knowledge_node

router = page_router("/ui")
Number = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@router.get("/knowledge")
def tree(
    request: Request,
    parts: Parts,
    access: Access,
    path: Annotated[str, Query(max_length=2000)] = "",
) -> HTMLResponse:
    """One place of the tree, with what lies below it."""
    node = knowledge_node(parts.catalog, parts.registry, path, access)
    steps = [step for step in node.path.split("/") if step]
    above = [("/".join(steps[: n + 1]), step) for n, step in enumerate(steps)]
    return page(request, "knowledge.html", node=node, above=above)


@router.get("/jobs")
def jobs(
    request: Request,
    parts: Parts,
    access: Access,
    state: Annotated[list[JobState] | None, Query()] = None,
    group: str = "",
    cursor: str = "",
) -> HTMLResponse:
    """Jobs, newest first, with counts; the page reloads itself while something is being read."""
    asked = JobFilter(tuple(state or ()), None, group or None, None)
    shown = list_jobs(parts, asked, limit=50, cursor=cursor or None, access_scope=access)
    return page(request, "jobs.html", shown=shown, state=state or [], group=group, states=STATES)


@router.get("/jobs/{job_id}")
def job(job_id: str, request: Request, parts: Parts, access: Access) -> HTMLResponse:
    """How far a job is."""
    return page(request, "job.html", job=show_job(parts, job_id, access_scope=access))


@router.get("/jobs/{job_id}/row")
def job_row(job_id: str, request: Request, parts: Parts, access: Access) -> HTMLResponse:
    """How far a job is, as a row of the list of an upload."""
    return page(request, "job_row.html", job=show_job(parts, job_id, access_scope=access))


@router.post("/jobs/{job_id}/retry")
def retry(job_id: str, request: Request, parts: Parts, access: Access) -> Response:
    """Queue a failed job again."""
    retry_job(parts, job_id, access_scope=access)
    return see_other(request, f"/jobs/{job_id}")


@router.get("/recipes")
def recipes(
    request: Request, parts: Parts, access: Access, hardware: str = "", number: Number = 1
) -> HTMLResponse:
    """Recipes proposed from code samples of manuals."""
    rows = list_proposed_recipes(parts, hardware, access_scope=access)
    return page(request, "recipes.html", shown=paged(rows, number), hardware=hardware)


@router.post("/recipes/{recipe_id}")
def decide(
    recipe_id: str, request: Request, parts: Parts, access: Access, form: SentForm
) -> Response:
    """Accept or reject a proposed recipe."""
    for status in get_args(RecipeStatus):
        if status == form.text("status"):
            decide_proposed_recipe(parts, recipe_id, status, access)
            return see_other(request, "/recipes")
    raise InvalidRequest("no decision was sent", hint="Press Accept or Reject.")
