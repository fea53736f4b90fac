"""Traces: spans of requests, jobs and runs, exported by OpenTelemetry.

Enabled where OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set, and
configured by the other variables of OpenTelemetry. Otherwise nothing of it is imported, and a span
costs about a microsecond. A span that cannot be exported is dropped and logged by the SDK.

Attributes contain ids, names and counts, no texts of callers or documents; so an error is
recorded by its class, without its message.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from kb.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

P = ParamSpec("P")
T = TypeVar("T")
Value = str | bool | int | float | Sequence[str]
Carrier = Mapping[str, str]  # trace context: W3C's `traceparent` and `tracestate`
Kind = Literal["internal", "server"]

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
# OpenTelemetry's names of the trace context in the environment of a child process.
IN_ENVIRONMENT = {"traceparent": "TRACEPARENT", "tracestate": "TRACESTATE"}

Watcher = Callable[[str, Mapping[str, Value]], None]

_OFF = nullcontext()
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_tracer: Tracer | None = None


def wanted() -> bool:
    """Whether the environment configures a collector."""
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return any(map(os.environ.get, ENDPOINTS)) and exporter == "otlp" and not disabled


def start() -> None:
    """Start exporting spans if the environment configures a collector. Raises Unavailable if
    the extra is not installed, and InvalidRequest for an unknown protocol."""
    global _tracer
    if _tracer is not None or not wanted():
        return
    try:
        exporter = _exporter()
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from kb.settings import product_version
    except ImportError as error:
        raise Unavailable(
            f"traces cannot be sent: {error}",
            hint="pip install 'kernlore[telemetry]', or unset OTEL_EXPORTER_OTLP_ENDPOINT.",
        ) from error
    about = {"service.version": product_version()}
    if "OTEL_SERVICE_NAME" not in os.environ:
        about["service.name"] = "kernlore"
    provider = TracerProvider(resource=Resource.create(about))  # flushes when the process ends
    provider.add_span_processor(BatchSpanProcessor(exporter))
    _tracer = provider.get_tracer("kernlore", product_version())


def _exporter() -> SpanExporter:
    protocol = next(filter(None, map(os.environ.get, PROTOCOLS)), "http/protobuf")
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter()
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
            OTLPSpanExporter as OverGrpc,
        )

        return OverGrpc()
    raise InvalidRequest(
        f"traces cannot be sent by {protocol!r}",
        hint="Set OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf or grpc.",
    )


def on() -> bool:
    """Whether spans are exported."""
    return _tracer is not None


def span(
    name: str,
    attributes: Mapping[str, Value] | None = None,
    *,
    parent: Carrier | None = None,
    links: Sequence[Carrier] = (),
    kind: Kind = "internal",
) -> AbstractContextManager[None]:
    """A span around a block: a child of `parent`, or else of the current span. `links` are related
    spans of other traces. An error that leaves the block marks the span as failed."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(name, attributes or {})
    if _tracer is None:
        return _OFF
    return _span(_tracer, name, attributes, parent, links, kind)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Call `watcher` with the name and attributes of each span that this thread begins in the
    block, also if no span is exported."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def _span(
    tracer: Tracer,
    name: str,
    attributes: Mapping[str, Value] | None,
    parent: Carrier | None,
    links: Sequence[Carrier],
    kind: Kind,
) -> Iterator[None]:
    from opentelemetry.trace import Link, SpanKind, get_current_span

    spans = (get_current_span(_context(carrier)) for carrier in links)
    with tracer.start_as_current_span(
        name,
        context=_context(parent) if parent else None,
        kind=SpanKind.SERVER if kind == "server" else SpanKind.INTERNAL,
        attributes=attributes,
        links=[Link(linked.get_span_context()) for linked in spans],
        record_exception=False,
        set_status_on_exception=False,
    ):
        try:
            yield
        except BaseException as error:
            describe({}, failed=type(error).__name__)
            raise


def traced(
    name: str, *, of_environment: bool = False
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator that makes a span of each call; with `of_environment` as a child of the span of the
    parent process."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def within(*args: P.args, **kwargs: P.kwargs) -> T:
            if _tracer is None:
                return function(*args, **kwargs)
            parent = place_of_parent() if of_environment else None
            with span(name, parent=parent):
                return function(*args, **kwargs)

        return within

    return decorated


def begin(name: str, attributes: Mapping[str, Value], parent: Carrier | None) -> Callable[[], None]:
    """Begin a span outside a block. The returned function ends it, in any thread. It gets no
    children."""
    if _tracer is None:
        return _nothing
    context = _context(parent) if parent else None
    opened: Span = _tracer.start_span(name, context=context, attributes=attributes)
    return opened.end


def _nothing() -> None:
    return None


def describe(
    attributes: Mapping[str, Value], *, name: str | None = None, failed: str | None = None
) -> None:
    """Add attributes to the current span; `name` replaces its name, `failed` marks it as failed
    with a description."""
    if _tracer is None:
        return
    from opentelemetry.trace import StatusCode, get_current_span

    current = get_current_span()
    current.set_attributes(dict(attributes))
    if name is not None:
        current.update_name(name)
    if failed is not None:
        current.set_status(StatusCode.ERROR, failed)


def event(name: str, attributes: Mapping[str, Value]) -> None:
    """Add an event to the current span."""
    if _tracer is not None:
        from opentelemetry.trace import get_current_span

        get_current_span().add_event(name, dict(attributes))


def carrier() -> dict[str, str]:
    """The current trace context, for other threads and processes; empty without one."""
    carried: dict[str, str] = {}
    if _tracer is not None:
        _propagator().inject(carried)
    return carried


def trace_id() -> str | None:
    """The id of the current trace as 32 hexadecimal digits; None without one."""
    place = carrier().get("traceparent")
    return place.split("-")[1] if place else None


def for_child() -> dict[str, str]:
    """Environment variables that pass the current trace context to a child process."""
    return {IN_ENVIRONMENT[name]: value for name, value in carrier().items()}


def place_of_parent() -> dict[str, str]:
    """The trace context that the parent process passed to this one; empty without one."""
    names = IN_ENVIRONMENT.items()
    return {name: os.environ[key] for name, key in names if os.environ.get(key)}


def carried(function: Callable[P, T]) -> Callable[P, T]:
    """The function with the current trace context, for another thread."""
    if _tracer is None:
        return function
    context = copy_context()

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return context.run(function, *args, **kwargs)

    return run


def _context(place: Carrier) -> Context:
    context: Context = _propagator().extract(dict(place))
    return context


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()
