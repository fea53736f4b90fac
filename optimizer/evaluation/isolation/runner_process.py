"""One runner as the supervisor sees it: start, request with a deadline, sample its memory, stop,
resume, end; and a pool of runners that are started in advance.

Everything that a runner started ends with it: at level `namespaces` because its process namespace
dies with it, at level `process` by its process group and by searching /proc for processes that have
the runner's mark in their environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch

from optimizer.evaluation.isolation.launch import (
    ON_CPU,
    RUNNER,
    START_SECONDS,
    Forked,
    ForkServer,
    Launched,
    Spawned,
    threads_and_memory,
)
from optimizer.evaluation.isolation.levels import Contained, Level, engine
from optimizer.evaluation.runner.memory import (
    READABLE,
    SAMPLED,
    SAMPLED_EARLY,
    drawn_elements,
    dtype_of,
    layout,
    offset,
)
from optimizer.evaluation.runner.wire import DRAW_BYTES, Wire, WireClosed, WireForged

MARK = "KERNLORE_RUNNER"
VISIBLE = "CUDA_VISIBLE_DEVICES"
END_SECONDS = 15.0  # a busy machine takes some to empty a namespace full of processes
PASSED = (
    *("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", VISIBLE, "NVIDIA_VISIBLE_DEVICES"),
    *("NVIDIA_DRIVER_CAPABILITIES", "VIRTUAL_ENV", "LANG"),
)
MAX_LOG = 64 * 1024
Device = Literal["cpu", "cuda"]


class RunnerDied(Exception):
    """The process ended while a request was pending; `log` is its output."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


