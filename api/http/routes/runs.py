"""Runs of the optimizer over HTTP: start, watch, cancel, propose candidates, review flagged ones.

Starting, cancelling and proposing run code on this machine, so the same callers may do it as for
/evaluations.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request

from api.bodies import ReviewBody, RunBody, StepBody
from api.http.bodies import json_body
from api.http.dependencies import Access, Parts, api_router
from api.http.openapi import json_request
from api.http.routes.evaluations import from_this_machine
from api.services import RUN_COMMAND
from kb.errors import NotFound
from optimizer.search.runs.processes import ServiceRuns


def _processes(request: Request, parts: Parts) -> ServiceRuns:
    """Raises NotFound where the request is about a run that its caller may not see."""
    runs: ServiceRuns = request.app.state.runs
    run_id = request.path_params.get("run_id")
    if run_id is not None and parts.access.restricted:
        from optimizer.search.runs.run_store import run_store

        run_store(parts).run(run_id)
    return runs


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Within that of the application: the services are open, and are closed afterwards."""
    app.state.runs = ServiceRuns(app.state.services, RUN_COMMAND)
    try:
        yield
    finally:
        app.state.runs.close()


router = api_router("runs")
Processes = Annotated[ServiceRuns, Depends(_processes)]


@router.get("/runs", summary="List runs, newest first")
def list_runs(parts: Parts) -> dict[str, Any]:
    """Each run with its goal, state and result."""
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
    processes: Processes, body: Annotated[RunBody, Depends(json_body(RunBody))]
) -> dict[str, Any]:
    """Search for a faster kernel. With the proposer `external`, the run waits for
    `POST /runs/{run_id}/candidates`; `GET /runs/{run_id}/context` says what it waits for."""
    fields = body.model_dump()
    goal = body.goal.model_dump(exclude_none=True)
    run_id = processes.start(
        fields["problem"], body.hardware, goal, body.proposers, body.context_tokens
    )
    return {"id": run_id, "state": "starting"}


@router.get("/runs/{run_id}", summary="Show the goal, state and result of a run")
def show(run_id: str, processes: Processes) -> dict[str, Any]:
    """`state` is starting, running, finished, cancelled or failed; `ended` says why it ended."""
    return processes.show(run_id)


@router.get("/runs/{run_id}/tree", summary="List every candidate of a run")
def tree(run_id: str, parts: Parts) -> dict[str, Any]:
    """`parent` is the number of the candidate that it changes; 0 is the reference."""
    from optimizer.search.runs.run_store import node_views

    return {"nodes": node_views(parts, run_id)}


@router.get("/runs/{run_id}/candidates/{number}", summary="Show one candidate with its evaluation")
def candidate(run_id: str, number: str, parts: Parts) -> dict[str, Any]:
    """Its files and plan, the knowledge that its proposer was shown, and what was measured."""
    from optimizer.search.runs.run_store import node_record

    return node_record(parts, run_id, number)


@router.post(
    "/runs/{run_id}/cancel",
    summary="End a run",
    dependencies=[Depends(from_this_machine)],
)
def cancel(run_id: str, processes: Processes) -> dict[str, Any]:
    """When the request returns, every process of a run that this service started has ended; those
    of another replica end within a few seconds, those of a command or of a service that was killed
    after their candidate. `note` says where processes may still be ending."""
    return processes.cancel(run_id)


@router.get("/runs/{run_id}/context", summary="Show what the next candidate can be based on")
def context(run_id: str, processes: Processes) -> dict[str, Any]:
    """The candidate to change, its evaluation, and the knowledge about it; `briefing` says the same
    in words, as a language model is told. `waiting` is false while the run measures, or after it
    has ended."""
    return processes.context(run_id)


@router.post(
    "/runs/{run_id}/candidates",
    summary="Propose the candidate that a run waits for, or nothing more",
    status_code=202,
    dependencies=[Depends(from_this_machine)],
    openapi_extra=json_request(StepBody),
)
def propose(
    run_id: str, processes: Processes, body: Annotated[StepBody, Depends(json_body(StepBody))]
) -> dict[str, Any]:
    """`step` is that of the run's context; 404 for a step that the run does not wait for, 409 for a
    step that has a candidate already."""
    fields = None if body.candidate is None else body.candidate.model_dump(exclude_none=True)
    return processes.propose(run_id, body.step, fields, body.plan, body.used)


# -- integrity flags: what waits for a person, and the person's decision. Runs nothing.


@router.get("/runs/{run_id}/flagged", summary="List candidates that wait for a person's decision")
def flagged(run_id: str, parts: Parts, access: Access) -> dict[str, Any]:
    """Candidates with integrity flags that only a person can decide on. `run_id` may be the id of a
    run, or of an external trajectory that is ready. `decision` is the newest decision, and null
    while there is none: until then nothing is learned from the candidate, and it is left out of
    training data."""
    from skills.trajectories.reading import flagged_nodes

    nodes = flagged_nodes(parts, run_id, access)
    return {"run": run_id, "flagged": [node.as_json() for node in nodes]}


@router.post(
    "/runs/{run_id}/nodes/{number}/review",
    summary="Accept or refuse a flagged candidate",
    status_code=201,
    openapi_extra=json_request(ReviewBody),
)
def review(
    run_id: str,
    number: str,
    parts: Parts,
    access: Access,
    body: Annotated[ReviewBody, Depends(json_body(ReviewBody))],
) -> dict[str, Any]:
    """Every decision is kept, and the newest counts. 409 where no flag of the candidate waits for a
    person, or where a check rejected it, which nobody can overrule."""
    from skills.trajectories.reading import flagged_nodes, review_node

    if not (number.isascii() and number.isdigit() and len(number) < 10):
        flagged_nodes(parts, run_id, access)  # an unknown run is reported first
        raise NotFound(
            f"{run_id} has no node {number[:80]!r}",
            hint=f"GET /runs/{run_id}/flagged shows what waits for a person.",
        )
    decided = review_node(
        parts, run_id, int(number), body.decision, body.actor, body.reason, access
    )
    return decided.as_json()
