"""A runner's clocks, bound before the candidate is imported; the kernel that holds a GPU until a
call is launched; and a record of the functions that a candidate must not replace.

A candidate may replace `time.perf_counter` or methods of `torch.cuda.Event`; the module globals
here hold the originals. The supervisor's clock decides nevertheless: times measured here refine it.
"""

from __future__ import annotations

import ctypes
import math
import operator
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch

from optimizer.evaluation.runner.driver import (
    LIBRARY,
    context_recorder,
    elapsed_ms,
    launch,
    loaded_kernel,
    patched,
    prologues,
    ptx,
)
from optimizer.evaluation.runner.fresh_values import LATE, LATE_TENSORS, LateChange, apply

_now, _worked = time.perf_counter_ns, time.thread_time_ns
_Event: Callable[..., torch.cuda.Event] = torch.cuda.Event
_sync, _zero = torch.cuda.synchronize, torch.Tensor.zero_
_record, _elapsed = torch.cuda.Event.record, torch.cuda.Event.elapsed_time
_set_stream, _default_stream = torch.cuda.set_stream, torch.cuda.default_stream
_current_stream = torch.cuda.current_stream
_without_functions = torch._C.DisableTorchFunction
_without_dispatch: Callable[[], AbstractContextManager[Any]] = torch._C._DisableTorchDispatch
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
_prologues = prologues()
HOLD_NS = 400_000  # for which a GPU is held before a call; most calls take less to launch
QUIET_NS = 20_000  # at the end of that, in which the last reads arrive
FILLS = 8  # of the buffer, to learn how long one takes


def now_ns() -> int:
    """The original performance counter, in nanoseconds."""
    return _now()


# Number of the system call clock_gettime. Reading in user space may differ from it by a correction
# of the clock, more so under a hypervisor.
_SYSCALL = {"x86_64": 228, "aarch64": 113}.get(platform.machine() * (sys.platform == "linux"))
CLOCK_SLACK_NS = 50_000
_system_call: Any = getattr(ctypes.CDLL(None), "syscall", None)
_TIME = (ctypes.c_int64 * 2)()  # struct timespec


def clock_agrees() -> bool:
    """Whether the performance counter returns the kernel's monotonic time: a system call between
    two readings returns a time between them, however busy the machine is, within CLOCK_SLACK_NS.
    """
    if _SYSCALL is None or _system_call is None:
        return True
    before = _now()
    failed = _system_call(_SYSCALL, time.CLOCK_MONOTONIC, _TIME)
    after = _now()
    between = _TIME[0] * 10**9 + _TIME[1]
    return bool(failed) or before - CLOCK_SLACK_NS <= between <= after + CLOCK_SLACK_NS


class CpuClock:
    """Wall time around one call."""

    def __init__(self, *, watch_libraries: bool = True) -> None:
        """`watch_libraries`: changed code of the functions that read clocks is reported."""
        self._watched = _prologues if watch_libraries else ()
        self.begin()

    def begin(self) -> None:
        """Forget earlier calls: a block begins."""
        self._idles, self._patched, self._mode_left = list[int](), False, False

    @property
    def known(self) -> dict[str, Any]:
        """Facts about the block's calls: nanoseconds from the end of each on its stream until the
        device was idle, where known; whether library functions were patched; and whether a mode of
        torch's dispatcher was left on."""
        return {
            "idles_ns": self._idles,
            "library_patched": self._patched or self._changed(),
            "mode_left": self._mode_left,
        }

    def _changed(self) -> bool:
        return bool(self._watched) and (patched(self._watched) or not clock_agrees())

    def time(
        self, call: Callable[[], Any], pending: Sequence[LateChange] = ()
    ) -> tuple[Any, int, int]:
        """The call's result, its time and the wall time, in nanoseconds. `pending` is written
        before the call, untimed."""
        apply(pending)
        started = _now()
        result = call()
        took = _now() - started
        self._mode_left = self._mode_left or _modes() > 0
        return result, took, took


class LateBoundCpuClock(CpuClock):
    """Looks the timer up at each call, so that a candidate can replace it."""

    def time(
        self, call: Callable[[], Any], pending: Sequence[LateChange] = ()
    ) -> tuple[Any, int, int]:
        """As `CpuClock.time`."""
        apply(pending)
        started = time.perf_counter_ns()
        result = call()
        took = time.perf_counter_ns() - started
        return result, took, took


