"""The clocks of a runner, taken before any candidate code runs, and how long its threads wait for a
processor.

A candidate may replace `time.perf_counter` or methods of `torch.cuda.Event`; the closures here hold
the originals. The supervisor's own clock decides all the same: what is measured here only refines
it.
"""

from __future__ import annotations

import ctypes
import math
import operator
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch

from optimizer.evaluation.runner.driver import (
    LIBRARY,
    beginnings,
    diverted,
    elapsed_ms,
    recorder,
)
from optimizer.evaluation.runner.hold import Hold, HoldUnavailable
from optimizer.evaluation.runner.memory import LateChange, finish

_now, _worked = time.perf_counter_ns, time.thread_time_ns
# Taken when this module is imported, before any candidate is.
_Event: Callable[..., torch.cuda.Event] = torch.cuda.Event
_sync, _zero = torch.cuda.synchronize, torch.Tensor.zero_
_record, _elapsed = torch.cuda.Event.record, torch.cuda.Event.elapsed_time
_set_stream, _default_stream = torch.cuda.set_stream, torch.cuda.default_stream
_current_stream = torch.cuda.current_stream
_without_functions = torch._C.DisableTorchFunction
_without_dispatch: Callable[[], AbstractContextManager[Any]] = torch._C._DisableTorchDispatch
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_begun = beginnings()
QUIET_NS = 20_000  # of the time for which a GPU is held: what was read has arrived
HOLD_NS = 400_000  # how long a GPU is kept busy before a call; most calls take less to launch
FILLS = 8  # of the buffer, to learn how long one takes


class CpuClock:
    """Wall time around one call."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A block of calls begins: forget what is known of earlier ones."""
        self._idles, self._diverted, self._moded = list[int](), False, False

    @property
    def known(self) -> dict[str, Any]:
        """Of the calls of a block: how long after the end of each on its stream the device had
        nothing left to do, in nanoseconds, where that is known; whether functions of libraries were
        changed; and whether modes of torch's dispatcher were left on."""
        return {"idles_ns": self._idles, "diverted": self._diverted, "moded": self._moded}

    def time(
        self, call: Callable[[], Any], left: Sequence[LateChange] = ()
    ) -> tuple[Any, int, int]:
        """The call's result, its time, and the wall time, both in nanoseconds. `left` is changed
        before the call, which is not timed."""
        finish(left)
        started = _now()
        result = call()
        took = _now() - started
        self._moded = self._moded or _modes() > 0
        return result, took, took


class TrustingCpuClock(CpuClock):
    """Looks the timer up at each call, as harnesses do whose timer a candidate replaces. Only used
    to show that the exploit works (`kernlore doctor --exploits --without 4`)."""

    def time(
        self, call: Callable[[], Any], left: Sequence[LateChange] = ()
    ) -> tuple[Any, int, int]:
        """As `CpuClock.time`."""
        finish(left)
        started = time.perf_counter_ns()
        result = call()
        took = time.perf_counter_ns() - started
        return result, took, took


