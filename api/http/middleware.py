"""Around every request: its id, its log line, its count, and the answer to what nobody foresaw."""

from __future__ import annotations

import re
import time

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.errors import internal_error, respond
from api.http.metrics import Metrics
from kb.ids import new_id

log = structlog.get_logger(__name__)

_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CLIENT_GONE = 499


class RequestLog:
    """Outermost but for the framework's own last resort, which it never reaches."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        status = 0

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        started = time.perf_counter()
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, marked)
            except ClientDisconnect:
                status = status or _CLIENT_GONE
            except Exception:  # the door's boundary: recorded, and answered in the one shape
                log.exception("request failed", route=_route(scope), method=scope["method"])
                if status:
                    raise  # half an answer is out; only closing the connection tells its reader
                await respond(internal_error(request_id))(scope, receive, marked)
            finally:
                self._finish(scope, status or 500, time.perf_counter() - started)

    def _finish(self, scope: Scope, status: int, seconds: float) -> None:
        route, method = _route(scope), scope["method"]
        self._metrics.request(route, method, status, seconds)
        log.info("request", method=method, route=route, status=status, ms=round(seconds * 1000, 2))


def _request_id(scope: Scope) -> str:
    """The caller's own, where it is one."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _GIVEN_ID.fullmatch(given) else new_id("req")


def _route(scope: Scope) -> str:
    """The template, never the path: paths are as many as there are ids."""
    return str(getattr(scope.get("route"), "path", "") or "other")
