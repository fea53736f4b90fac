"""Time of each stage of an answer: reported within `with watching(report): ...`, and as spans if
traces are sent (`kb.telemetry`).

The time of a nested stage is not counted in the outer one, so the stages of an answer add up; its
span is a child of the outer one. Without a watcher the cost is negligible.
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
Report = Callable[[str, float], None]  # stage, seconds


class _Watch:
    def __init__(self, report: Report) -> None:
        self.report = report
        self.inner: list[float] = []  # seconds of nested stages, for each open stage


_watch: ContextVar[_Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watching(report: Report) -> Iterator[None]:
    """Report every stage that this thread completes in the block."""
    token = _watch.set(_Watch(report))
    try:
        yield
    finally:
        _watch.reset(token)


def stage(name: str, span: str | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Mark a function as a stage of an answer. `span` names its span, by default after the
    function."""
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
    """Add to the span of an answer its subject and its passages, in order."""
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
