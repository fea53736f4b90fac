"""Runs: the list, start and cancel, a run with its tree and plots, a candidate, comparisons."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import HTMLResponse

from api.http.dependencies import Parts
from api.operations.hardware import list_hardware
from api.operations.runs import cancel_run, show_run, start_run
from api.services import Services
from api.web.charts import gain_chart, roof_chart
from api.web.pages import (
    MAX_PAGE,
    PAGE_SIZE,
    Form,
    SentForm,
    carry_out,
    counted,
    form_route,
    is_fragment,
    page,
    page_router,
    paged,
    see_other,
)
from kb.catalog.runs import RunWhere
from kb.errors import InvalidRequest
from optimizer.search.runs import run_store as runs

MOST_COMPARED = 6
CANDIDATES = 100  # of a run on one page
STATES = ("running", "finished", "cancelled", "failed")
POLICIES = ("best-first", "mcts", "evolutionary")


router = page_router("/ui/runs")
Number = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@router.get("")
def list_page(
    request: Request,
    services: Parts,
    q: str = "",
    hardware: str = "",
    state: str = "",
    number: Number = 1,
) -> HTMLResponse:
    """Runs, newest first."""
    where = RunWhere(q[:400], hardware, state)
    rows = runs.list_runs(services, PAGE_SIZE, (number - 1) * PAGE_SIZE, where)
    return page(
        request,
        "runs.html",
        shown=counted(rows, number, runs.count_runs(services, where)),
        given={"q": q, "hardware": hardware, "state": state},
        chips=list_hardware(services).hardware,
        states=STATES,
    )


@router.get("/new")
def start_form(
    request: Request, services: Parts, hardware: str = "", problem: str = "", language: str = ""
) -> HTMLResponse:
    """The form that starts a run."""
    from optimizer.evaluation.problem.load import shipped_problems

    return page(
        request,
        "run_new.html",
        given={"hardware": hardware, "problem": problem, "language": language},
        chips=[c for c in list_hardware(services).hardware if c.kind == "accelerator"],
        problems=shipped_problems(),
        policies=POLICIES,
    )


@form_route(router, "", start_run)
def start(request: Request, services: Parts, form: SentForm) -> Response:
    """Start a run, and show it."""
    run = carry_out(request, services, start_run, **_run_asked(form))
    return see_other(request, f"/runs/{run['id']}")


def _run_asked(form: Form) -> dict[str, Any]:
    """The form as the body of POST /runs."""
    source = next(iter(form.values("source")), "").replace("\r\n", "\n")
    problem: Any = form.text("problem")
    if source.strip():
        problem = {"source": source, "name": form.text("name") or None}
    if not problem:
        raise InvalidRequest(
            "no problem was chosen", hint="Choose one of the list, or give the text of its file."
        )
    goal: dict[str, Any] = {"knowledge": form.text("knowledge") == "yes"}
    for name in ("candidates", "minutes", "target", "seed"):
        if form.text(name):
            goal[name] = _number(form.text(name), name)
    for name in ("language", "policy"):
        if form.text(name):
            goal[name] = form.text(name)
    return {"problem": problem, "hardware": form.text("hardware") or "auto", "goal": goal}


def _number(text: str, name: str) -> int | float:
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise InvalidRequest(f"{name} is no number", hint="Write it in digits, like 12.") from None


@router.get("/compare")
def compare(
    request: Request, services: Parts, run: Annotated[list[str] | None, Query()] = None
) -> HTMLResponse:
    """Runs side by side."""
    chosen = list(dict.fromkeys(run or ()))
    if not 2 <= len(chosen) <= MOST_COMPARED:
        raise InvalidRequest(
            f"{len(chosen)} runs are marked",
            hint=f"Mark 2 to {MOST_COMPARED} runs of the list, then compare them.",
        )
    compared = runs.compare_runs(services, *chosen)
    charts = {run_id: gain_chart(runs.candidate_rows(services, run_id)) for run_id in chosen}
    return page(request, "run_compare.html", compared=compared, charts=charts)


@router.get("/{run_id}")
def show(run_id: str, request: Request, services: Parts, number: Number = 1) -> HTMLResponse:
    """Goal, result, plots and every candidate; of a starting run, its state only."""
    return page(request, "run.html", **_shown(run_id, services, number))


@router.get("/{run_id}/live")
def live(
    run_id: str,
    request: Request,
    services: Parts,
    after: Annotated[int, Query(ge=-1, le=MAX_PAGE)] = -1,
) -> HTMLResponse:
    """The part of a run's page that changes, with the candidates that came after a number."""
    return page(request, "run_live.html", after=after, **_shown(run_id, services, 1))


def _shown(run_id: str, services: Services, number: int) -> dict[str, Any]:
    run = show_run(services, run_id)
    if "problem" not in run:
        nothing = dict.fromkeys(("account", "chart", "roof"))
        return {"run": run, "shown": paged((), 1), "rows": [], "roots": [], "worked": 0, **nothing}
    rows = runs.candidate_rows(services, run_id)
    shown = paged(rows, number, CANDIDATES)
    return {
        "run": run,
        "account": runs.run_account(services, run_id),
        "rows": rows,
        "shown": shown,
        "roots": _nested(shown.rows),
        "chart": gain_chart(rows),
        "roof": roof_chart(rows),
        "worked": time.time() - run.get("work", {}).get("since", time.time()),
    }


def _nested(rows: Any) -> list[dict[str, Any]]:
    """The rows as a tree; one whose parent is on another page is a root here."""
    nodes = {row["number"]: {**row, "children": []} for row in rows}
    roots: list[dict[str, Any]] = []
    for node in nodes.values():
        parent = nodes.get(node["parent"])
        (roots if parent is None else parent["children"]).append(node)
    return roots


@form_route(router, "/{run_id}/cancel", cancel_run)
def cancel(run_id: str, request: Request, services: Parts) -> Response:
    """End a run with everything that it started."""
    cancel_run(services, run_id)
    return see_other(request, f"/runs/{run_id}")


@router.get("/{run_id}/download")
def download(run_id: str, services: Parts) -> Response:
    """Module, report, plots and rows of a run in one file."""
    from optimizer.search.runs.export import exported_zip

    packed = exported_zip(services, run_id)
    headers = {"Content-Disposition": f'attachment; filename="{run_id}.zip"'}
    return Response(packed, media_type="application/zip", headers=headers)


@router.get("/{run_id}/candidates/{number}")
def candidate(run_id: str, number: str, request: Request, services: Parts) -> HTMLResponse:
    """Its plan, verdict, code, what it changes of its parent, and the conversation behind it; to a
    script, without the frame of the page.
    """
    return page(
        request,
        "candidate_body.html" if is_fragment(request) else "candidate.html",
        run_id=run_id,
        whole=not is_fragment(request),
        **runs.candidate_view(services, run_id, number),
    )