class CudaClock(CpuClock):
    """Event time on the default stream beside the wall time until the whole device is idle.

    Before each call the device is held for `HOLD_NS`: a kernel takes all of its places for threads,
    and reads a buffer larger than the last-level cache. So no call finds its inputs in the cache,
    or lines that others changed and whose writing back it would pay for; nothing that it launches
    begins before it is timed, and the call is launched while the device is busy: its time is what
    the device needs, as in a program that runs ahead of its device, and not what Python needs to
    launch it. Where launching takes longer than that, the rest is in the time. Lines that a
    candidate made persistent would survive in the cache, so they are made ordinary ones first.

    Where the driver does not take that kernel, torch overwrites the buffer, beside which other
    streams can work. What changes inputs then comes after it, so that work which begins early is
    wrong at least.

    A candidate finds the default stream as the current one, whatever it left in its place, and the
    end of its call is recorded on it. Another event waits for all that the context has to do.
    """

    def __init__(
        self,
        flush_bytes: int,
        forget: bool = True,
        occupy: bool = True,
        same_stream: bool = True,
        straight: bool = True,
    ) -> None:
        """`flush_bytes` is the size of the buffer that is read, or overwritten. `forget` makes
        persisting lines ordinary ones (`--without 21` leaves them), `occupy` takes all places (not
        without 37 or 48), `same_stream` keeps to the default stream (not without 45), `straight`
        asks the driver itself for times, and whether its functions are what they were (not without
        50)."""
        self.begin()
        self._stream = _default_stream() if same_stream else None
        self._forget = _persisting_reset() if forget else None
        self._record_all = recorder()
        self._begun = _begun if straight else ()
        self._between = _between if straight and LIBRARY is not None else _elapsed
        self._occupy = _occupying(flush_bytes) if occupy else None
        self._ns, self._fills = 0, FILLS
        if self._occupy is not None:
            self._ns = max(0, HOLD_NS - QUIET_NS - self._least_ns())
        else:
            self._flush = torch.empty(flush_bytes, dtype=torch.int8, device="cuda")
            self._fills = math.ceil(HOLD_NS / (self._least_ns() / FILLS))

    def _least_ns(self) -> int:
        """How long the device is held at least, in nanoseconds; the first few times are longer."""
        start, end = _Event(enable_timing=True), _Event(enable_timing=True)
        times = []
        for _ in range(7):
            _sync()
            _record(start)
            self._hold((), 0)
            _record(end)
            _sync()
            times.append(_elapsed(start, end))
        return max(FILLS, int(min(times) * 1e6))

    def _hold(self, left: Sequence[LateChange], until: int = HOLD_NS) -> None:
        if self._occupy is not None:
            stream = self._stream if self._stream is not None else _current_stream()
            self._occupy(stream.cuda_stream, self._ns, left, until)
            return
        for _ in range(self._fills):
            _zero(self._flush)
        finish(left)

    def time(
        self, call: Callable[[], Any], left: Sequence[LateChange] = ()
    ) -> tuple[Any, int, int]:
        """The call's result, the time between events, and the wall time without that for which the
        device was held, both in nanoseconds. `left` is changed on the same stream just before the
        call, which is not timed."""
        held, start, end, idle = (_Event(enable_timing=True) for _ in range(4))
        stream = self._stream
        if stream is not None:
            _set_stream(stream)
        _sync()
        if self._forget is not None:
            self._forget()
        began = _now()
        with _without_functions(), _without_dispatch():  # a mode that was left could skip these
            _record(idle, stream)  # makes it
            _record(held, stream)
            self._hold(left)
        _record(start, stream)
        result = call()
        _record(end, stream)
        known = self._record_all is not None and not self._record_all(idle.cuda_event)
        _sync()
        self._diverted = self._diverted or diverted(self._begun)
        self._moded = self._moded or _modes() > 0
        held_ns = self._ns_between(held, start)
        wall = _now() - began - held_ns
        if known:
            self._idles.append(self._ns_between(end, idle))
        if stream is not None:
            _set_stream(stream)
        return result, self._ns_between(start, end), wall

    def _ns_between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> int:
        return int(self._between(start, end) * 1e6)


