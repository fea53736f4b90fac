"""Runs: the list, start and cancel, a run with its tree and plots, a candidate, comparisons."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import HTMLResponse

from api.http.routes import Parts
from api.operations.hardware import list_hardware
from api.operations.runs import cancel_run, review_candidate, show_run, start_run
from api.services import Services
from api.web.pages import (
    MAX_PAGE,
    PAGE_SIZE,
    Form,
    Number,
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

# -- the gain over the candidates, as coordinates
#
# The page draws them in its own colours. A candidate without a figure has no place on the axis of
# the gain.

WIDTH, HEIGHT = 900, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 14, 58
LANE = HEIGHT - 34  # where candidates without a figure are drawn


@dataclass(frozen=True)
class CandidateMark:
    """A candidate. `kind` is right, rough, wrong or untimed; `low` and `high` are the ends of its
    interval."""

    number: int
    kind: str
    label: str
    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class GainChart:
    """Marks, the line of the best so far, and the labels of both axes (text, place)."""

    marks: list[CandidateMark]
    best: str
    one: float
    gains: list[tuple[str, float]]
    numbers: list[tuple[str, float]]
    kinds: list[str] = field(default_factory=list)
    width: int = WIDTH
    height: int = HEIGHT
    lane: int = LANE


def gain_chart(rows: Sequence[Mapping[str, Any]]) -> GainChart | None:
    """The chart of the candidates' rows, or None without a candidate."""
    tried = [row for row in rows if row["number"] > 0]
    if not tried:
        return None
    values = [1.0]
    for row in tried:
        if row["interval"]:
            values += [row["interval"]["low"], row["interval"]["high"]]
        elif row["rough_gain"]:
            values.append(row["rough_gain"])
    low, high = float(min(values)) / 1.08, float(max(values)) * 1.08
    last = max(int(row["number"]) for row in tried)

    def x(number: int) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * number / max(1, last), 1)

    def y(value: float) -> float:
        share = math.log(value / low) / math.log(high / low)
        return float(round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share, 1))

    marks, best, reached = [], [f"M{x(0)} {y(1.0)}"], 1.0
    for row in tried:
        mark = _mark(row, x(row["number"]), y)
        marks.append(mark)
        if mark.kind == "right" and row["interval"]["value"] > reached:
            best.append(f"H{mark.x}V{mark.y}")
            reached = row["interval"]["value"]
    best.append(f"H{x(last)}")
    step = max(1, math.ceil(last / 12))
    return GainChart(
        marks,
        "".join(best),
        y(1.0),
        [(f"{value:g}x", y(value)) for value in _ticks(low, high)],
        [(str(n), x(n)) for n in range(0, last + 1, step)],
        [kind for kind in KINDS if any(mark.kind == kind for mark in marks)],
    )


@dataclass(frozen=True)
class RoofChart:
    """Marks by their shares of two ceilings; `x` and `y` are the places of 100 %, `ticks` are
    (text, place across, place up)."""

    marks: list[CandidateMark]
    x: float
    y: float
    ticks: list[tuple[str, float, float]]
    width: int = WIDTH
    height: int = HEIGHT + 60


def roof_chart(rows: Sequence[Mapping[str, Any]]) -> RoofChart | None:
    """The chart of the candidates with both shares, or None without any."""
    placed = [row for row in rows if row["shares"]]
    if not placed:
        return None
    top = float(max(105.0, *(1.05 * s for row in placed for s in row["shares"].values())))
    height = HEIGHT + 60

    def x(share: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * share / top, 1)

    def y(share: float) -> float:
        return round(height - 44 - (height - 44 - TOP) * share / top, 1)

    marks = []
    for row in placed:
        compute, memory = row["shares"]["compute"], row["shares"]["memory"]
        name = f"candidate {row['number']}" if row["number"] else "the reference"
        label = f"{name}: {compute:.0f} % of the matrix peak, {memory:.0f} % of the bandwidth"
        kind = "right" if row["number"] else "untimed"
        marks.append(CandidateMark(row["number"], kind, label, x(compute), y(memory)))
    ticks = [(f"{share} %", x(share), y(share)) for share in range(0, 101, 25)]
    return RoofChart(marks, x(100), y(100), ticks)


KINDS = ("right", "rough", "wrong", "untimed")


def _mark(row: Mapping[str, Any], x: float, y: Any) -> CandidateMark:
    number = row["number"]
    if row["interval"]:
        at = row["interval"]
        label = f"candidate {number}: {at['value']:.2f}x [{at['low']:.2f}, {at['high']:.2f}]"
        return CandidateMark(number, "right", label, x, y(at["value"]), y(at["low"]), y(at["high"]))
    if row["rough_gain"]:
        label = f"candidate {number}: {row['rough']}"
        return CandidateMark(number, "rough", label, x, y(row["rough_gain"]))
    kind = "untimed" if row["verdict"] in ("correct", "unmeasured") else "wrong"
    return CandidateMark(number, kind, f"candidate {number}: {row['verdict']}", x, LANE)


def _ticks(low: float, high: float) -> list[float]:
    """At most about six round values of a logarithmic axis."""
    steps = [0.1, 0.25, 0.5, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128]
    fine = (0.8, 0.9, 1.1) if high / low > 2.5 else ()
    inside = [step for step in steps if low <= step <= high and step not in fine]
    return inside[:: max(1, math.ceil(len(inside) / 7))] if len(inside) > 7 else inside


MOST_COMPARED = 6
CANDIDATES = 100  # of a run on one page
STATES = ("running", "finished", "cancelled", "failed")
POLICIES = ("best-first", "mcts", "evolutionary")


router = page_router("/ui/runs")


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
    from optimizer.search.runs.optimize import exported_zip

    packed = exported_zip(services, run_id)
    headers = {"Content-Disposition": f'attachment; filename="{run_id}.zip"'}
    return Response(packed, media_type="application/zip", headers=headers)


@router.get("/{run_id}/candidates/{number}")
def candidate(run_id: str, number: str, request: Request, services: Parts) -> HTMLResponse:
    """Its plan, verdict, code, what it changes of its parent, and the conversation behind it; to a
    script, without the frame of the page."""
    return page(
        request,
        "candidate_body.html" if is_fragment(request) else "candidate.html",
        run_id=run_id,
        whole=not is_fragment(request),
        **runs.candidate_view(services, run_id, number),
    )


@form_route(router, "/{run_id}/candidates/{number}/review", review_candidate)
def review(run_id: str, number: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Decide about the flags of a candidate."""
    given = {name: form.text(name) for name in ("decision", "actor", "reason")}
    carry_out(request, services, review_candidate, run_id=run_id, number=number, **given)
    return see_other(request, f"/runs/{run_id}/candidates/{number}#integrity")