class RunnerHung(Exception):
    """No answer within the deadline; the group was ended. `log` is its output."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class RunnerForged(Exception):
    """Something other than the runner wrote `content` into its channel."""

    def __init__(self, message: str, content: Any = None, log: str = "") -> None:
        super().__init__(message)
        self.content = content
        self.log = log


@dataclass(frozen=True)
class RunnerSettings:
    """Common settings of a pool's runners. `threads` is for torch and OpenMP. `compiler`: a forked
    runner on a CPU has torch's compiler imported. `visible` is the runner's CUDA_VISIBLE_DEVICES,
    by default that of this process."""

    device: Device = "cpu"
    threads: int = 1
    level: Level = "process"
    compiler: bool = False
    visible: str | None = None


class RunnerProcess:
    """A process that evaluates one kernel."""

    def __init__(self, settings: RunnerSettings, fork_server: ForkServer | None = None) -> None:
        """Fork it from `fork_server`, or else start a fresh interpreter."""
        self.settings = settings
        self.scratch = Path(tempfile.mkdtemp(prefix="kernlore-run-"))
        self._mark = secrets.token_hex(8)
        nonce = secrets.token_hex(16)
        self._log = (self.scratch / "log").open("wb")
        if settings.level == "container":
            self._launched, self._socket, self._tokens = self._contained(nonce)
        else:
            self._socket, theirs = socket.socketpair()
            tokens, self._tokens = socket.socketpair()
            self._launched = self._launch(fork_server, nonce, theirs.fileno(), tokens.fileno())
            theirs.close()
            tokens.close()
        self._tokens.settimeout(START_SECONDS)
        self.wire = Wire(self._socket, nonce)
        self.readable = False  # whether this process may read the runner's memory
        self._ready = False
        self._stopped = False

    def _launch(self, server: ForkServer | None, nonce: str, talk: int, tokens: int) -> Launched:
        log = self._log.fileno()
        if server is not None:
            start = {
                "secret": nonce,
                "environment": self._environment(),
                "scratch": str(self.scratch),
                "compiler": self.settings.compiler and self.settings.device == "cpu",
            }
            return server.fork(start, (talk, tokens, log))
        settings = self.settings
        arguments = [str(talk), str(tokens), nonce, settings.device, str(settings.threads)]
        return Spawned(
            settings.level, arguments, self._environment(), self.scratch, log, (talk, tokens)
        )

    def _contained(self, nonce: str) -> tuple[Launched, socket.socket, socket.socket]:
        """Raises RunnerDied or RunnerHung if no runner starts in the container."""
        arguments = [nonce, self.settings.device, str(self.settings.threads)]
        launched = Contained(
            engine(),
            [RUNNER, "run"],
            arguments,
            self._environment(),
            self.scratch,
            self._log.fileno(),
        )
        try:
            talk, tokens = launched.connect(START_SECONDS)
        except TimeoutError:
            raise RunnerHung("no container started", self.log) from None
        except EOFError:
            raise RunnerDied("no container started", self.log) from None
        return launched, talk, tokens

    def _environment(self) -> dict[str, str]:
        """The environment of a compiler and torch, with caches in the scratch folder."""
        scratch = str(self.scratch)
        return {
            **{name: os.environ[name] for name in PASSED if name in os.environ},
            "HOME": scratch,
            "TMPDIR": scratch,
            "TRITON_CACHE_DIR": f"{scratch}/triton",
            "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/inductor",
            **(ON_CPU if self.settings.device == "cpu" else {}),
            **threads_and_memory(self.settings.threads),
            MARK: self._mark,
            **({} if self.settings.visible is None else {VISIBLE: self.settings.visible}),
        }

    # -- requests

    def wait_ready(self) -> None:
        """Wait until it has its imports done. Raises RunnerDied or RunnerHung."""
        if self._ready:
            return
        answer = self.await_answer(START_SECONDS)
        if isinstance(self._launched, Spawned):
            self._launched.settle()
        self.readable = may_read(self._launched.pid, int(answer["word"]))
        self._ready = True

    def ask(
        self, message: Mapping[str, Any], fds: Sequence[int] = (), *, seconds: float
    ) -> dict[str, Any]:
        """The answer to one request. Raises RunnerDied, RunnerHung or RunnerForged."""
        self.wait_ready()
        self.send(message, fds)
        return self.await_answer(seconds)

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a request, to be followed by `await_answer`. Raises RunnerDied."""
        try:
            self.wire.send(message, fds)
        except WireClosed:
            raise self._died() from None

    def await_answer(self, seconds: float) -> dict[str, Any]:
        """The answer to the request that was sent. Raises RunnerDied, RunnerHung or
        RunnerForged."""
        self._socket.settimeout(seconds)
        try:
            answer, fds = self.wire.receive()
            for fd in fds:  # a runner sends none
                os.close(fd)
            return answer
        except TimeoutError:
            self.end()
            raise RunnerHung(f"no answer within {seconds:.0f} s", self.log) from None
        except WireClosed:
            raise self._died() from None
        except (WireForged, ValueError) as forged:
            self.end()
            raise RunnerForged(str(forged), getattr(forged, "content", None), self.log) from forged

    def grant(
        self,
        tokens: Sequence[bytes],
        seconds: float,
        sampler: OutputSampler | None,
        prepare: Callable[[int], None] | None = None,
    ) -> list[int]:
        """Grant the calls of a block within `seconds`: one token for each request, the last of
        which ends the block. `sampler` samples each call before the next token is sent, `prepare`
        is called with the number of the next call. The result: nanoseconds from each grant to the
        next request. Returns early if the runner answers or ends before; `await_answer` tells the
        two apart. Raises RunnerForged if more calls are requested than the block has.

        A token exists only between a request and its reading, so the candidate's process cannot
        count them.
        """
        waiting = select.poll()
        for sock in (self._tokens, self._socket):
            waiting.register(sock, select.POLLIN)
        until = time.monotonic() + seconds
        outer: list[int] = []
        granted = 0
        for number, token in enumerate(tokens):
            left = until - time.monotonic()
            ready = [fd for fd, _ in waiting.poll(max(0.0, left) * 1e3)]
            reported = sampler.report_bytes if sampler is not None and number else 0
            request = self._requested(reported) if self._tokens.fileno() in ready else b""
            if not request:
                return outer
            if number:
                outer.append(time.perf_counter_ns() - granted)
            if sampler is not None and number:
                sampler(number - 1, request[1:])
            if prepare is not None:
                prepare(number)
            granted = time.perf_counter_ns()
            with contextlib.suppress(BrokenPipeError, ConnectionError):  # `await_answer` sees it
                self._tokens.send(token)
        return outer

    def grant_all(self, tokens: Sequence[bytes]) -> None:
        """Put all tokens of a block into the runner's socket at once, where a candidate can count
        them."""
        self._tokens.sendall(b"".join(tokens))

    def _requested(self, reported: int) -> bytes:
        """One request for a call, with so many bytes of report; empty if the runner has ended."""
        wanted, request = 1 + reported, b""
        while len(request) < wanted:
            try:  # an extra byte shows whether another request is waiting
                part = self._tokens.recv(wanted + 1 - len(request))
            except (ConnectionError, TimeoutError):
                return b""
            if not part:
                return b""
            request += part
        if len(request) > wanted:
            self._refuse_requests()
        return request

    def check_granted(self) -> None:
        """Check, after a block's answer, that no further call was requested. Raises
        RunnerForged."""
        if select.select([self._tokens], [], [], 0)[0] and self._tokens.recv(1):
            self._refuse_requests()

    def _refuse_requests(self) -> NoReturn:
        self.end()
        raise RunnerForged("calls of a block were asked for in advance", log=self.log)

    def _died(self) -> RunnerDied:
        code = self._launched.wait(END_SECONDS)
        self.end()
        return RunnerDied(_ending(code), self.log)

    @property
    def log(self) -> str:
        """The end of its output."""
        path = self.scratch / "log"
        if not path.exists():
            return self._last_log
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - MAX_LOG))
            return stream.read().decode("utf-8", "replace")

    _last_log = ""

    # -- the process

    def pause(self) -> None:
        """Stop it, because an idle runner's threads may spin. Raises RunnerDied."""
        if not self._stopped:
            self._signal(signal.SIGSTOP)
            self._stopped = True

    def wake(self) -> None:
        """Resume a stopped runner. Raises RunnerDied."""
        if self._stopped:
            self._signal(signal.SIGCONT)
            self._stopped = False

    def _signal(self, which: signal.Signals) -> None:
        try:
            os.kill(self._launched.pid, which)
        except ProcessLookupError:
            raise self._died() from None

    @property
    def pid(self) -> int:
        """The runner's process number, as this process sees it."""
        return self._launched.pid

    def waited_ns(self) -> int:
        """Nanoseconds for which its threads were ready without a processor, so far."""
        tasks = f"/proc/{self._launched.pid}/task"
        try:
            with os.scandir(tasks) as threads:  # often called; pathlib takes 5 x
                return sum(_schedstat(f"{thread.path}/schedstat", 1) for thread in threads)
        except OSError:
            return 0

    def busy_ns(self) -> int:
        """Processor time of its main thread so far, by the kernel's account."""
        pid = self._launched.pid
        return _schedstat(f"/proc/{pid}/task/{pid}/schedstat", 0)

    def worked_ns(self) -> int:
        """Processor time of all its threads so far, by the kernel's account; 0 if unknown."""
        clock = ~self._launched.pid << 3 | 2  # CPUCLOCK_SCHED, as clock_getcpuclockid(3) makes it
        try:
            return time.clock_gettime_ns(clock)
        except OSError:
            return 0

    def children(self) -> list[int]:
        """Living processes that it started. Orphans among them become its children if it is the
        first process of a namespace."""
        pids: list[int] = []
        for task in Path(f"/proc/{self._launched.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # the thread ended
                pids += map(int, task.read_text(encoding="ascii").split())
        return [pid for pid in pids if _state(pid) not in ("Z", "X", "")]

    def processes(self) -> list[int]:
        """Every process that has this runner's mark or belongs to its session."""
        return marked(self._mark, self._launched.pid)

    def end(self) -> bool:
        """Kill all processes that it started; True if all are gone."""
        if self.scratch.exists():
            self._last_log = self.log
        # Its namespace ends with its first process, and is empty before that one counts as ended.
        alone = self.settings.level == "namespaces" and isinstance(self._launched, Forked)
        for pid in {self._launched.pid, *(() if alone else self.processes())}:
            _kill(pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # empty already
            os.killpg(self._launched.pid, signal.SIGKILL)
        if self._launched.wait(END_SECONDS) is None:
            return False
        empty = alone or self._emptied()
        for close in (self.wire.close, self._log.close, self._tokens.close):
            close()
        shutil.rmtree(self.scratch, ignore_errors=True)
        return empty

    def _emptied(self) -> bool:
        until = time.monotonic() + END_SECONDS
        while time.monotonic() < until:
            left = self.processes()
            if not left:
                return True
            for pid in left:
                _kill(pid)
            time.sleep(0.01)
        return False


def own_wait_ns() -> int:
    """Nanoseconds for which the calling thread was ready without a processor."""
    return _schedstat("/proc/thread-self/schedstat", 1)


def _schedstat(path: str, field: int) -> int:
    """0: nanoseconds on a processor, 1: ready and waiting for one."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, 80).split()[field])
        finally:
            os.close(file)
    except (OSError, IndexError, ValueError):
        return 0  # the thread ended between listing and reading, or the kernel keeps no account


def marked(mark: str, session: int) -> list[int]:
    """Processes of the session, and those with the mark in their environment, which children
    inherit in any session."""
    wanted = f"{MARK}={mark}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            state, its_session = fields[0], int(fields[3])
            marked = wanted in (entry / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue  # ended, or another user's
        if state != b"Z" and (marked or its_session == session):
            pids.append(int(entry.name))
    return pids


def _state(pid: int) -> str:
    """One letter (proc(5)); empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended by itself
        os.kill(pid, signal.SIGKILL)


def _ending(code: int | None) -> str:
    if code is None:
        return "the runner closed its channel and did not end"
    if code < 0 or code > 128:
        number = -code if code < 0 else code - 128
        try:
            return f"the runner was ended by {signal.Signals(number).name}"
        except ValueError:
            pass
    return f"the runner ended with exit code {code}"


# -- reading a runner's memory
#
# Which elements are read is drawn here and never sent, so nothing in the candidate's process knows
# them. The kernel reads for us: a page that the candidate made unreadable stays unreadable, and no
# page-fault handler is called.

MAX_PIECES = 1024  # of one system call (IOV_MAX)
_string_at = ctypes.string_at
_LIBC = ctypes.CDLL(None, use_errno=True)


class MemoryUnreadable(Exception):
    """The other process's memory cannot be read there; the message says why."""


def read_memory(pid: int, pieces: Sequence[tuple[int, int]]) -> bytes:
    """Concatenated bytes of (address, length) pieces of another process. Raises
    MemoryUnreadable."""
    parts = []
    for begin in range(0, len(pieces), MAX_PIECES):
        parts.append(_read_some(pid, pieces[begin : begin + MAX_PIECES]))
    return b"".join(parts)


def _read_some(pid: int, pieces: Sequence[tuple[int, int]]) -> bytes:
    wanted = sum(length for _, length in pieces)
    buffer = ctypes.create_string_buffer(wanted)
    ours = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), wanted)  # struct iovec
    flat = [number for piece in pieces for number in piece]
    theirs = (ctypes.c_uint64 * len(flat))(*flat)
    read = _readv()(pid, ours, 1, theirs, len(pieces), 0)
    if read != wanted:
        error = ctypes.get_errno() if read < 0 else 0
        raise MemoryUnreadable(os.strerror(error) if error else "a part of it is not there")
    return buffer.raw


