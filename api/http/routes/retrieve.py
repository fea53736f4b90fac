"""The question: by signal, log, metrics or words; and what became of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from api.http.bodies import (
    check_text,
    is_json,
    json_body,
    load_json,
    media_type,
    read_limited,
    too_large,
    validated,
)
from api.http.dependencies import Access, Counters, Parts
from api.http.models import OutcomeBody, RetrieveBody
from api.http.openapi import json_request, retrieve_examples, text_request
from kb.errors import InvalidRequest, UnsupportedFormat
from kb.settings import Settings
from retrieval.answer import Answer, RetrieveRequest
from retrieval.diagnose.signals import load_signals

router = APIRouter(tags=["retrieve"])

_EXAMPLES = {signal.id: {"summary": signal.title, "value": signal.id} for signal in load_signals()}


@dataclass(frozen=True)
class Narrowed:
    """What the query of a request says beside its subject."""

    hardware: Annotated[str | None, Query(description="Id, name or alias.")] = None
    op: Annotated[str | None, Query(description="Operator or family, as matmul.")] = None
    language: Annotated[str | None, Query(description="As triton, cuda, hip.")] = None
    dtype: Annotated[str | None, Query(description="As bf16.")] = None
    k: Annotated[int | None, Query(description="Excerpts in the ranked list.")] = None
    max_tokens: Annotated[int | None, Query(description="Budget of `context`.")] = None
    categories: Annotated[
        list[str] | None, Query(description="constraint, guidance, hardware; comma or repeated.")
    ] = None
    skill_states: Annotated[list[str] | None, Query(description="Comma or repeated.")] = None

    def body(self, **subject: str | None) -> RetrieveBody:
        given: dict[str, Any] = {**subject, **vars(self)}
        for name in ("categories", "skill_states"):
            if given[name] is not None:
                given[name] = ",".join(given[name])
        return validated(RetrieveBody, {key: value for key, value in given.items() if value != ""})


Narrowing = Annotated[Narrowed, Depends()]


@router.get(
    "/retrieve",
    summary="Ask by signal or words",
    responses={200: {"model": Answer, "description": "A cited answer."}},
)
def retrieve(
    parts: Parts,
    counters: Counters,
    access: Access,
    narrowed: Narrowing,
    signal: Annotated[
        str | None, Query(description="GET /signals lists them.", openapi_examples=_EXAMPLES)
    ] = None,
    q: Annotated[str | None, Query(description="A question.")] = None,
) -> JSONResponse:
    """Equal requests give the same `context` byte for byte, as long as nothing was ingested."""
    return _answer(parts, counters, narrowed.body(signal=signal, query=q), access)


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
    responses={200: {"model": Answer, "description": "A cited answer."}},
    openapi_extra=text_request(
        json_request(RetrieveBody, retrieve_examples()),
        "text/plain",
        "A raw log; what narrows the answer goes into the query.",
        "ptxas error : Entry function uses too much shared data (0x10400 bytes, 0xc000 max)",
    ),
)
def retrieve_for(
    request: Request,
    parts: Parts,
    counters: Counters,
    access: Access,
    narrowed: Narrowing,
    sent: Annotated[_Sent, Depends(_sent)],
) -> JSONResponse:
    """Takes JSON, or a raw log as text/plain with the rest as query parameters."""
    if sent.is_log:
        log = check_text(sent.data.decode("utf-8", "replace"), "the log")
        body = narrowed.body(log=log)
    else:
        if request.query_params:
            raise InvalidRequest(
                "query parameters beside a JSON body",
                hint=f"Put {', '.join(request.query_params)} into the body.",
            )
        body = validated(RetrieveBody, load_json(sent.data))
    return _answer(parts, counters, body, access)


def _answer(parts: Parts, counters: Counters, body: RetrieveBody, access: str) -> JSONResponse:
    answer = parts.retriever.retrieve(_request(body, parts.settings, access))
    counters.retrieval(answer)
    return JSONResponse(answer.as_json())


def _request(body: RetrieveBody, settings: Settings, access: str) -> RetrieveRequest:
    if body.log is not None and len(body.log.encode()) > settings.max_log_bytes:
        raise too_large("log", settings.max_log_bytes, "KERNLORE_MAX_LOG_BYTES")
    k = settings.default_k if body.k is None else body.k
    if not 1 <= k <= settings.max_k:
        raise InvalidRequest(f"k is {k}", hint=f"Use 1 to {settings.max_k}.")
    budget = settings.default_max_tokens if body.max_tokens is None else body.max_tokens
    return RetrieveRequest(
        signal=_given(body.signal),
        log=_given(body.log),
        metrics=body.metrics or None,
        query=_given(body.query),
        hardware=_given(body.hardware),
        op=_given(body.op),
        language=_given(body.language),
        dtype=_given(body.dtype),
        problem=body.problem or None,
        k=k,
        max_tokens=budget,
        categories=tuple(dict.fromkeys(body.categories)) if body.categories else None,
        skill_states=tuple(dict.fromkeys(body.skill_states or ())),
        run_id=_given(body.run_id),
        node_id=_given(body.node_id),
        access_scope=access,
    )


def _given(text: str | None) -> str | None:
    """An empty field of a form is none."""
    return text if text and text.strip() else None


@router.post(
    "/retrievals/{retrieval_id}/outcome",
    summary="Report what became of an answer",
    status_code=201,
    openapi_extra=json_request(OutcomeBody),
)
def report_outcome(
    retrieval_id: str,
    parts: Parts,
    body: Annotated[OutcomeBody, Depends(json_body(OutcomeBody))],
) -> dict[str, str]:
    """`used` takes ids that this answer showed; every later ranking of skills rests on it."""
    outcome = parts.retriever.report_outcome(
        retrieval_id,
        used=body.used,
        correct=body.correct,
        speedup=body.speedup,
        baseline_speedup=body.baseline_speedup,
        note=body.note,
    )
    parts.skills.observed(body.used)
    return {"retrieval_id": retrieval_id, "outcome_id": outcome}
