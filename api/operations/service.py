"""The service itself: alive, ready, measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from api.operations import Download, operation
from api.services import Readiness, Services
from kb.errors import Unavailable
from kb.settings import product_version

declared = partial(operation, tag="service")


@dataclass(frozen=True)
class Alive:
    """The process accepts requests."""

    status: Literal["alive"]
    version: str


@declared("GET /healthz", "Check that the service is alive", public=True)
def healthz(services: Services) -> Alive:
    """Answers as soon as the process accepts requests."""
    return Alive("alive", product_version())


@declared(
    "GET /readyz",
    "Show how far the service is",
    whole_store=True,
    status_of=lambda readiness: 200 if readiness.answers else 503,
    responses={503: "No request can be answered yet."},
)
def readyz(services: Services) -> Readiness:
    """503 until requests can be answered by word search, then 200; 503 again once a newer Kernlore
    has changed the catalog into one that this one must not write to. `ready` is true once every
    passage has its vector too."""
    background = services.running.background
    if background is None:
        raise Unavailable("this process only answers", hint="Ask the service itself.")
    return background.readiness()


@declared("GET /metrics", "Prometheus metrics", whole_store=True)
def metrics(services: Services) -> Download:
    """Counters in the Prometheus text format."""
    return Download(services.metrics.text(), "text/plain; version=0.0.4; charset=utf-8")
