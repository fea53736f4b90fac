"""Error responses: {code, message, hint, details}.

Covers errors of the product, of the web framework and of request models. Any other exception is a
defect; the middleware logs it and answers without its internals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException

from kb.catalog.database import store_fault
from kb.errors import (
    InternalError,
    InvalidRequest,
    KernloreError,
    NotFound,
    Unavailable,
    error_json,
    invalid_fields,
    nearest,
)


class MethodNotAllowed(KernloreError):
    """The route exists, but not with this method."""

    code, status = "method_not_allowed", 405


class UnknownHost(KernloreError):
    """The host name of the request is not one of the service."""

    code, status = "unknown_host", 421


class ForeignPage(KernloreError):
    """The request comes from a page of another site."""

    code, status = "foreign_page", 403


def internal_error(request_id: str) -> InternalError:
    """The answer to a defect, without its internals."""
    return InternalError(
        "the service failed to answer this request",
        hint="This is a defect of Kernlore; report it with the request id, which is in the log.",
        details={"request_id": request_id},
    )


def respond(error: KernloreError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The error as a response with its status."""
    return JSONResponse(error_json(error), status_code=error.status, headers=headers)


def install(app: FastAPI) -> None:
    """Add the exception handlers."""
    app.add_exception_handler(KernloreError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(DBAPIError, _store)
    app.add_exception_handler(OSError, _store)


def _known(_: Request, error: Exception) -> JSONResponse:
    known = cast(KernloreError, error)
    seconds = known.details.get("retry_after_seconds")
    return respond(known, {"Retry-After": str(seconds)} if seconds else None)


def _invalid(_: Request, error: Exception) -> JSONResponse:
    problems = cast(RequestValidationError, error).errors()
    # The first part of `loc` is query or path.
    return respond(invalid_fields([{**p, "loc": p["loc"][1:] or p["loc"]} for p in problems]))


def known_fault(error: Exception) -> KernloreError:
    """The error to answer with, if it is of the product or the store; any other one is raised."""
    if isinstance(error, KernloreError):
        return error
    fault = store_fault(error)
    if fault is None:
        raise error
    return fault


def _store(_: Request, error: Exception) -> JSONResponse:
    fault = known_fault(error)
    return respond(fault, {"Retry-After": "1"} if isinstance(fault, Unavailable) else None)


def _http(request: Request, error: Exception) -> JSONResponse:
    error = cast(HTTPException, error)
    if error.status_code == 404:
        return respond(_unknown_route(request))
    if error.status_code == 405:
        methods = _methods(request) or [m for m in (error.headers or {}).values()]
        wrong = MethodNotAllowed(
            f"{request.method[:20]} is not possible here",
            hint=f"Use {' or '.join(methods)}; GET /docs lists every route.",
            details={"allowed": methods},
        )
        return respond(wrong, {"Allow": ", ".join(methods)})
    other = InvalidRequest(str(error.detail), hint="GET /docs describes every request.")
    return JSONResponse(error_json(other), status_code=error.status_code, headers=error.headers)


def _unknown_route(request: Request) -> NotFound:
    known = request.app.openapi()["paths"]
    near = nearest(request.url.path[:200], known)
    meant = f"Did you mean {', '.join(near)}? " if near else ""
    return NotFound(
        f"no route {request.url.path[:200]}",
        hint=f"{meant}GET /docs lists every route.",
        details={"nearest": near},
    )


def _methods(request: Request) -> list[str]:
    template = getattr(request.scope.get("route"), "path", "")
    return sorted(method.upper() for method in request.app.openapi()["paths"].get(template, ()))