def _readv() -> ctypes._NamedFuncPointer:
    """process_vm_readv(2). Raises MemoryUnreadable on systems without it."""
    if not sys.platform.startswith("linux"):
        raise MemoryUnreadable("only Linux lets one process read another's memory so")
    function = _LIBC.process_vm_readv
    function.restype = ctypes.c_ssize_t
    return function


def may_read(pid: int, address: int) -> bool:
    """Whether this process may read that one's memory, by trying a word that a runner holds before
    it loads a candidate."""
    try:
        return int.from_bytes(read_memory(pid, [(address, 8)]), "little") == READABLE
    except MemoryUnreadable:
        return False


@dataclass(frozen=True)
class SampledOutput:
    """Shape of an output, and bytes of an element."""

    shape: tuple[int, ...]
    item: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return int(torch.Size(self.shape).numel())


def sampled_outputs(expected: Sequence[tuple[str, Sequence[int]]]) -> list[SampledOutput]:
    """Outputs of these (dtype, shape) pairs."""
    return [
        SampledOutput(tuple(shape), torch.empty(0, dtype=dtype_of(dtype)).element_size())
        for dtype, shape in expected
    ]


class OutputSampler:
    """Samples the outputs and inputs of one block's calls. It is called with a call's number and
    the runner's report in its request for the next call.

    `samples` and `inputs` have the bytes of the drawn elements of each call's outputs and inputs.
    `changed_late` counts calls whose outputs changed after they had ended. `error` says why the
    memory could not be read, or is empty.
    """

    def __init__(
        self,
        pid: int,
        outputs: Sequence[SampledOutput],
        draws: Sequence[bytes],
        inputs: Sequence[torch.Tensor] = (),
    ) -> None:
        """`draws` has one for each call. `inputs` are in memory that both processes map."""
        self.samples: list[bytes] = []
        self.inputs: list[bytes] = []
        self.changed_late = 0
        self.error = ""
        self._pid = pid
        self._outputs = outputs
        self._draws = draws
        self._inputs = [(tensor, tensor.data_ptr(), tensor.element_size()) for tensor in inputs]
        self._where = layout([output.shape for output in outputs])
        self._early = sum(SAMPLED_EARLY * output.item for output in outputs if output.numel)
        self.report_bytes = DRAW_BYTES + self._early + self._where.size

    def __call__(self, call: int, report: bytes) -> None:
        """Sample a finished call."""
        if self.error:
            return
        own, report = report[:DRAW_BYTES], report[DRAW_BYTES:]
        early, numbers = report[: self._early], self._where.unpack(report[self._early :])
        pieces = self._pieces(numbers, self._draws[call], SAMPLED)
        size = sum(length for _, length in pieces)
        try:
            data = read_memory(self._pid, pieces + self._pieces(numbers, own, SAMPLED_EARLY))
        except MemoryUnreadable as problem:
            self.error = str(problem)
            return
        self.samples.append(data[:size])
        self.changed_late += data[size:] != early
        self.inputs.append(self._of_inputs(self._draws[call]))

    def _pieces(self, numbers: Sequence[int], draw: bytes, count: int) -> list[tuple[int, int]]:
        """(address, length) of the drawn elements; `numbers` are addresses and strides."""
        pieces, begin = [], 0
        sizes = [output.numel for output in self._outputs]
        for output, chosen in zip(self._outputs, drawn_elements(draw, sizes, count), strict=True):
            end = begin + 1 + len(output.shape)
            address, strides = numbers[begin], numbers[begin + 1 : end][::-1]
            shape, begin = output.shape[::-1], end
            for number in chosen:
                at = address + offset(number, shape, strides) * output.item
                pieces.append((at & (1 << 64) - 1, output.item))
        return pieces

    def _of_inputs(self, draw: bytes) -> bytes:
        parts = []
        sizes = [tensor.numel() for tensor, _, _ in self._inputs]
        for (_, address, item), chosen in zip(
            self._inputs, drawn_elements(draw, sizes), strict=True
        ):
            parts += [_string_at(address + number * item, item) for number in chosen]
        return b"".join(parts)


