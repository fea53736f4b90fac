"""Parse files in a child process with limits on memory, CPU and time.

A child of a `ParserProcess` reads one document after the other. This module is also the child:
`python -m ingestion.parse_process ENTRY MEMORY FOLDER`.

Protocol, one line of JSON each way: the parent writes {"path", "name", "result", "cpu_seconds",
"document"}; the child writes the file `result` and answers {"result"}, or {"error"}. If the child
is out of memory, too slow or breaks the protocol, the parent raises `ParseFailed` with the reason
and starts another child. A child that was killed may not be the fault of its document, which is
read again, KILLED_TRIES times in all.

A child is started, not forked: the parent has libraries with threads. It leads a process group,
which is killed on overrun and when the parent ends. Without RLIMIT_AS (macOS) the memory of a child
is only checked between documents, see `memory_is_enforced`."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import kb.errors
from ingestion.elements import ParsedDocument, document_from_json, document_to_json
from ingestion.limits import DocumentLimits
from kb import telemetry
from kb.errors import KernloreError, ParseFailed, Unavailable

DEFAULT_ENTRY = "ingestion.formats:parse"
_MIB = 1024 * 1024
_ROOT = Path(__file__).resolve().parent.parent
_STDERR_TAIL = 4000
_SPLIT_HINT = "Split the document into parts, or raise the limits of the parser."
KILLED_TRIES = 3  # of a document whose parser was killed by a signal

ParserEntry = Callable[[bytes, str, DocumentLimits], ParsedDocument]


@dataclass(frozen=True)
class ParseLimits:
    """Limits for one document. `memory_mib` bounds the address space of the child. A child is
    replaced after `recycle_after` documents, or if it uses more than `recycle_mib`: parsers leak.
    """

    memory_mib: int = 4096
    cpu_seconds: int = 300
    wall_seconds: float = 600.0
    recycle_after: int = 50
    recycle_mib: int = 1024
    document: DocumentLimits = field(default_factory=DocumentLimits)


class _ParserKilled(ParseFailed):
    """The child was killed by a signal, by its document or from outside."""


def memory_is_enforced() -> bool:
    """Whether the system enforces the memory limit while a document is read."""
    return sys.platform != "darwin" and hasattr(resource, "RLIMIT_AS")


class ParserProcess:
    """Parser children, started when needed and reused. Any thread may call `parse`; `children`
    documents are read at a time. `entry` names the parser, a function of (bytes, name, limits of a
    document), as "module:function"."""

    def __init__(
        self, limits: ParseLimits | None = None, *, entry: str = DEFAULT_ENTRY, children: int = 1
    ) -> None:
        self._limits = limits or ParseLimits()
        self._entry = entry
        self._places = threading.Semaphore(children)
        self._lock = threading.Lock()  # protects the children, and _closed
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()
        self._closed = False

    def __enter__(self) -> ParserProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @telemetry.traced("job: parse")
    def parse_bytes(self, data: bytes, name: str) -> ParsedDocument:
        """Read the bytes of a file; raises as `parse`."""
        with tempfile.TemporaryDirectory(prefix="kernlore-") as folder:
            path = Path(folder) / "document"
            path.write_bytes(data)
            return self.parse(path, name)

    def parse(self, path: Path, name: str) -> ParsedDocument:
        """Read one file. Raises the error of the parser, and ParseFailed if the child was lost."""
        with self._places:
            for _ in range(KILLED_TRIES):
                try:
                    return self._parse(path, name)
                except _ParserKilled as error:
                    killed = error
            raise ParseFailed(
                f"{killed.message}, each of {KILLED_TRIES} times",
                hint="The document probably ends its parser: convert or split it. If this machine"
                " has little free memory, upload it again later.",
            )

    def _parse(self, path: Path, name: str) -> ParsedDocument:
        with self._lock:
            self._check_open()
            child = self._idle.pop() if self._idle else _Child(self._entry, self._limits)
            self._busy.add(child)
        try:
            return child.parse(path, name)
        except _ParserKilled:
            with self._lock:
                self._check_open()
            raise
        except KernloreError:
            raise
        except BaseException:  # of an interrupt too: the child is within a document
            child.kill()
            raise
        finally:
            with self._lock:
                self._busy.discard(child)
                if child.worn or self._closed:
                    child.close()
                else:
                    self._idle.append(child)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the parser is closed", hint="Open a new ParserProcess.")

    def close(self) -> None:
        """End the children; a document that is being read raises Unavailable."""
        with self._lock:
            self._closed = True
            for child in self._busy:
                child.kill_process()
            for child in self._idle:
                child.close()
            self._idle.clear()


class _Child:
    """One parser process and its pipes."""

    def __init__(self, entry: str, limits: ParseLimits) -> None:
        self.limits = limits
        self._served = 0
        self._rss_mib = 0.0
        self._ended = False
        self._folder = tempfile.TemporaryDirectory(prefix="kernlore-parse-")
        self._stderr = Path(self._folder.name, "stderr").open("wb+")  # noqa: SIM115 - lives with the child
        path = os.pathsep.join(p for p in (str(_ROOT), os.environ.get("PYTHONPATH")) if p)
        module = [sys.executable, "-m", "ingestion.parse_process"]
        command = [*module, entry, str(limits.memory_mib), self._folder.name]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._buffer = b""

    @property
    def worn(self) -> bool:
        return (
            self._served >= self.limits.recycle_after
            or self._rss_mib > self.limits.recycle_mib
            or self._ended
            or self._process.poll() is not None
        )

    def parse(self, path: Path, name: str) -> ParsedDocument:
        result = Path(self._folder.name, f"{self._served}.json")
        request = {
            "path": str(path.resolve()),
            "name": name,
            "result": str(result),
            "cpu_seconds": self.limits.cpu_seconds,
            "document": asdict(self.limits.document),
        }
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `_answer` finds the reason
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        answer = self._answer(time.monotonic() + self.limits.wall_seconds)
        self._served += 1
        self._rss_mib = float(answer.get("rss_mib", 0.0))
        self._ended = bool(answer.get("ended", False))
        if "error" in answer:
            raise error_from_json(answer["error"])
        try:
            return document_from_json(result.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self._lost(f"the parser sent no readable result: {error}") from error
        finally:
            result.unlink(missing_ok=True)

    def _answer(self, deadline: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                seconds = f"{self.limits.wall_seconds:g}"
                raise self._lost(f"out of time: the parser took longer than {seconds} s")
            part = os.read(pipe, 65_536)
            if not part:
                raise self._post_mortem()
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict):
                return answer
        raise self._lost("the parser wrote something else than its answer")

    def _lost(self, message: str) -> ParseFailed:
        """The failure of a child that cannot be used again."""
        self.kill()
        return _failure(message)

    def _post_mortem(self) -> ParseFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)  # for an exit status other than that of `kill`
        self.kill()
        code = self._process.returncode
        self._stderr.seek(0)
        log = self._stderr.read()[-_STDERR_TAIL:].decode("utf-8", "replace")
        if code == -signal.SIGXCPU:
            return _failure(f"out of time: the parser used {self.limits.cpu_seconds} s of CPU")
        if "MemoryError" in log or "bad_alloc" in log or "out of memory" in log.lower():
            return _out_of_memory(self.limits.memory_mib)
        if code < 0:
            name = signal.Signals(-code).name
            return _ParserKilled(f"the parser was killed ({name})", hint=_SPLIT_HINT)
        last = log.strip().splitlines()[-1:] or ["no message"]
        return _failure(f"the parser ended with status {code}: {last[0]}")

    def kill_process(self) -> None:
        """Kill the child and all that it started; a thread that waits for its answer goes on."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the child and all that it started, and close its pipes."""
        self.kill_process()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        self.kill()
        self._stderr.close()
        self._folder.cleanup()


