"""Runs: the list, start and cancel, a run with its tree and plots, a candidate, comparisons."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from api.bodies import RunBody, validated
from api.http.dependencies import Parts
from api.http.routes.evaluations import from_this_machine
from api.http.routes.runs import Processes
from api.services import Services
from api.web.pages import (
    MAX_PAGE,
    PAGE_SIZE,
    Form,
    SentForm,
    counted,
    is_fragment,
    page,
    page_router,
    paged,
    see_other,
)
from ingestion import hardware as chips
from kb.catalog.runs import RunWhere
from kb.errors import InvalidRequest, NotFound
from optimizer.search.runs import run_store as runs
from optimizer.search.runs.run_store import PlotCache

MOST_COMPARED = 6
CANDIDATES = 100  # of a run on one page
STATES = ("running", "finished", "cancelled", "failed")
POLICIES = ("best-first", "mcts", "evolutionary")


def _plots(request: Request) -> PlotCache:
    plots: PlotCache = request.app.state.plots
    return plots


router = page_router("/ui/runs")
Plots = Annotated[PlotCache, Depends(_plots)]
Number = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@router.get("")
def list_page(
    request: Request,
    parts: Parts,
    q: str = "",
    hardware: str = "",
    state: str = "",
    number: Number = 1,
) -> HTMLResponse:
    """Runs, newest first."""
    where = RunWhere(q[:400], hardware, state)
    rows = runs.list_runs(parts, PAGE_SIZE, (number - 1) * PAGE_SIZE, where)
    return page(
        request,
        "runs.html",
        shown=counted(rows, number, runs.count_runs(parts, where)),
        given={"q": q, "hardware": hardware, "state": state},
        chips=chips.list_hardware(parts.registry),
        states=STATES,
    )


@router.get("/new")
def start_form(
    request: Request, parts: Parts, hardware: str = "", problem: str = "", language: str = ""
) -> HTMLResponse:
    """The form that starts a run."""
    from optimizer.evaluation.problem.load import shipped_problems

    return page(
        request,
        "run_new.html",
        given={"hardware": hardware, "problem": problem, "language": language},
        chips=[c for c in chips.list_hardware(parts.registry) if c["kind"] == "accelerator"],
        problems=shipped_problems(),
        policies=POLICIES,
    )


@router.post("", dependencies=[Depends(from_this_machine)])
def start(request: Request, processes: Processes, form: SentForm) -> Response:
    """Start a run, and show it."""
    body = validated(RunBody, _run_asked(form))
    fields = body.model_dump()
    problem = fields["problem"]
    if isinstance(problem, dict):
        problem["name"] = form.text("name")
    goal = body.goal.model_dump(exclude_none=True)
    run_id = processes.start(problem, body.hardware, goal, body.proposers)
    return see_other(request, f"/runs/{run_id}")


def _run_asked(form: Form) -> dict[str, Any]:
    """What the form means as the body of POST /runs."""
    source = next(iter(form.values("source")), "").replace("\r\n", "\n")
    problem: Any = {"source": source} if source.strip() else form.text("problem")
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
    request: Request, parts: Parts, run: Annotated[list[str] | None, Query()] = None
) -> HTMLResponse:
    """Runs side by side."""
    chosen = list(dict.fromkeys(run or ()))
    if not 2 <= len(chosen) <= MOST_COMPARED:
        raise InvalidRequest(
            f"{len(chosen)} runs are marked",
            hint=f"Mark 2 to {MOST_COMPARED} runs of the list, then compare them.",
        )
    compared = runs.compare_runs(parts, *chosen)
    return page(request, "run_compare.html", compared=compared)


@router.get("/{run_id}")
def show(
    run_id: str, request: Request, parts: Parts, processes: Processes, number: Number = 1
) -> HTMLResponse:
    """Goal, result, plots and every candidate. One that is starting has its state alone."""
    return page(request, "run.html", **_shown(run_id, parts, processes, number))


@router.get("/{run_id}/live")
def live(
    run_id: str,
    request: Request,
    parts: Parts,
    processes: Processes,
    after: Annotated[int, Query(ge=-1, le=MAX_PAGE)] = -1,
) -> HTMLResponse:
    """The part of a run's page that changes, with the candidates that came after a number."""
    return page(request, "run_live.html", after=after, **_shown(run_id, parts, processes, 1))


def _shown(run_id: str, parts: Services, processes: Processes, number: int) -> dict[str, Any]:
    run = processes.show(run_id)
    if "problem" not in run:
        return {"run": run, "account": None, "rows": [], "shown": paged((), 1), "roots": []}
    rows = runs.candidate_rows(parts, run_id)
    shown = paged(rows, number, CANDIDATES)
    return {
        "run": run,
        "account": runs.run_account(parts, run_id),
        "rows": rows,
        "shown": shown,
        "roots": _nested(shown.rows),
    }


def _nested(rows: Any) -> list[dict[str, Any]]:
    """The rows as a tree; one whose parent is on another page is a root here."""
    nodes = {row["number"]: {**row, "children": []} for row in rows}
    roots: list[dict[str, Any]] = []
    for node in nodes.values():
        parent = nodes.get(node["parent"])
        (roots if parent is None else parent["children"]).append(node)
    return roots


@router.post("/{run_id}/cancel", dependencies=[Depends(from_this_machine)])
def cancel(run_id: str, request: Request, processes: Processes) -> Response:
    """End a run with everything that it started."""
    processes.cancel(run_id)
    return see_other(request, f"/runs/{run_id}")


@router.get("/{run_id}/download")
def download(run_id: str, parts: Parts) -> Response:
    """Module, report, plots and rows of a run in one file."""
    from optimizer.search.runs.export import exported_zip

    packed = exported_zip(parts, run_id)
    headers = {"Content-Disposition": f'attachment; filename="{run_id}.zip"'}
    return Response(packed, media_type="application/zip", headers=headers)


@router.get("/{run_id}/plots/{name}")
def plot(run_id: str, name: str, parts: Parts, plots: Plots) -> Response:
    """A plot of the run as SVG: progress, tree or roofline."""
    drawing = plots.plots(parts, run_id).get(name.removesuffix(".svg"))
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
    """Its plan, verdict, code, what it changes of its parent, and the conversation behind it; to a
    script, without the frame of the page.
    """
    return page(
        request,
        "candidate_body.html" if is_fragment(request) else "candidate.html",
        run_id=run_id,
        whole=not is_fragment(request),
        **runs.candidate_view(parts, run_id, number),
    )