# -- the pool

# An evaluation takes three on the CPU: one checks, two are timed against each other. On a GPU it
# takes one, and each that waits holds a context.
SPARES = {"cpu": 3, "cuda": 1}
ENDERS = 3  # runners that end at the same time


class RunnerPool:
    """Runners that are started in advance, forked from one interpreter if the system can fork. Not
    thread-safe."""

    def __init__(
        self, settings: RunnerSettings, spare: int | None = None, fork: bool = True
    ) -> None:
        """`spare` is the number of waiting runners, by default that of the device. Without `fork`,
        and in containers, each is a fresh interpreter."""
        self._settings = settings
        self._spare = SPARES[settings.device] if spare is None else spare
        self._waiting: deque[RunnerProcess] = deque()
        forks = fork and sys.platform.startswith("linux") and settings.level != "container"
        forked = (settings.threads, settings.level, settings.device)
        self._fork_server = ForkServer.shared(*forked) if forks else None
        self._enders = ThreadPoolExecutor(ENDERS, thread_name_prefix="end-runner")
        # One thread for the pool's life, because runners end with the thread that started them.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="start-runner")
        self._starting: Future[None] | None = None

    def prepare(self) -> None:
        """Start missing runners in the background."""
        self.settle()
        self._starting = self._starter.submit(self._start_missing)

    @property
    def ends_surely(self) -> bool:
        """Whether the system ends everything of a runner as soon as its first process is killed, so
        that this need not be checked."""
        return self._fork_server is not None and self._settings.level == "namespaces"

    def import_compiler(self) -> None:
        """From now on fork runners on a CPU that have torch's compiler imported, which takes each
        of them seconds otherwise."""
        settings = self._settings
        if self._fork_server is None or settings.device != "cpu" or settings.compiler:
            return
        self.settle()
        self._settings = replace(settings, compiler=True)
        while self._waiting:
            self.end(self._waiting.popleft())
        self.prepare()

    def _start_missing(self) -> None:
        while len(self._waiting) < self._spare:
            self._waiting.append(RunnerProcess(self._settings, self._fork_server))

    def settle(self) -> None:
        """Wait until no runner is starting; raises what starting raised."""
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.result()

    def take(self) -> RunnerProcess:
        """A runner that is ready. Raises RunnerDied or RunnerHung."""
        self.settle()
        if not self._waiting:
            self.prepare()
            self.settle()
        runner = self._waiting.popleft()
        runner.wait_ready()
        return runner

    def end(self, runner: RunnerProcess) -> Future[bool]:
        """End a runner in the background: the system takes a while to free its memory. The result:
        whether all its processes are gone."""
        return self._enders.submit(runner.end)

    def close(self) -> None:
        """End all waiting runners, and wait for those that are ending."""
        self._starter.shutdown()  # completes a start, whose runner is ended with the others
        while self._waiting:
            self.end(self._waiting.popleft())
        self._enders.shutdown()
