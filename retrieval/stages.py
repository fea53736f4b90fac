"""How long each stage of an answer takes, for whoever watches: `with watching(report): ...`, and as
spans where traces are sent (`kb.telemetry`).

A stage within another counts for itself alone, so the stages of an answer add up; as a span it lies
within the other. Nobody who does not watch pays for it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from kb import telemetry
from kb.answers import Answer

P = ParamSpec("P")
T = TypeVar("T")
Report = Callable[[str, float], None]  # a stage and its seconds


class _Watch:
    def __init__(self, report: Report) -> None:
        self.report = report
        self.inner: list[float] = []  # seconds within each open stage that belong to others


_watch: ContextVar[_Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watching(report: Report) -> Iterator[None]:
    """Report every stage that this thread goes through meanwhile."""
    token = _watch.set(_Watch(report))
    try:
        yield
    finally:
        _watch.reset(token)


def passed(name: str, seconds: float) -> None:
    """Report a stage that another process went through within the present one."""
    watch = _watch.get()
    if watch is not None:
        watch.report(name, seconds)
        if watch.inner:
            watch.inner[-1] += seconds


def stage(name: str, span: str | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A function that is a stage of an answer. Its span is called `span`, by default after it."""
    span = span or f"retrieve: {name}"

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        traced = telemetry.traced(span)(function)

        @functools.wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            watch = _watch.get()
            if watch is None:
                return traced(*args, **kwargs)
            watch.inner.append(0.0)
            started = time.perf_counter()
            try:
                return traced(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - started
                watch.report(name, seconds - watch.inner.pop())
                if watch.inner:
                    watch.inner[-1] += seconds

        return timed

    return decorated


def describe_answer(answer: Answer) -> None:
    """Say in the span of an answer what it is about and which passages it has, in their order."""
    if not telemetry.on():
        return
    hardware = answer.hardware["id"] if answer.hardware else "any"
    telemetry.describe(
        {
            "kernlore.retrieval.id": answer.retrieval_id,
            "kernlore.hardware": hardware,
            "kernlore.signals": list(answer.diagnosis.signal_ids),
            "kernlore.task": answer.task,
            "kernlore.context.tokens": answer.context_tokens,
        }
    )
    for place, excerpt in enumerate(answer.excerpts, 1):
        telemetry.event(
            "passage",
            {
                "kernlore.passage.ids": list(excerpt.passages) or [excerpt.id],
                "kernlore.passage.place": place,
                "kernlore.passage.score": excerpt.score,
                "kernlore.document.id": excerpt.document.id,
            },
        )
