"""What the service counts, in the Prometheus text format.

Labels come from closed lists (route templates, signal ids, states), never from a request's own
text, so the number of series stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api.services import Readiness
from retrieval.answer import Answer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = frozenset({"GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "PUT"})
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_STATES = ("queued", "running", "ready", "partial", "failed")


class Metrics:
    """The counters of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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
            "Retrievals by the strongest signal found; `none` without one.",
            ["signal"],
            registry=self.registry,
        )
        self._excerpts = Counter(
            "kernlore_excerpts_returned", "Excerpts in answers.", registry=self.registry
        )
        self._uploads = Counter(
            "kernlore_uploads", "Uploaded files by outcome.", ["outcome"], registry=self.registry
        )

    def observe(self, readiness: Callable[[], Readiness]) -> None:
        """Report the state of the store at each scrape."""
        self.registry.register(_State(readiness))

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        method = method if method in _METHODS else "other"
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def retrieval(self, answer: Answer) -> None:
        found = answer.diagnosis.signals
        self._retrievals.labels(found[0].id if found else "none").inc()
        self._excerpts.inc(len(answer.excerpts))

    def upload(self, outcome: str) -> None:
        self._uploads.labels(outcome).inc()

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))


class _State(Collector):
    def __init__(self, readiness: Callable[[], Readiness]) -> None:
        self._readiness = readiness

    def describe(self) -> Iterator[Metric]:
        """Nothing: else registering would already ask the store."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        state = self._readiness()
        yield GaugeMetricFamily("kernlore_ready", "1 when nothing is left to do.", int(state.ready))
        yield GaugeMetricFamily("kernlore_passages", "Searchable passages.", state.passages)
        yield GaugeMetricFamily(
            "kernlore_passages_embedded", "Passages with a vector.", state.embedded
        )
        jobs = GaugeMetricFamily("kernlore_jobs", "Jobs by state.", labels=["state"])
        for name in _STATES:
            jobs.add_metric([name], state.jobs.get(name, 0))
        yield jobs
