"""Evaluations over HTTP: a problem and a candidate in, what `kernlore evaluate --json` prints out.

These routes run the code that they are sent, so only callers on this machine may use them unless
the setting `evaluate_over_http` says otherwise.
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request

from api.http.bodies import json_body
from api.http.dependencies import Access, Parts
from api.http.models import EvaluationBody
from api.http.openapi import json_request
from api.services import EVALUATE_COMMAND
from kb.catalog.search.evaluations import Evaluations
from kb.errors import KernloreError
from kb.plain import plain
from kb.settings import Settings
from optimizer.evaluation.queue import EvaluationJob, EvaluationQueue, Sent


class EvaluationForbidden(KernloreError):
    """Running what is sent is for this machine alone."""

    code, status = "evaluation_forbidden", 403


def _queue(request: Request) -> EvaluationQueue:
    evaluations: EvaluationQueue = request.app.state.evaluations
    return evaluations


def from_this_machine(request: Request) -> None:
    """Refuse what could come from elsewhere: the service listens there, or a page of another site
    has made its own name mean this machine."""
    settings: Settings = request.app.state.settings
    if settings.evaluate_over_http:
        return
    for what, name in (
        ("listens on", settings.host),
        ("was called as", request.url.hostname or ""),
    ):
        if not _loopback(name):
            raise EvaluationForbidden(
                f"this service {what} {name[:200]!r}, and an evaluation runs the code that is sent",
                hint="Evaluate on its own machine through 127.0.0.1, or set"
                " KERNLORE_EVALUATE_OVER_HTTP=true where everyone who reaches it may run code.",
            )


def _loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Within that of the application: the services are open, and are closed afterwards."""
    app.state.evaluations = EvaluationQueue(app.state.services, EVALUATE_COMMAND)
    try:
        yield
    finally:
        app.state.evaluations.close()


router = APIRouter(tags=["evaluations"], lifespan=_lifespan)
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
    """Queued; GET /evaluations/{id} has the result. One at a time is carried out."""
    from optimizer.evaluation.bundle import Bundle, default_entry
    from optimizer.evaluation.evaluate import ask_for, problem_named, problem_sent

    sent, given = body.problem, body.candidate
    bundle = Bundle(
        given.files,
        given.main,
        given.language,
        given.entry or default_entry(given.main),
        given.parameters,
    )
    place: Path | str
    if isinstance(sent, str):
        problem, toml = problem_named(sent), None
        place = problem.path.parent
    else:
        problem, toml = problem_sent(sent.source, sent.toml), sent.toml
        place = sent.source
    cases = tuple(body.cases or ())
    ask_for(parts, problem, bundle, hardware=body.hardware, cases=cases)
    return _shown(evaluations.submit(Sent(place, toml, bundle, body.hardware, cases)))


@router.get("/evaluations/{evaluation_id}", summary="How far an evaluation is, and its result")
def show(evaluation_id: str, parts: Parts, access: Access, evaluations: Queue) -> dict[str, Any]:
    """`state` is queued, running, ready or failed; then `error` says why. A candidate that is wrong
    or crashes is a result. The `key` of any finished evaluation of this data directory is an id
    too."""
    stored = Evaluations(parts.catalog, access).find(evaluation_id)
    if stored is None or stored.record is None:
        return _shown(evaluations.get(evaluation_id))
    from optimizer.evaluation.evaluate import with_knowledge
    from optimizer.evaluation.records import evaluation_from_json

    result = plain(with_knowledge(parts, evaluation_from_json(stored.record)))
    return _shown(EvaluationJob(evaluation_id, "ready", stored.created_at, result=result))


def _shown(job: EvaluationJob) -> dict[str, Any]:
    answer: dict[str, Any] = plain(job)
    return answer
