"""Runs of the optimizer over HTTP: start, watch, cancel, and propose candidates to one.

These routes run code on this machine, so the same callers may use them as /evaluations.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request

from api.http.bodies import json_body
from api.http.dependencies import Parts
from api.http.models import CandidateBody, RunBody, StepBody
from api.http.openapi import json_request
from api.http.routes import run_reviews
from api.http.routes.evaluations import from_this_machine
from api.services import RUN_COMMAND
from kb.errors import NotFound
from kb.plain import plain
from optimizer.search.runs.processes import RunProcesses, Sent


def _processes(request: Request) -> RunProcesses:
    runs: RunProcesses = request.app.state.runs
    return runs


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Within that of the application: the services are open, and are closed afterwards."""
    app.state.runs = RunProcesses(app.state.services, RUN_COMMAND)
    try:
        yield
    finally:
        app.state.runs.close()


router = APIRouter(tags=["runs"], lifespan=_lifespan)
router.include_router(run_reviews.router)
Processes = Annotated[RunProcesses, Depends(_processes)]


@router.get("/runs", summary="Every run, the newest first")
def list_runs(parts: Parts) -> dict[str, Any]:
    from optimizer.search.runs.run_store import run_store

    return {"runs": [row.as_json() for row in run_store(parts).latest()]}


@router.post(
    "/runs",
    summary="Start a run",
    status_code=202,
    dependencies=[Depends(from_this_machine)],
    openapi_extra=json_request(RunBody),
)
def start(
    parts: Parts,
    processes: Processes,
    body: Annotated[RunBody, Depends(json_body(RunBody))],
) -> dict[str, Any]:
    """`proposers`: builtin, external or both. A run that external proposers take part in waits for
    POST /runs/{id}/candidates; GET /runs/{id}/context says what for."""
    from optimizer.evaluation.evaluate import problem_named, problem_sent
    from optimizer.search.goal import goal_from_json

    goal = goal_from_json(body.goal.model_dump(exclude_none=True))
    sent = body.problem
    if isinstance(sent, str):
        place = Sent(str(problem_named(sent).path))
    else:
        problem_sent(sent.source, sent.toml)  # refuses what is no problem
        place = Sent(None, sent.source, sent.toml)
    if body.hardware != "auto":
        parts.registry.resolve(body.hardware)
    run_id = processes.start(place, body.hardware, goal.as_json(), tuple(body.proposers))
    return {"id": run_id, "state": "starting"}


@router.get("/runs/{run_id}", summary="Goal, state and result of a run")
def show(run_id: str, parts: Parts, processes: Processes) -> dict[str, Any]:
    from optimizer.search.runs.run_store import run_store

    try:
        row = run_store(parts).run(run_id).as_json()
    except NotFound:
        told: dict[str, Any] | None = processes.state(run_id)
        if told is None:
            raise
        return told
    if row["state"] == "running" and not processes.alive(run_id):
        row["note"] = "no process of this service works on it; `kernlore runs resume` goes on"
    return row


@router.get("/runs/{run_id}/tree", summary="Every candidate of a run")
def tree(run_id: str, parts: Parts) -> dict[str, Any]:
    from optimizer.search.runs.run_store import run_store
    from optimizer.search.synthesizers.external import shown_node

    store = run_store(parts)
    store.run(run_id)
    nodes = store.nodes(run_id)
    rows = [{**shown_node(n, source=False), "parent": n.parent} for n in nodes]
    return {"nodes": plain(rows)}


@router.get("/runs/{run_id}/candidates/{number}", summary="One candidate with its evaluation")
def candidate(run_id: str, number: str, parts: Parts) -> dict[str, Any]:
    from optimizer.search.runs.run_store import run_store

    store = run_store(parts)
    store.run(run_id)
    nodes = store.nodes(run_id)
    if not (number.isascii() and number.isdigit() and int(number) < len(nodes)):
        raise NotFound(f"{run_id} has no node {number}", hint=f"It has 0 to {len(nodes) - 1}.")
    told: dict[str, Any] = plain(nodes[int(number)].as_json())
    return told


@router.post(
    "/runs/{run_id}/cancel",
    summary="End a run",
    dependencies=[Depends(from_this_machine)],
)
def cancel(run_id: str, parts: Parts, processes: Processes) -> dict[str, Any]:
    """Nothing of it is alive when this answers."""
    processes.cancel(run_id)
    return show(run_id, parts, processes)


@router.get("/runs/{run_id}/context", summary="What the next candidate is to be made from")
def context(run_id: str, parts: Parts, processes: Processes) -> dict[str, Any]:
    """`waiting` is false while the run is measuring, or has ended."""
    told = show(run_id, parts, processes)
    asked = processes.mailbox(run_id).open_context()
    waiting = asked is not None and processes.alive(run_id)
    return {"waiting": waiting, "state": told["state"], "context": asked if waiting else None}


@router.post(
    "/runs/{run_id}/candidates",
    summary="Propose the candidate that a run waits for",
    status_code=202,
    dependencies=[Depends(from_this_machine)],
    openapi_extra=json_request(StepBody),
)
def propose(
    run_id: str,
    parts: Parts,
    processes: Processes,
    body: Annotated[StepBody, Depends(json_body(StepBody))],
) -> dict[str, Any]:
    show(run_id, parts, processes)
    given: CandidateBody = body.candidate
    told = {**given.model_dump(exclude_none=True), "plan": body.plan, "used": body.used}
    if "entry" not in told:
        from optimizer.evaluation.bundle import default_entry

        told["entry"] = default_entry(given.main)
    processes.mailbox(run_id).answer(body.step, told)
    return {"run": run_id, "step": body.step, "state": "accepted"}
