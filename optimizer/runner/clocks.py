"""The clocks, taken before any candidate code runs.

A candidate may replace `time.perf_counter` or methods of `torch.cuda.Event`; these closures hold
the originals. The supervisor's own clock is the judge all the same: what is measured here only
refines it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

_now = time.perf_counter_ns


class CpuClock:
    """Wall time around one call."""

    def time(self, call: Callable[[], Any]) -> tuple[Any, int, int]:
        """The call's result, its time, and the wall time, both in nanoseconds."""
        started = _now()
        result = call()
        took = _now() - started
        return result, took, took


class CudaClock:
    """Event time on the current stream beside the wall time until the whole device is idle.

    A buffer as large as the last-level cache is overwritten before each call, so that no call finds
    its inputs there and the launch is queued while the device is busy.
    """

    def __init__(self, flush_bytes: int) -> None:
        self._flush = torch.empty(flush_bytes, dtype=torch.int8, device="cuda")
        self._event: Callable[..., torch.cuda.Event] = torch.cuda.Event
        self._record, self._elapsed = torch.cuda.Event.record, torch.cuda.Event.elapsed_time
        self._sync = torch.cuda.synchronize

    def time(self, call: Callable[[], Any]) -> tuple[Any, int, int]:
        start, end = self._event(enable_timing=True), self._event(enable_timing=True)
        self._sync()
        self._flush.zero_()
        began = _now()
        self._record(start)
        result = call()
        self._record(end)
        self._sync()
        wall = _now() - began
        return result, int(self._elapsed(start, end) * 1e6), wall


def now_ns() -> int:
    return _now()


def identities() -> tuple[int, ...]:
    """What a candidate must not replace: compared before and after its calls."""
    return tuple(
        id(thing)
        for thing in (
            time.perf_counter_ns,
            time.perf_counter,
            time.time,
            torch.cuda.Event.record,
            torch.cuda.Event.elapsed_time,
            torch.cuda.Event.synchronize,
            torch.cuda.synchronize,
            torch.allclose,
            torch.equal,
            torch.isclose,
            torch.Tensor.copy_,
            torch.empty,
        )
    )
