"""Traces: spans of requests, jobs and runs, sent to a collector by OpenTelemetry.

Off unless OTEL_EXPORTER_OTLP_ENDPOINT, or the same for traces alone, names a collector: then
nothing of OpenTelemetry is imported here, and a span costs about a microsecond. The other
variables are those of OpenTelemetry too (OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER,
OTEL_EXPORTER_OTLP_HEADERS, ...). A span that cannot be sent is dropped and logged by the SDK; the
work that it is about does not notice.

Nothing here knows what the work is. Attributes hold ids, names and counts, never what a caller or a
document says; so an error is named by its class, without its message.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from kb.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

P = ParamSpec("P")
T = TypeVar("T")
Value = str | bool | int | float | Sequence[str]
Carrier = Mapping[str, str]  # a place in a trace, as W3C's `traceparent` and `tracestate`
Kind = Literal["internal", "server"]

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
# By what a process hands the place to a child: OpenTelemetry's names for an environment.
IN_ENVIRONMENT = {"traceparent": "TRACEPARENT", "tracestate": "TRACESTATE"}

_OFF = nullcontext()
_tracer: Tracer | None = None
_provider: TracerProvider | None = None


def wanted() -> bool:
    """Whether the environment names a collector."""
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return any(map(os.environ.get, ENDPOINTS)) and exporter == "otlp" and not disabled


def start() -> None:
    """Send spans from now on, where the environment names a collector. Raises Unavailable where the
    extra is missing, and InvalidRequest for a protocol that is unknown.
    """
    global _tracer, _provider
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
    _provider = TracerProvider(resource=Resource.create(about))  # flushes when the process ends
    _provider.add_span_processor(BatchSpanProcessor(exporter))
    _tracer = _provider.get_tracer("kernlore", product_version())


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


def stop() -> None:
    """Send what is left, and nothing from now on."""
    global _tracer, _provider
    if _provider is not None:
        _provider.shutdown()
    _tracer = _provider = None


def on() -> bool:
    """Whether spans are sent."""
    return _tracer is not None


def span(
    name: str,
    attributes: Mapping[str, Value] | None = None,
    *,
    parent: Carrier | None = None,
    links: Sequence[Carrier] = (),
    kind: Kind = "internal",
) -> AbstractContextManager[None]:
    """A span around a block, below `parent`, else below the span that this thread or task is in.
    `links` are places in other traces that it is also about. An error that leaves the block marks
    it as failed.
    """
    if _tracer is None:
        return _OFF
    return _span(_tracer, name, attributes, parent, links, kind)


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
    """A function whose calls are spans; with `of_environment` below the span of the process that
    has started this one, where that handed its place on."""

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
    """A span that begins now and ends with a call of what is returned, in whichever thread: for
    work that no block encloses. Nothing becomes a child of it.
    """
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
    """Add attributes to the span that this thread is in; `name` replaces its name, `failed` names
    why its work came to nothing.
    """
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
    """Note a moment in the span that this thread is in."""
    if _tracer is not None:
        from opentelemetry.trace import get_current_span

        get_current_span().add_event(name, dict(attributes))


# -- from one thread, process or request to another


def carrier() -> dict[str, str]:
    """The place of this thread in a trace, to be handed on; empty without one."""
    carried: dict[str, str] = {}
    if _tracer is not None:
        _propagator().inject(carried)
    return carried


def trace_id() -> str | None:
    """The id of the trace that this thread is in, as 32 hexadecimal digits; None without one."""
    place = carrier().get("traceparent")
    return place.split("-")[1] if place else None


def for_child() -> dict[str, str]:
    """What the environment of a child process needs, so that its spans are below this thread's."""
    return {IN_ENVIRONMENT[name]: value for name, value in carrier().items()}


def place_of_parent() -> dict[str, str]:
    """The place that the parent process gave this one; empty without one."""
    names = IN_ENVIRONMENT.items()
    return {name: os.environ[key] for name, key in names if os.environ.get(key)}


def carried(function: Callable[P, T]) -> Callable[P, T]:
    """The function for another thread: its spans are below the span that this thread is in now."""
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
