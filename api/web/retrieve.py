"""Ask: the answer to a signal, a log, metrics or a question, as an optimizer gets it."""

from __future__ import annotations

import json
import shlex
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from api.http.admission import admitted
from api.http.dependencies import Parts
from api.operations import hardware
from api.operations.retrieve import retrieve
from api.services import Services
from api.strict_json import load_json
from api.web.pages import SentForm, error_page, form_route, page, page_router, see_other
from kb.errors import InvalidRequest, KernloreError
from kb.scope import CATEGORIES
from retrieval.diagnose.signals import load_signals
from retrieval.request import TASKS
from retrieval.request_body import read_body

MAX_LINK = 8_000  # characters that every proxy lets pass
FIELDS = ("signal", "hardware", "task", "query", "op", "language", "dtype", "log", "metrics")
router = page_router("/ui/retrieve")
Text = Annotated[str, Query()]


@router.get("", dependencies=[Depends(admitted, scope="function")])
def ask(request: Request, services: Parts) -> HTMLResponse:
    """The form, and the answer to a given question."""
    given = {name: request.query_params.get(name, "") for name in (*FIELDS, "max_tokens")}
    return _answered(request, services, given)


@form_route(router, "", retrieve)
def send(request: Request, services: Parts, form: SentForm) -> Response:
    """A short question becomes a link that can be shared; a long log is answered at once."""
    given = {name: form.text(name) for name in (*FIELDS, "max_tokens")}
    link = urlencode({name: value for name, value in given.items() if value})
    if len(link) <= MAX_LINK:
        return see_other(request, f"/retrieve?{link}")
    return _answered(request, services, given)


def _answered(request: Request, services: Services, given: dict[str, str]) -> HTMLResponse:
    values: dict[str, Any] = {
        "given": given,
        "signals": list(load_signals()),
        "chips": hardware.list_hardware(services).hardware,
        "tasks": TASKS,
        "categories": CATEGORIES,
        "answer": None,
        "error": None,
        "shareable": request.method == "GET",
    }
    if not any(given[name] for name in ("signal", "query", "log", "metrics")):
        return page(request, "retrieve.html", **values)
    try:
        body = _body(given)
        answer = retrieve(services, read_body(body))
    except KernloreError as error:
        if error.status >= 500:
            return error_page(request, error)
        return page(request, "retrieve.html", error.status, **values | {"error": error})
    base = str(request.base_url).rstrip("/")
    values |= {
        "answer": answer.as_json(),
        "curl": _curl(base, body),
        "python": _python(base, body),
        "mcp": _mcp(body),
    }
    return page(request, "retrieve.html", **values)


def _body(given: dict[str, str]) -> dict[str, Any]:
    """The body of POST /retrieve for the fields of the form."""
    body: dict[str, Any] = {name: value for name, value in given.items() if value}
    if "metrics" in body:
        body["metrics"] = _metrics(body["metrics"])
    if "max_tokens" in body:
        if not given["max_tokens"].isdecimal():
            raise InvalidRequest("max_tokens is no number", hint="Use a whole number, like 4000.")
        body["max_tokens"] = int(given["max_tokens"])
    return body


def _metrics(text: str) -> Any:
    """Metrics as JSON, or as lines of a name and a value."""
    if text.lstrip().startswith("{"):
        return load_json(text.encode())
    metrics: dict[str, Any] = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        name, _, value = line.replace("=", " ").replace(",", " ").partition(" ")
        if not value.strip():
            raise InvalidRequest(
                f"the metric {name[:80]!r} has no value",
                hint="Write one metric a line: its name, a space, its value; or paste JSON.",
            )
        metrics[name] = value.strip()
    return metrics


def _curl(base: str, body: dict[str, Any]) -> str:
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"curl -s {base}/retrieve -H 'content-type: application/json' \\\n  -d {data}"


def _mcp(body: dict[str, Any]) -> str:
    """The parameters of a `tools/call` request."""
    call = {"name": "retrieve_context", "arguments": body}
    return json.dumps(call, ensure_ascii=False, indent=2)


def _python(base: str, body: dict[str, Any]) -> str:
    return (
        f"import httpx\n\nbody = {body!r}\n"
        f'answer = httpx.post("{base}/retrieve", json=body, timeout=60).raise_for_status().json()\n'
        'print(answer["context"])\n'
    )