def _failure(message: str) -> ParseFailed:
    return ParseFailed(message, hint=_SPLIT_HINT)


def _out_of_memory(memory_mib: int) -> ParseFailed:
    return _failure(f"out of memory: the parser needed more than {memory_mib} MiB")


def error_to_json(error: KernloreError) -> dict[str, Any]:
    """An error for another process."""
    return {"kind": type(error).__name__, **error.as_json()}


def error_from_json(row: Mapping[str, Any]) -> KernloreError:
    """The error of another process; ParseFailed if its class needs more than message and hint."""
    kind = getattr(kb.errors, str(row["kind"]), ParseFailed)
    safe = isinstance(kind, type) and issubclass(kind, KernloreError)
    cls = kind if safe and "__init__" not in vars(kind) else ParseFailed
    error: KernloreError = cls(row["message"], hint=row["hint"], details=row["details"])
    return error


# -- the child


def _serve(entry: str, memory_mib: int, folder: Path) -> None:
    """Answer requests until the pipe ends."""
    answers, requests = _private_pipes()
    leaving = threading.Thread(target=_leave_with_parent, args=(requests, folder), daemon=True)
    leaving.start()
    if memory_is_enforced():
        size = memory_mib * _MIB
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    module, _, function = entry.partition(":")
    parse: ParserEntry = getattr(importlib.import_module(module), function)
    for line in requests:
        request = json.loads(line)
        _limit_cpu(request["cpu_seconds"])
        answer = _answer_to(parse, request, memory_mib)
        answers.write(json.dumps({**answer, "rss_mib": _rss_mib()}).encode() + b"\n")
        answers.flush()
        if answer.get("ended"):
            return


def _private_pipes() -> tuple[Any, Any]:
    """The pipes to the parent, under other numbers: libraries may print, or read standard input."""
    answers = os.fdopen(os.dup(1), "wb")
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return answers, requests


def _leave_with_parent(requests: Any, folder: Path) -> None:
    """Kill this process group as soon as the parent closes its end of the pipe or is killed: the
    document may take minutes more."""
    pipe = select.poll()
    pipe.register(requests, 0)  # only the end of the pipe is reported
    pipe.poll()
    shutil.rmtree(folder, ignore_errors=True)  # a killed parent cannot
    os.killpg(0, signal.SIGKILL)


def _limit_cpu(seconds: int) -> None:
    """Allow so many seconds more: the system counts from the start of the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _answer_to(parse: ParserEntry, request: dict[str, Any], memory_mib: int) -> dict[str, Any]:
    limits = DocumentLimits(**request["document"])
    try:
        data = Path(request["path"]).read_bytes()
        document = parse(data, request["name"], limits)
        Path(request["result"]).write_text(document_to_json(document), encoding="utf-8")
    except KernloreError as error:
        return {"error": error_to_json(error)}
    except MemoryError:  # libraries may be in any state after a failed allocation
        return {"error": error_to_json(_out_of_memory(memory_mib)), "ended": True}
    return {"result": request["result"]}


def _rss_mib() -> float:
    """The memory of this process, or its peak on systems without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MIB
    return pages * resource.getpagesize() / _MIB


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
