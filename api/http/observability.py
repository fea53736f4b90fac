"""Log line, metrics and id of every request.

Counts are in the Prometheus text format. Their labels come from closed lists (route templates,
signal ids, states), never from the text of a request, so that the number of series is bounded.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.errors import internal_error, respond
from api.services import Readiness
from kb import telemetry
from kb.answers import Answer
from kb.catalog.evaluations import Figures
from kb.ids import new_id

_METHODS = frozenset({"GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "PUT"})
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_STATES = ("queued", "running", "ready", "partial", "failed")
_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CLIENT_GONE = 499
_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})

COUNTS = "PROMETHEUS_MULTIPROC_DIR"  # folder of the counts that all processes of a service share

log = structlog.get_logger(__name__)


class Metrics:
    """The counters of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._state: _State | None = None
        self._requests = Counter(
            "kernlore_http_requests",
            "Requests by route, method and status.",
            ["route", "method", "status"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "kernlore_http_request_seconds",
            "Time to the end of the answer, by route.",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._retrievals = Counter(
            "kernlore_retrievals",
            "Retrievals by the strongest signal; `none` without one.",
            ["signal"],
            registry=self.registry,
        )
        self._stages = Histogram(
            "kernlore_retrieval_stage_seconds",
            "Time of each stage of an answer, without the stages within it.",
            ["stage"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._excerpts = Counter(
            "kernlore_excerpts_returned", "Excerpts in answers.", registry=self.registry
        )
        self._uploads = Counter(
            "kernlore_uploads", "Uploaded files by outcome.", ["outcome"], registry=self.registry
        )

    def observe(self, readiness: Callable[[], Readiness], figures: Callable[[], Figures]) -> None:
        """Report the state of the store at each scrape."""
        self._state = _State(readiness, figures)
        self.registry.register(self._state)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request; `route` is its template."""
        method = method if method in _METHODS else "other"
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def stage(self, name: str, seconds: float) -> None:
        """Count a stage of an answer."""
        self._stages.labels(name).observe(seconds)

    def retrieval(self, answer: Answer) -> None:
        """Count an answer by its strongest signal."""
        signals = answer.diagnosis.signals
        self._retrievals.labels(signals[0].id if signals else "none").inc()
        self._excerpts.inc(len(answer.excerpts))

    def upload(self, outcome: str) -> None:
        """Count a file of an upload."""
        self._uploads.labels(outcome).inc()

    def text(self) -> bytes:
        """All counts in the Prometheus text format, those of workers among them."""
        if COUNTS not in os.environ:
            return bytes(generate_latest(self.registry))
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        if self._state is not None:
            together.register(self._state)
        return bytes(generate_latest(together))


class _State(Collector):
    def __init__(self, readiness: Callable[[], Readiness], figures: Callable[[], Figures]) -> None:
        self._readiness = readiness
        self._figures = figures

    def describe(self) -> Iterator[Metric]:
        """Empty, because registering would otherwise query the store."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        state = self._readiness()
        yield GaugeMetricFamily(
            "kernlore_ready", "1 once every passage is read and has its vector.", int(state.ready)
        )
        yield GaugeMetricFamily("kernlore_passages", "Searchable passages.", state.passages)
        yield GaugeMetricFamily(
            "kernlore_passages_embedded", "Passages with a vector.", state.embedded
        )
        jobs = GaugeMetricFamily("kernlore_jobs", "Jobs by state.", labels=["state"])
        for name in _STATES:
            jobs.add_metric([name], state.jobs.get(name, 0))
        yield jobs
        yield from _of_figures(self._figures())


def _of_figures(figures: Figures) -> Iterator[Metric]:
    """Gauges, not counters: rows are also removed."""
    yield GaugeMetricFamily(
        "kernlore_oldest_queued_job_seconds",
        "Age of the job that has waited longest.",
        figures.oldest_queued_seconds,
    )
    yield GaugeMetricFamily(
        "kernlore_model_cost_usd",
        "Cost of models in all runs, where prices are known.",
        figures.model_cost_usd,
    )
    for name, help_text, label, counts in (
        ("kernlore_evaluations", "Evaluations by state.", "state", figures.evaluations),
        ("kernlore_runs", "Optimizer runs by state.", "state", figures.runs),
        (
            "kernlore_outcomes",
            "Outcomes, by whether the answer helped.",
            "helped",
            figures.outcomes,
        ),
        ("kernlore_skills", "Skills by state.", "state", figures.skills),
    ):
        family = GaugeMetricFamily(name, help_text, labels=[label])
        for value, count in sorted(counts.items()):
            family.add_metric([value], count)
        yield family


class RequestLog:
    """Middleware: the id, log line and metrics of a request, and the response to an unhandled
    exception."""

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
        with (
            _span(scope, request_id),
            structlog.contextvars.bound_contextvars(request_id=request_id, **_trace()),
        ):
            try:
                await self._app(scope, receive, marked)
            except ClientDisconnect:
                status = status or _CLIENT_GONE
            except Exception:  # boundary: logged, and answered as an error
                log.exception("request failed", route=_route(scope), method=scope["method"])
                if status:
                    raise  # the response has begun; a closed connection shows that it is cut off
                await respond(internal_error(request_id))(scope, receive, marked)
            finally:
                self._finish(scope, status or 500, time.perf_counter() - started)

    def _finish(self, scope: Scope, status: int, seconds: float) -> None:
        route, method = _route(scope), scope["method"]
        telemetry.describe(
            {"http.route": route, "http.response.status_code": status},
            name=f"{method} {route}",
            failed=f"status {status}" if status >= 500 else None,
        )
        self._metrics.request(route, method, status, seconds)
        log.info("request", method=method, route=route, status=status, ms=round(seconds * 1000, 2))


def _request_id(scope: Scope) -> str:
    """The id that the caller sent, if it is valid, else a new one."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _GIVEN_ID.fullmatch(given) else new_id("req")


def _span(scope: Scope, request_id: str) -> AbstractContextManager[None]:
    """The span of a request, with the caller's `traceparent` as its parent. Probes have none, as
    they would be most of the traces."""
    if not telemetry.on() or scope["path"] in _PROBES:
        return nullcontext()
    about = {"kernlore.request.id": request_id, "http.request.method": scope["method"]}
    headers = Headers(scope=scope)
    parent = {name: headers[name] for name in telemetry.IN_ENVIRONMENT if name in headers}
    return telemetry.span("request", about, parent=parent, kind="server")


def _trace() -> dict[str, str]:
    """The trace id for the log line."""
    trace_id = telemetry.trace_id()
    return {} if trace_id is None else {"trace_id": trace_id}


def _route(scope: Scope) -> str:
    """The template of the route; paths would make one series for each id."""
    return str(getattr(scope.get("route"), "path", "") or "other")
