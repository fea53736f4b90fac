"""How long each stage of an answer takes, for whoever watches: `with watching(report): ...`.

A stage within another counts for itself alone, so the stages of an answer add up. Nobody who does
not watch pays for it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

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


def stage(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A function that is a stage of an answer."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            watch = _watch.get()
            if watch is None:
                return function(*args, **kwargs)
            watch.inner.append(0.0)
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - started
                watch.report(name, seconds - watch.inner.pop())
                if watch.inner:
                    watch.inner[-1] += seconds

        return timed

    return decorated