def _between(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    """As `torch.cuda.Event.elapsed_time`, without what a candidate can put between."""
    return elapsed_ms(start.cuda_event, end.cuda_event)


def _occupying(flush_bytes: int) -> Hold | None:
    """What takes all places of the device; None where its driver does not let us."""
    try:
        return Hold(flush_bytes)
    except HoldUnavailable:
        return None


def _persisting_reset() -> Callable[[], Any] | None:
    """The driver's call that makes persisting lines of L2 ordinary ones; None before CUDA 11."""
    try:
        reset: Callable[[], Any] = ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache
    except (OSError, AttributeError):
        return None
    return reset


def now_ns() -> int:
    """The original performance counter, in nanoseconds."""
    return _now()


class Watched(NamedTuple):
    """A function of the runner in Python: where it stands, and the code that it has."""

    holder: Mapping[str, Any]
    name: str
    function: Any
    code: Any


# Functions in C, and tuples of functions, of their codes, and of where they stand.
Compared = tuple[Any, Any, Any, Any, Any, tuple[Any, ...], tuple[Any, ...], Any, Any, "AsStarted"]


class AsStarted(NamedTuple):
    """The functions that a candidate must not replace, as they were before it was imported: those
    of timing and comparison, the runner's with its modules, classes and methods, and those of the
    generator that draws fresh values. Whoever compares holds this itself: what a module holds, a
    candidate can empty.

    `watched` is to be compared in a frame that runs already: what a candidate puts in place of a
    function can put it back before anybody is called.
    """

    identities: tuple[int, ...]
    modules: tuple[tuple[str, Any], ...]
    members: tuple[tuple[Mapping[str, Any], str, Any], ...]  # None: there is none
    watched: tuple[Watched, ...]

    def compared(self) -> Compared:
        """What a frame needs to compare `watched` without any function in Python, which a candidate
        could replace, and in a third of the time: `every(over(same, over(code, functions), codes))`
        and `every(over(same, over(call, getters, names), functions))`, of its parts in this order;
        the last one is this.
        """
        getters = tuple(watched.holder.get for watched in self.watched)
        names = tuple(watched.name for watched in self.watched)
        functions = tuple(watched.function for watched in self.watched)
        codes = tuple(watched.code for watched in self.watched)
        code = operator.attrgetter("__code__")
        return all, map, operator.is_, code, operator.call, functions, codes, getters, names, self


def as_started() -> AsStarted:
    """Take note of them, before any candidate is imported."""
    watched = tuple(
        Watched(vars(holder), member, function, function.__code__)
        for holder in _owners().values()
        for member, function in vars(holder).items()
        if hasattr(function, "__code__")
    )
    owners = _owners()
    modules = tuple((name, sys.modules[name]) for name in owners if name in sys.modules)
    members = tuple(
        (vars(holder), member, function)
        for holder in owners.values()
        for member, function in vars(holder).items()
        if callable(function)
    )
    # A method that it inherits, and everything that it draws comes from.
    members += tuple((vars(Random), name, None) for name in ("random", "getrandbits"))
    return AsStarted(_identities(), modules, members, watched)


def replaced(started: AsStarted, harness: bool = True) -> bool:
    """Whether one of them is another now: of timing and comparison, and where `harness` says so, of
    the runner itself.
    """
    if _identities() != started.identities:
        return True
    if not harness:
        return False
    # A module that is imported later replaces nothing.
    if any(sys.modules.get(name) is not module for name, module in started.modules):
        return True
    if any(holder.get(name) is not function for holder, name, function in started.members):
        return True
    return any(w.function.__code__ is not w.code for w in started.watched)


def _owners() -> dict[str, Any]:
    """Modules of the runner and their classes, and the generator of random numbers, by name."""
    package = __name__.rpartition(".")[0]
    owners: dict[str, Any] = {"random.Random": Random}
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{package}.") and name != f"{package}.zygote":
            owners[name] = module
            for member, value in vars(module).items():
                if isinstance(value, type) and value.__module__.startswith(package):
                    owners[f"{name}.{member}"] = value
    return owners


def _identities() -> tuple[int, ...]:
    return tuple(
        id(function)
        for function in (
            time.perf_counter_ns,
            time.perf_counter,
            time.time,
            torch.cuda.Event.record,
            torch.cuda.Event.elapsed_time,
            torch.cuda.Event.synchronize,
            torch.cuda.synchronize,
            torch.cuda.set_stream,
            torch.take,
            torch.tensor,
            torch.allclose,
            torch.equal,
            torch.isclose,
            torch.Tensor.copy_,
            torch.Tensor.zero_,
            torch.Tensor.flip,
            torch.Tensor.float,
            torch.Tensor.abs,
            torch.Tensor.amax,
            torch.Tensor.view,
            torch.Tensor.data_ptr,
            torch.Tensor.add_,
            torch.Tensor.split,
            torch.mul,
            torch.split,
            torch.empty,
            os.read,
            os.write,
            ctypes.string_at,
            ctypes._string_at,  # type: ignore[attr-defined]
        )
    )


SPAN_NS = 1_000_000
_TASKS = Path("/proc/self/task")


class Spans:
    """Calls in spans of a millisecond or more, each with how long this process was ready without a
    processor meanwhile: so a disturbed stretch of a block can be separated from the quiet rest of
    it. `rows` holds calls, their time and the wait, in nanoseconds, of each span; `inside_ns` is
    for how much of the calls this thread had a processor.

    The kernel's files are opened once: reading them costs microseconds, and what is spent between
    calls is held against a candidate. Threads that start later are not seen.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self._calls = self._ns = 0
        self._files = [os.open(task, os.O_RDONLY) for task in _TASKS.glob("*/schedstat")]
        self._own = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._waited = self._wait_ns()
        self._between = self._entered = self.inside_ns = 0

    @property
    def known(self) -> dict[str, Any]:
        """Of the calls of a block: the spans, and for how much of them this thread worked."""
        return {"spans": self.rows, "inside_ns": self.inside_ns}

    def leave(self) -> None:
        """A call has ended: until `enter`, this thread's waits disturb no call. The supervisor that
        grants the next one often has the processor that this thread wakes up on.
        """
        self._between = _second(self._own)

    def enter(self) -> None:
        """The next call begins."""
        self._waited += _second(self._own) - self._between
        self._entered = _worked()

    def end(self) -> None:
        """It has returned."""
        self.inside_ns += _worked() - self._entered

    def add(self, took: int) -> None:
        """Count one call that took so many nanoseconds."""
        self._calls += 1
        self._ns += took
        if self._ns >= SPAN_NS:
            self._next()

    def close(self) -> None:
        """End the last span; nothing can be added afterwards."""
        if self._calls:
            self._next()
        for file in (self._own, *self._files):
            os.close(file)
        self._files = []

    def _next(self) -> None:
        waited = self._wait_ns()
        self.rows.append((self._calls, self._ns, waited - self._waited))
        self._calls, self._ns, self._waited = 0, 0, waited

    def _wait_ns(self) -> int:
        """Run-queue wait of the threads so far: schedstat's second field."""
        return sum(_second(file) for file in self._files)


def _second(file: int) -> int:
    try:
        return int(os.pread(file, 80, 0).split()[1])
    except (OSError, IndexError):
        return 0  # the thread has ended, or the kernel does not keep account
