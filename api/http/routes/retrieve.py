"""The question: by signal, log, metrics or words; and what became of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse

from api.http.admission import admitted
from api.http.bodies import (
    check_text,
    is_json,
    json_body,
    load_json,
    media_type,
    read_limited,
    too_large,
)
from api.http.dependencies import Access, Counters, Parts, api_router
from api.http.models import OutcomeBody
from api.http.openapi import json_request, retrieve_examples, text_request
from api.services import Services
from kb.errors import InvalidRequest, UnsupportedFormat
from kb.scope import AccessScope
from kb.settings import Settings
from retrieval.answer import Answer
from retrieval.request import RetrieveRequest
from retrieval.request_body import (
    RetrieveBody,
    RetrieveQuery,
    body_of_query,
    check_repeated,
    read_request,
)
from retrieval.stages import watching

router = api_router("retrieve")


Parameters = Annotated[RetrieveQuery, Query()]


@router.get(
    "/retrieve",
    summary="Ask by signal or words",
    dependencies=[Depends(admitted)],
    responses={200: {"model": Answer, "description": "A cited answer."}},
)
def retrieve(
    request: Request, parts: Parts, counters: Counters, access: Access, parameters: Parameters
) -> JSONResponse:
    """Cited passages, moves and skills about a signal or a question. Equal requests give the same
    `context` byte for byte, as long as nothing was ingested."""
    check_repeated([name for name, _ in request.query_params.multi_items()])
    return _answer(parts, counters, body_of_query(parameters), access)


@dataclass(frozen=True)
class _Sent:
    data: bytes
    is_log: bool


async def _sent(request: Request) -> _Sent:
    settings: Settings = request.app.state.settings
    kind = media_type(request)
    if kind == "text/plain":
        limit = settings.max_log_bytes
        return _Sent(await read_limited(request, limit, "log", "KERNLORE_MAX_LOG_BYTES"), True)
    if is_json(kind):
        limit = settings.max_body_bytes
        return _Sent(await read_limited(request, limit, "body", "KERNLORE_MAX_BODY_BYTES"), False)
    raise UnsupportedFormat(
        f"{kind or 'a body without content type'} where JSON or a log belongs",
        hint="Send JSON as application/json, or a raw log with `content-type: text/plain`.",
    )


@router.post(
    "/retrieve",
    summary="Ask with a log, metrics, a question or a signal",
    dependencies=[Depends(admitted)],
    responses={200: {"model": Answer, "description": "A cited answer."}},
    openapi_extra=text_request(
        json_request(RetrieveBody, retrieve_examples()),
        "text/plain",
        "A raw log; the other fields are query parameters.",
        "ptxas error : Entry function uses too much shared data (0x10400 bytes, 0xc000 max)",
    ),
)
def retrieve_for(
    request: Request,
    parts: Parts,
    counters: Counters,
    access: Access,
    parameters: Parameters,
    sent: Annotated[_Sent, Depends(_sent)],
) -> JSONResponse:
    """Takes JSON, or a raw log as text/plain with the other fields as query parameters."""
    if sent.is_log:
        check_repeated([name for name, _ in request.query_params.multi_items()])
        log = check_text(sent.data.decode("utf-8", "replace"), "the log")
        return _answer(parts, counters, body_of_query(parameters, log=log), access)
    if request.query_params:
        raise InvalidRequest(
            "query parameters beside a JSON body",
            hint=f"Put {', '.join(request.query_params)} into the body.",
        )
    return _answer(parts, counters, load_json(sent.data), access)


def _answer(parts: Parts, counters: Counters, body: Any, access: AccessScope) -> JSONResponse:
    with watching(counters.stage):
        answer = answer_of(parts, body, access)
    counters.retrieval(answer)
    return JSONResponse(answer.as_json())


def answer_of(parts: Services, body: Any, access: AccessScope) -> Answer:
    """The answer to a decoded body, within the limits of this service."""
    settings = parts.settings
    defaults = {"k": settings.default_k, "max_tokens": settings.default_max_tokens}
    request = read_request(body, defaults, access)
    check_limits(request, settings)
    return parts.retriever.retrieve(request)


def check_limits(request: RetrieveRequest, settings: Settings) -> None:
    """Refuse what exceeds the settings of this service."""
    if request.log is not None and len(request.log.encode()) > settings.max_log_bytes:
        raise too_large("log", settings.max_log_bytes, "KERNLORE_MAX_LOG_BYTES")
    if not 1 <= request.k <= settings.max_k:
        raise InvalidRequest(f"k is {request.k}", hint=f"Use 1 to {settings.max_k}.")


@router.post(
    "/retrievals/{retrieval_id}/outcome",
    summary="Report what became of an answer",
    status_code=201,
    openapi_extra=json_request(OutcomeBody),
)
def report_outcome(
    retrieval_id: str,
    parts: Parts,
    access: Access,
    body: Annotated[OutcomeBody, Depends(json_body(OutcomeBody))],
) -> dict[str, str]:
    """Reported outcomes decide how skills are ranked later; `used` lists the ids of the answer that
    were acted on. Report once for each kernel that the answer led to: every report counts as one
    outcome, also a second one for the same answer."""
    outcome = parts.retriever.report_outcome(
        retrieval_id,
        used=body.used,
        correct=body.correct,
        speedup=body.speedup,
        baseline_speedup=body.baseline_speedup,
        note=body.note,
        access_scope=access,
    )
    parts.report_skill_use(body.used)
    return {"retrieval_id": retrieval_id, "outcome_id": outcome}
