"""One runner as the supervisor sees it: start, ask with a deadline, stop, wake, end for certain.

Everything it started ends with it: at level `namespaces` because the process namespace dies with
its first process, at level `process` by its process group and by looking through /proc for
processes that carry the runner's mark in their environment.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from optimizer.evaluation.isolation.container import Contained, engine
from optimizer.evaluation.isolation.launch import (
    ON_CPU,
    RUNNER,
    START_SECONDS,
    Forked,
    Launched,
    Spawned,
    Zygote,
    threads_and_memory,
)
from optimizer.evaluation.isolation.levels import Level
from optimizer.evaluation.looks import Looks, may_read
from optimizer.evaluation.runner.wire import Wire, WireClosed, WireForged

MARK = "KERNLORE_RUNNER"
END_SECONDS = 15.0  # a busy machine takes some to empty a namespace full of processes
PASSED = (
    "PATH",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "VIRTUAL_ENV",
    "LANG",
)
MAX_LOG = 64 * 1024
Device = Literal["cpu", "cuda"]


class RunnerDied(Exception):
    """The process ended while a request was pending; `log` is what it had printed."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


class RunnerHung(Exception):
    """No answer within the deadline; the group was ended. `log` is what it had printed."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class RunnerForged(Exception):
    """Something that is not the runner wrote into its channel; `content` is what was written."""

    def __init__(self, message: str, content: Any = None, log: str = "") -> None:
        super().__init__(message)
        self.content = content
        self.log = log


@dataclass(frozen=True)
class RunnerSettings:
    """What all runners of a pool have in common. `threads` is for torch and OpenMP. `compiler` says
    whether a runner on a CPU that is forked has torch's compiler imported."""

    device: Device = "cpu"
    threads: int = 1
    level: Level = "process"
    compiler: bool = False