class CudaClock(CpuClock):
    """Event time on the default stream, and the wall time until the whole device is idle.

    The device is held for `HOLD_NS` before each call, by a kernel that occupies it completely and
    reads a buffer larger than the last-level cache. So no call finds its inputs in the cache, nor
    lines of others that it would have to write back; nothing that it launches begins before it is
    timed; and it is launched while the device is busy, so its time is the device's, as in a program
    that runs ahead of its device. Launching that takes longer than the hold is in the time. Lines
    that a candidate made persistent would survive in the cache, so they are reset first.

    If the driver refuses that kernel, torch overwrites the buffer instead; other streams can work
    meanwhile. Inputs are then completed after it, so that work which begins early is wrong.

    The call runs with the default stream as the current one, even if the candidate set another, and
    its end is recorded there. Another event waits for everything else in the context.
    """

    def __init__(
        self,
        flush_bytes: int,
        *,
        reset_cache: bool = True,
        hold: bool = True,
        default_stream: bool = True,
        driver_times: bool = True,
    ) -> None:
        """`flush_bytes` is the size of the buffer. The options are those of `Defences`."""
        super().__init__(watch_libraries=driver_times)
        self._stream = _default_stream() if default_stream else None
        self._reset_cache = _persisting_reset() if reset_cache else None
        self._record_all = context_recorder()
        self._between = _between if driver_times and LIBRARY is not None else _elapsed
        self._hold = _device_hold(flush_bytes) if hold else None
        self._ns, self._fills = 0, FILLS
        if self._hold is not None:
            self._ns = max(0, HOLD_NS - QUIET_NS - self._min_hold_ns())
        else:
            self._flush = torch.empty(flush_bytes, dtype=torch.int8, device="cuda")
            self._fills = math.ceil(HOLD_NS / (self._min_hold_ns() / FILLS))

    def _min_hold_ns(self) -> int:
        """Shortest time for which the device is held; the first few times take longer."""
        start, end = _Event(enable_timing=True), _Event(enable_timing=True)
        times = []
        for _ in range(7):
            _sync()
            _record(start)
            self._occupy((), 0)
            _record(end)
            _sync()
            times.append(_elapsed(start, end))
        return max(FILLS, int(min(times) * 1e6))

    def _occupy(self, pending: Sequence[LateChange], until: int = HOLD_NS) -> None:
        if self._hold is not None:
            stream = self._stream if self._stream is not None else _current_stream()
            self._hold(stream.cuda_stream, self._ns, pending, until)
            return
        for _ in range(self._fills):
            _zero(self._flush)
        apply(pending)

    def time(
        self, call: Callable[[], Any], pending: Sequence[LateChange] = ()
    ) -> tuple[Any, int, int]:
        """The call's result, the time between events, and the wall time less that of the hold, in
        nanoseconds. `pending` is written on the same stream just before the call, untimed."""
        held, start, end, idle = (_Event(enable_timing=True) for _ in range(4))
        stream = self._stream
        if stream is not None:
            _set_stream(stream)
        _sync()
        if self._reset_cache is not None:
            self._reset_cache()
        began = _now()
        with _without_functions(), _without_dispatch():  # a mode that was left could skip these
            _record(idle, stream)  # creates it
            _record(held, stream)
            self._occupy(pending)
        _record(start, stream)
        result = call()
        _record(end, stream)
        known = self._record_all is not None and not self._record_all(idle.cuda_event)
        _sync()
        self._patched = self._patched or patched(self._watched)
        self._mode_left = self._mode_left or _modes() > 0
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
    """As `torch.cuda.Event.elapsed_time`, by the driver itself."""
    return elapsed_ms(start.cuda_event, end.cuda_event)


def _persisting_reset() -> Callable[[], Any] | None:
    """The driver's function that resets persisting lines of L2; None before CUDA 11."""
    try:
        reset: Callable[[], Any] = ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache
    except (OSError, AttributeError):
        return None
    return reset


# -- holding a GPU

