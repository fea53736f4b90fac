"""Runs: the list, a run with its tree and plots, a candidate with its change and verdict."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse

from api.http.dependencies import Parts
from api.http.routes.runs import Processes
from api.web.pages import MAX_PAGE, PageRoute, page, paged
from kb.errors import NotFound
from optimizer.search.runs import run_store as runs

router = APIRouter(prefix="/ui/runs", route_class=PageRoute, include_in_schema=False)
Number = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@router.get("")
def list_page(request: Request, parts: Parts, number: Number = 1) -> HTMLResponse:
    """Runs, newest first."""
    return page(request, "runs.html", shown=paged(runs.list_runs(parts), number))


@router.get("/{run_id}")
def show(run_id: str, request: Request, parts: Parts, processes: Processes) -> HTMLResponse:
    """Goal, result, plots and every candidate. One that is starting has its state alone."""
    run = processes.show(run_id)
    if "problem" not in run:
        return page(request, "run.html", run=run, account=None, rows=[])
    return page(
        request,
        "run.html",
        run=run,
        account=runs.run_account(parts, run_id),
        rows=runs.candidate_rows(parts, run_id),
    )


@router.get("/{run_id}/plots/{name}")
def plot(run_id: str, name: str, parts: Parts) -> Response:
    """A plot of the run as SVG: progress, tree or roofline."""
    drawing = runs.run_plots(parts, run_id).get(name.removesuffix(".svg"))
    if drawing is None:
        raise NotFound(f"{run_id} has no plot {name[:80]!r}", hint=f"See /ui/runs/{run_id}.")
    # The drawing has styles of its own, which its own answer allows; nothing in it may run.
    headers = {
        "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(drawing, media_type="image/svg+xml", headers=headers)


@router.get("/{run_id}/candidates/{number}")
def candidate(run_id: str, number: str, request: Request, parts: Parts) -> HTMLResponse:
    """Its plan, verdict, code, and what it changes of its parent."""
    record = runs.node_record(parts, run_id, number)
    return page(
        request,
        "candidate.html",
        run_id=run_id,
        node=record,
        row=runs.candidate_row(parts, run_id, int(number)),
        diff=runs.candidate_diff(parts, run_id, int(number)),
    )
