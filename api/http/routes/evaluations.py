"""Evaluations over HTTP: a problem and a candidate in, what `kernlore evaluate --json` prints out.

These routes run the code that they are sent, so only callers on this machine may use them, unless
the setting `evaluate_over_http` allows others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request

from api.bodies import EvaluationBody
from api.http.bodies import json_body
from api.http.dependencies import Access, Parts, api_router
from api.http.openapi import json_request
from api.services import evaluate_processes
from kb.addresses import is_loopback
from kb.errors import KernloreError
from kb.plain import plain
from kb.settings import Settings
from optimizer.evaluation.queue import EvaluationQueue, check_submission


class EvaluationForbidden(KernloreError):
    """Only callers on this machine may have code run here."""

    code, status = "evaluation_forbidden", 403


def _queue(request: Request) -> EvaluationQueue:
    evaluations: EvaluationQueue = request.app.state.evaluations
    return evaluations


def from_this_machine(request: Request) -> None:
    """Refuse what could come from elsewhere: the service listens on another address, or a proxy
    passes on requests by another name. Raises EvaluationForbidden.
    """
    settings: Settings = request.app.state.settings
    if settings.evaluate_over_http:
        return
    for what, name in (
        ("listens on", settings.host),
        ("was called as", request.url.hostname or ""),
    ):
        if not is_loopback(name):
            raise EvaluationForbidden(
                f"this service {what} {name[:200]!r}, and an evaluation runs the code that is sent",
                hint="Evaluate on its own machine through 127.0.0.1, or set"
                " KERNLORE_EVALUATE_OVER_HTTP=true where everyone who reaches it may run code.",
            )


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Within that of the application: the services are open, and are closed afterwards."""
    app.state.evaluations = EvaluationQueue(app.state.services, evaluate_processes())
    app.state.evaluations.open()
    try:
        yield
    finally:
        app.state.evaluations.close()


router = api_router("evaluations")
Queue = Annotated[EvaluationQueue, Depends(_queue)]


@router.post(
    "/evaluations",
    summary="Evaluate a candidate",
    status_code=202,
    dependencies=[Depends(from_this_machine)],
    openapi_extra=json_request(EvaluationBody),
)
def evaluate(
    parts: Parts,
    evaluations: Queue,
    body: Annotated[EvaluationBody, Depends(json_body(EvaluationBody))],
) -> dict[str, Any]:
    """Queue the evaluation; `GET /evaluations/{evaluation_id}` has the result. A service carries
    out one at a time."""
    fields = body.model_dump()
    checked = check_submission(
        parts, fields["problem"], fields["candidate"], body.hardware, body.cases or ()
    )
    answer: dict[str, Any] = plain(evaluations.submit(checked))
    return answer


@router.get("/evaluations/{evaluation_id}", summary="Show how far an evaluation is, and its result")
def show(evaluation_id: str, access: Access, evaluations: Queue) -> dict[str, Any]:
    """`state` is queued, running, ready or failed. `error` says why an evaluation failed; a
    candidate that is wrong or crashes is a result, not an error. The `key` of any finished
    evaluation of this data directory may be given as id."""
    answer: dict[str, Any] = plain(evaluations.find(evaluation_id, access))
    return answer