HOLD_THREADS = 512  # of a block; divides a multiprocessor's threads on every architecture
GRACE_NS = 100_000  # after which no block waits for others any more
WORD = 16  # bytes that a thread reads at once
UNLIKELY = 0x5BD1E995  # not the sum of a zero buffer: a result that nothing uses is not computed
# A late change as the kernel reads it: target address and step, source address and step, bytes of
# an element, number of elements.
RECORD = 6
PTX = ptx(  # read before the candidate is imported
    "hold.ptx",
    {
        "threads": HOLD_THREADS,
        "word": WORD,
        "unlikely": UNLIKELY,
        "late_tensors": LATE_TENSORS,
        "record_bytes": 8 * RECORD,
        "late_bytes": 8 * RECORD * LATE_TENSORS,
    },
)


class HoldUnavailable(Exception):
    """The driver does not take the kernel; the message says why."""


class DeviceHold:
    """A kernel that keeps a whole GPU busy, and the buffer that it reads."""

    def __init__(self, flush_bytes: int) -> None:
        """Raises HoldUnavailable without NVIDIA's driver, or if it refuses the kernel."""
        self._function = _hold_function()
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        resident = device.max_threads_per_multi_processor // HOLD_THREADS
        self._blocks = device.multi_processor_count * resident
        self._buffer = torch.zeros(flush_bytes // WORD * WORD, dtype=torch.int8, device="cuda")
        self._arrived = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._launched = 0
        self._late = (ctypes.c_uint64 * (RECORD * LATE_TENSORS))()
        self._numbers = [ctypes.c_uint64() for _ in range(7)]
        addresses = [*map(ctypes.addressof, self._numbers), ctypes.addressof(self._late)]
        self._arguments = (ctypes.c_void_p * len(addresses))(*addresses)

    def __call__(
        self, stream: int, ns: int, late: Sequence[LateChange] = (), until: int = 0
    ) -> None:
        """Launch it on a stream, given by its handle: it reads the buffer for `ns` nanoseconds, to
        the end of a round, and is quiet until `until`. Then it writes `late`."""
        self._launched += 1
        values = (
            self._buffer.data_ptr(),
            self._buffer.numel() // WORD,
            ns,
            ns + GRACE_NS,
            self._arrived.data_ptr(),
            self._launched * self._blocks,
            until,
        )
        for number, value in zip(self._numbers, values, strict=True):
            number.value = value
        ctypes.memset(self._late, 0, ctypes.sizeof(self._late))
        for at, change in enumerate(late):
            self._late[RECORD * at : RECORD * (at + 1)] = list(_late_record(*change))
        size = (self._blocks, 1, 1, HOLD_THREADS, 1, 1)
        code = launch(self._function, size, stream, self._arguments)
        if code:
            raise RuntimeError(f"the device cannot be held: error {code} of its driver")


def prepare_hold() -> None:
    """Compile the kernel, if the driver takes it, before it is needed."""
    with suppress(HoldUnavailable):
        _hold_function()


def _device_hold(flush_bytes: int) -> DeviceHold | None:
    try:
        return DeviceHold(flush_bytes)
    except HoldUnavailable:
        return None


def _late_record(elements: torch.Tensor, values: torch.Tensor) -> tuple[int, ...]:
    assert elements.numel() == values.numel() <= LATE and elements.dim() == 1
    size = elements.element_size()
    return (
        elements.data_ptr(),
        elements.stride(0) * size,
        values.data_ptr(),
        values.stride(0) * size,
        size,
        values.numel(),
    )


@cache
def _hold_function() -> ctypes.c_void_p:
    """The kernel in the current context. Raises HoldUnavailable."""
    if LIBRARY is None:
        raise HoldUnavailable("there is no driver of NVIDIA")
    torch.cuda.current_stream().synchronize()  # makes torch's context the current one
    function, code = loaded_kernel(PTX, "hold")
    if function is None:
        raise HoldUnavailable(f"error {code} of the driver")
    return function


# -- waits for a processor

SPAN_NS = 1_000_000
_TASKS = Path("/proc/self/task")


class Spans:
    """Calls in spans of a millisecond or more, each with how long this process was ready without a
    processor meanwhile, so that a disturbed part of a block can be recognised.

    `rows` holds calls, their time and the wait, in nanoseconds, of each span; `inside_ns` is this
    thread's processor time within the calls. The kernel's files are opened once, because opening
    them costs microseconds and time between calls counts against a candidate. Threads that start
    later are not seen.
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
        """The spans, and the processor time within the calls."""
        return {"spans": self.rows, "inside_ns": self.inside_ns}

    def leave(self) -> None:
        """A call has ended: until `enter`, this thread's waits disturb no call. The supervisor that
        grants the next one often has the processor that this thread wakes up on."""
        self._between = _second(self._own)

    def enter(self) -> None:
        """The next call begins."""
        self._waited += _second(self._own) - self._between
        self._entered = _worked()

    def end(self) -> None:
        """The call has returned."""
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
        """Run-queue wait of all threads so far."""
        return sum(_second(file) for file in self._files)


def _second(file: int) -> int:
    """The second field of a schedstat file: run-queue wait."""
    try:
        return int(os.pread(file, 80, 0).split()[1])
    except (OSError, IndexError):
        return 0  # the thread has ended, or the kernel keeps no account


# -- functions that a candidate must not replace


class WatchedFunction(NamedTuple):
    """A Python function of the runner: the namespace that holds it, and its code."""

    holder: Mapping[str, Any]
    name: str
    function: Any
    code: Any


# C functions, and tuples of functions, of their codes, and of the getters and names to find them.
Comparison = tuple[
    Any, Any, Any, Any, Any, tuple[Any, ...], tuple[Any, ...], Any, Any, "OriginalFunctions"
]


class OriginalFunctions(NamedTuple):
    """The functions that a candidate must not replace, as they were before it was imported: those
    of timing and comparison, the runner's modules, classes and methods, and those of the generator
    that draws fresh values. The frame that compares holds this itself, because a candidate can
    empty a module.

    `watched` is to be compared in a frame that is already running: a candidate that has replaced a
    function can restore it before a comparing function is called.
    """

    identities: tuple[int, ...]
    modules: tuple[tuple[str, Any], ...]
    members: tuple[tuple[Mapping[str, Any], str, Any], ...]  # None: absent
    watched: tuple[WatchedFunction, ...]

    def comparison(self) -> Comparison:
        """The parts with which a frame compares `watched` without calling a Python function, in a
        third of the time: `every(over(same, over(code, functions), codes))` and
        `every(over(same, over(call, getters, names), functions))`; the last part is this."""
        getters = tuple(watched.holder.get for watched in self.watched)
        names = tuple(watched.name for watched in self.watched)
        functions = tuple(watched.function for watched in self.watched)
        codes = tuple(watched.code for watched in self.watched)
        code = operator.attrgetter("__code__")
        return all, map, operator.is_, code, operator.call, functions, codes, getters, names, self


def original_functions() -> OriginalFunctions:
    """Record them; called before the candidate is imported."""
    owners = _owners()
    watched = tuple(
        WatchedFunction(vars(holder), member, function, function.__code__)
        for holder in owners.values()
        for member, function in vars(holder).items()
        if hasattr(function, "__code__")
    )
    modules = tuple((name, sys.modules[name]) for name in owners if name in sys.modules)
    members = tuple(
        (vars(holder), member, function)
        for holder in owners.values()
        for member, function in vars(holder).items()
        if callable(function)
    )
    # Methods that Random inherits, and that everything drawn comes from.
    members += tuple((vars(Random), name, None) for name in ("random", "getrandbits"))
    return OriginalFunctions(_identities(), modules, members, watched)


def replaced(original: OriginalFunctions, *, libraries: bool = True, runner: bool = True) -> bool:
    """Whether one of them has been replaced: of timing and comparison (`libraries`), or of the
    runner itself."""
    if libraries and _identities() != original.identities:
        return True
    if not runner:
        return False
    # A module that is imported later replaces nothing.
    if any(sys.modules.get(name) is not module for name, module in original.modules):
        return True
    if any(holder.get(name) is not function for holder, name, function in original.members):
        return True
    return any(w.function.__code__ is not w.code for w in original.watched)


def _owners() -> dict[str, Any]:
    """Modules of the runner, their classes, and the generator of random numbers, by name."""
    package = __name__.rpartition(".")[0]
    owners: dict[str, Any] = {"random.Random": Random}
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{package}."):
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
