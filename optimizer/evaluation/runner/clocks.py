"""The clocks, taken before any candidate code runs.

A candidate may replace `time.perf_counter` or methods of `torch.cuda.Event`; these closures hold
the originals. The supervisor's own clock is the judge all the same: what is measured here only
refines it.
"""

from __future__ import annotations

import ctypes
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


class TrustingCpuClock(CpuClock):
    """Looks the timer up at each call, as harnesses do whose timer a candidate replaces. Only to
    show that the exploit works (`kernlore doctor --exploits --without 4`)."""

    def time(self, call: Callable[[], Any]) -> tuple[Any, int, int]:
        started = time.perf_counter_ns()
        result = call()
        took = time.perf_counter_ns() - started
        return result, took, took


class CudaClock:
    """Event time on the current stream beside the wall time until the whole device is idle.

    A buffer as large as the last-level cache is overwritten before each call, so that no call finds
    its inputs there and the launch is queued while the device is busy. Lines that a candidate made
    persistent would survive that, so they are made ordinary ones first.
    """

    def __init__(self, flush_bytes: int, forget: bool = True) -> None:
        """forget: make persisting lines ordinary ones (`--without 21` leaves them)."""
        self._flush = torch.empty(flush_bytes, dtype=torch.int8, device="cuda")
        self._forget = _persisting_reset() if forget else None
        self._event: Callable[..., torch.cuda.Event] = torch.cuda.Event
        self._record, self._elapsed = torch.cuda.Event.record, torch.cuda.Event.elapsed_time
        self._sync = torch.cuda.synchronize

    def time(self, call: Callable[[], Any]) -> tuple[Any, int, int]:
        start, end = self._event(enable_timing=True), self._event(enable_timing=True)
        self._sync()
        if self._forget is not None:
            self._forget()
        self._flush.zero_()
        began = _now()
        self._record(start)
        result = call()
        self._record(end)
        self._sync()
        wall = _now() - began
        return result, int(self._elapsed(start, end) * 1e6), wall


def _persisting_reset() -> Callable[[], Any] | None:
    """The driver's call that makes persisting lines of L2 ordinary ones; None before CUDA 11."""
    try:
        found: Callable[[], Any] = ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache
    except (OSError, AttributeError):
        return None
    return found


def now_ns() -> int:
    return _now()


def replaced() -> bool:
    """Whether something that a candidate must not replace is another thing than at the start."""
    return _identities() != _ORIGINAL


def _identities() -> tuple[int, ...]:
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


# Taken when the runner starts, long before a candidate is imported.
_ORIGINAL = _identities()
