"""A collector on loopback: receives spans by OTLP over HTTP, as OpenTelemetry's protobuf."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Received:
    """A span. Ids are hexadecimal, `parent` is empty for the first of a trace; `service` and
    `process` come from its resource, times are Unix nanoseconds."""

    name: str
    id: str
    trace: str
    parent: str
    service: str
    begins: int
    ends: int
    failed: bool
    attributes: dict[str, Any]
    events: tuple[tuple[str, dict[str, Any]], ...]
    links: tuple[str, ...]


class Collector:
    """Spans in the order of their arrival."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects _spans
        self._spans: list[Received] = []
        self.url = ""

    def take(self, body: bytes) -> None:
        """Store the spans of a request."""
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            for of_resource in request.resource_spans:
                resource = _values(of_resource.resource.attributes)
                for of_scope in of_resource.scope_spans:
                    self._spans += [_received(span, resource) for span in of_scope.spans]

    def all(self) -> list[Received]:
        """All spans so far."""
        with self._lock:
            return list(self._spans)

    def until(self, done: Callable[[list[Received]], bool], seconds: float) -> list[Received]:
        """The spans, once the condition holds."""
        deadline = time.monotonic() + seconds
        while not done(self.all()):
            assert time.monotonic() < deadline, sorted(span.name for span in self.all())
            time.sleep(0.1)
        return self.all()


def _received(span: Any, resource: dict[str, Any]) -> Received:
    return Received(
        span.name,
        span.span_id.hex(),
        span.trace_id.hex(),
        span.parent_span_id.hex(),
        resource["service.name"],
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == span.status.STATUS_CODE_ERROR,
        _values(span.attributes),
        tuple((event.name, _values(event.attributes)) for event in span.events),
        tuple(link.trace_id.hex() for link in span.links),
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A listening collector."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            assert self.path == "/v1/traces", self.path
            collector.take(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