class RunnerProcess:
    """A process that evaluates one kernel."""

    def __init__(self, settings: RunnerSettings, zygote: Zygote | None = None) -> None:
        """`zygote` is what to fork it from; without it a fresh interpreter starts."""
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
            self._launched = self._launch(zygote, nonce, theirs.fileno(), tokens.fileno())
            theirs.close()
            tokens.close()
        self._tokens.settimeout(START_SECONDS)
        self.wire = Wire(self._socket, nonce)
        self.readable = False  # whether this process may read the runner's memory
        self._ready = False
        self._stopped = False

    def _launch(self, zygote: Zygote | None, nonce: str, talk: int, tokens: int) -> Launched:
        log = self._log.fileno()
        if zygote is not None:
            start = {
                "secret": nonce,
                "environment": self._environment(),
                "scratch": str(self.scratch),
                "compiler": self.settings.compiler and self.settings.device == "cpu",
            }
            return zygote.fork(start, (talk, tokens, log))
        settings = self.settings
        arguments = [str(talk), str(tokens), nonce, settings.device, str(settings.threads)]
        return Spawned(
            settings.level, arguments, self._environment(), self.scratch, log, (talk, tokens)
        )

    def _contained(self, nonce: str) -> tuple[Launched, socket.socket, socket.socket]:
        """Raises RunnerDied or RunnerHung where no runner comes out of the container."""
        settings, log = self.settings, self._log.fileno()
        arguments = [nonce, settings.device, str(settings.threads)]
        program, environment = RUNNER / "__main__.py", self._environment()
        launched = Contained(engine(), program, arguments, environment, self.scratch, log)
        try:
            talk, tokens = launched.meet(START_SECONDS)
        except TimeoutError:
            raise RunnerHung("no container started", self.log) from None
        except EOFError:
            raise RunnerDied("no container started", self.log) from None
        return launched, talk, tokens

    def _environment(self) -> dict[str, str]:
        """Only what a compiler and torch need; caches lie in the scratch folder."""
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
        }

    # -- conversation

    def wait_ready(self) -> None:
        """Wait until it has imported what it needs. Raises RunnerDied or RunnerHung."""
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
        """Send a request; `await_answer` gets the answer. Raises RunnerDied."""
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

    def feed(
        self, tokens: Sequence[bytes], seconds: float, looks: Looks | None, ahead: bool = False
    ) -> None:
        """Let a block run calls, within `seconds`: one token for each request, the last of which is
        the end. `looks` looks at what each call left, before the next token is given. Returns early
        where the runner answers or ends before; `await_answer` says what. Raises RunnerForged where
        more calls are asked for than are being made.

        A token exists only between a request and its reading, so that nothing in the candidate's
        process can be counted. `ahead` gives all of them at once (without defence 32).
        """
        if ahead:
            self._tokens.sendall(b"".join(tokens))
            return
        waiting = select.poll()
        for sock in (self._tokens, self._socket):
            waiting.register(sock, select.POLLIN)
        until = time.monotonic() + seconds
        for number, token in enumerate(tokens):
            left = until - time.monotonic()
            ready = [fd for fd, _ in waiting.poll(max(0.0, left) * 1e3)]
            shows = looks.bytes if looks is not None and number else 0
            request = self._requested(shows) if self._tokens.fileno() in ready else b""
            if not request:
                return
            if looks is not None and number:
                looks(number - 1, request[1:])
            with contextlib.suppress(BrokenPipeError, ConnectionError):  # `await_answer` sees it
                self._tokens.send(token)

    def _requested(self, shows: int) -> bytes:
        """Take one request for a call, which shows so many bytes; nothing where the runner has
        ended."""
        wanted, request = 1 + shows, b""
        while len(request) < wanted:
            try:  # a byte more than is due shows whether another request waits
                part = self._tokens.recv(wanted + 1 - len(request))
            except (ConnectionError, TimeoutError):
                return b""
            if not part:
                return b""
            request += part
        if len(request) > wanted:
            self._refuse_requests()
        return request

    def finish_feeding(self) -> None:
        """Check, after the answer to a block, that nobody but the runner asked for its calls.
        Raises RunnerForged."""
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
        """The end of what it printed."""
        path = self.scratch / "log"
        if not path.exists():
            return self._last_log
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - MAX_LOG))
            return stream.read().decode("utf-8", "replace")

    _last_log = ""

    # -- the process

    def pause(self) -> None:
        """Stop it where it is: an idle runner's threads may spin. Raises RunnerDied."""
        if not self._stopped:
            self._signal(signal.SIGSTOP)
            self._stopped = True

    def wake(self) -> None:
        """Let a stopped runner go on. Raises RunnerDied."""
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
        """The process number of the runner itself, as this process sees it."""
        return self._launched.pid

    def waited_ns(self) -> int:
        """How long its threads were ready without getting a processor, so far, in nanoseconds."""
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
        """Processor time of all of its threads so far, by the kernel's account; 0 where that is
        not to be had."""
        clock = ~self._launched.pid << 3 | 2  # CPUCLOCK_SCHED, as clock_getcpuclockid(3) makes it
        try:
            return time.clock_gettime_ns(clock)
        except OSError:
            return 0

    def children(self) -> list[int]:
        """Living processes that it started, also those whose own parent has ended: they become its
        children where it is the first of a process namespace.
        """
        pids: list[int] = []
        for task in Path(f"/proc/{self._launched.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # the thread ended
                pids += map(int, task.read_text(encoding="ascii").split())
        return [pid for pid in pids if _state(pid) not in ("Z", "X", "")]

    def processes(self) -> list[int]:
        """Every process that carries this runner's mark or belongs to its session."""
        return marked(self._mark, self._launched.pid)

    def end(self) -> bool:
        """Kill everything it started; True when nothing of it is left."""
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
    """How long the calling thread was ready without getting a processor, in nanoseconds."""
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
    """Processes of the session, and those whose environment holds the mark: what a runner starts
    inherits it, in any session."""
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
            continue  # gone, or another user's
        if state != b"Z" and (marked or its_session == session):
            pids.append(int(entry.name))
    return pids


def _state(pid: int) -> str:
    """One letter (proc(5)); empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended on its own
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
