"""Parsing outside the process that matters: a child with limits on memory, CPU and time.

`ParserPool` keeps one warm child that reads one document after the other; `parse_in_child` is a
pool for a single document. Run as `python -m ingestion.parse_process ENTRY MEMORY FOLDER`, this
module is the child.

Protocol, one line of JSON each way: the parent writes {"path", "name", "cpu_seconds"}; the child
writes the file named in {"result"}, or {"error"}. Whatever else happens (killed, out of memory, too
slow, nonsense on the pipe) is a `ParseFailed` with the reason, and the child is replaced.

A child is started, never forked: libraries with threads are loaded in the parent. It leads its own
process group, and that group is killed on overrun, and when the parent is no more. Where the system
has no RLIMIT_AS (macOS), the child watches its own peak between documents only;
`memory_is_enforced()` says which."""

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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import kb.errors
from ingestion.elements import ParsedDocument, document_from_json, document_to_json
from kb.errors import KernloreError, ParseFailed, Unavailable

DEFAULT_ENTRY = "ingestion.formats:parse"
_MIB = 1024 * 1024
_ROOT = Path(__file__).resolve().parent.parent
_STDERR_KEPT = 4000
_SPLIT_HINT = "Split the document into parts, or raise the limits of the parser."

ParserEntry = Callable[[bytes, str], ParsedDocument]


@dataclass(frozen=True)
class ParseLimits:
    """What one document may cost. `memory_mib` bounds the address space of the child.

    A child is replaced after `recycle_after` documents, or when it holds more than `recycle_mib`:
    parsers of other people leak.
    """

    memory_mib: int = 4096
    cpu_seconds: int = 300
    wall_seconds: float = 600.0
    recycle_after: int = 50
    recycle_mib: int = 1024


def memory_is_enforced() -> bool:
    """Whether the memory limit holds while a document is being read, or only between documents."""
    return sys.platform != "darwin" and hasattr(resource, "RLIMIT_AS")


def parse_in_child(
    path: Path, name: str, limits: ParseLimits | None = None, *, entry: str = DEFAULT_ENTRY
) -> ParsedDocument:
    """Read one file in a child of its own."""
    with ParserPool(limits, entry=entry) as pool:
        return pool.parse(path, name)


class ParserPool:
    """Warm parser children. Each serves one document at a time; `parse` may be called from any
    thread.

    `entry` names the parser as "module:function", a function of (bytes, name).
    """

    def __init__(
        self, limits: ParseLimits | None = None, workers: int = 1, *, entry: str = DEFAULT_ENTRY
    ) -> None:
        self.limits = limits or ParseLimits()
        self._entry = entry
        self._idle: list[_Child | None] = [None] * max(1, workers)
        self._free = (
            threading.Condition()
        )  # protects _idle and _closed: a child belongs to one caller
        self._size = max(1, workers)
        self._closed = False

    def __enter__(self) -> ParserPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def parse(self, path: Path, name: str) -> ParsedDocument:
        """Read one file; raises what the parser raised, or ParseFailed when the child did not
        survive it.
        """
        child = self._take()
        keep: _Child | None = None
        try:
            child = child or _Child(self._entry, self.limits)
            document = child.parse(path, name)
            keep = child
            return document
        except _ChildLost as lost:
            raise lost.failure from None
        except KernloreError:
            keep = child
            raise
        finally:
            if keep is not None and keep.worn:
                keep.close()
                keep = None
            elif keep is None and child is not None:
                child.kill()
                child.close()
            self._give(keep)

    def close(self) -> None:
        """Wait for documents that are being read, then end the children."""
        with self._free:
            self._closed = True
            self._free.wait_for(lambda: len(self._idle) == self._size)
            children, self._idle = self._idle, []
            self._size = 0
        for child in children:
            if child is not None:
                child.close()

    def _take(self) -> _Child | None:
        with self._free:
            self._free.wait_for(lambda: bool(self._idle) or self._closed)
            if self._closed:
                raise Unavailable("the parser pool is closed", hint="Open a new ParserPool.")
            return self._idle.pop()

    def _give(self, child: _Child | None) -> None:
        with self._free:
            self._idle.append(child)
            self._free.notify_all()


class _ChildLost(Exception):
    """The child cannot be used again; `failure` is what the caller of the pool gets."""

    def __init__(self, failure: ParseFailed) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _Child:
    """One parser process and the pipe to it."""

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
        }
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer, or its absence, tells why
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        answer = self._answer(time.monotonic() + self.limits.wall_seconds)
        self._served += 1
        self._rss_mib = float(answer.get("rss_mib", 0.0))
        self._ended = bool(answer.get("ended", False))
        if "error" in answer:
            raise _revived(answer["error"])
        try:
            return document_from_json(result.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _ChildLost(_failure(f"the parser sent no readable result: {error}")) from error
        finally:
            result.unlink(missing_ok=True)

    def _answer(self, deadline: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.kill()
                seconds = f"{self.limits.wall_seconds:g}"
                raise _ChildLost(_failure(f"out of time: the parser took longer than {seconds} s"))
            part = os.read(pipe, 65_536)
            if not part:
                raise _ChildLost(self._post_mortem())
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise _ChildLost(_failure("the parser wrote something else than its answer")) from error
        if not isinstance(answer, dict):
            raise _ChildLost(_failure("the parser wrote something else than its answer"))
        return answer

    def _post_mortem(self) -> ParseFailed:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)  # its own exit status says more than our kill
        self.kill()
        code = self._process.returncode
        self._stderr.seek(0)
        log = self._stderr.read()[-_STDERR_KEPT:].decode("utf-8", "replace")
        if code == -signal.SIGXCPU:
            return _failure(f"out of time: the parser used {self.limits.cpu_seconds} s of CPU")
        if "MemoryError" in log or "bad_alloc" in log or "out of memory" in log.lower():
            return _failure(
                f"out of memory: the parser needed more than {self.limits.memory_mib} MiB"
            )
        if code < 0:
            name = signal.Signals(-code).name
            return _failure(
                f"the parser was killed ({name}), perhaps by the system for want of memory"
            )
        last = log.strip().splitlines()[-1:] or ["no message"]
        return _failure(f"the parser ended with status {code}: {last[0]}")

    def kill(self) -> None:
        """End the child and all it started, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close_pipes()

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        self.kill()
        self._stderr.close()
        self._folder.cleanup()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _failure(message: str) -> ParseFailed:
    return ParseFailed(message, hint=_SPLIT_HINT)


def _revived(error: dict[str, Any]) -> KernloreError:
    """The error of the child, of the same class where that is built from message and hint alone."""
    kind = getattr(kb.errors, str(error["kind"]), ParseFailed)
    safe = isinstance(kind, type) and issubclass(kind, KernloreError)
    cls = kind if safe and "__init__" not in vars(kind) else ParseFailed
    revived: KernloreError = cls(error["message"], hint=error["hint"], details=error["details"])
    return revived


def _serve(entry: str, memory_mib: int, folder: Path) -> None:
    """The child: read requests until the pipe ends."""
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
    """The pipes to the parent, out of reach of libraries that print or ask."""
    answers = os.fdopen(os.dup(1), "wb")
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return answers, requests


def _leave_with_parent(requests: Any, folder: Path) -> None:
    """End this process and what it started as soon as the parent closes its end of the pipe, in
    order or because it was killed. The document at hand may take minutes, and nobody wants it.
    """
    pipe = select.poll()
    pipe.register(requests, 0)  # only its end is reported
    pipe.poll()
    shutil.rmtree(folder, ignore_errors=True)  # the parent's, who may not be there to do it
    os.killpg(0, signal.SIGKILL)


def _limit_cpu(seconds: int) -> None:
    """The CPU limit counts from the start of the process, so it moves on with each document."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _answer_to(parse: ParserEntry, request: dict[str, Any], memory_mib: int) -> dict[str, Any]:
    try:
        document = parse(Path(request["path"]).read_bytes(), request["name"])
        Path(request["result"]).write_text(document_to_json(document), encoding="utf-8")
    except KernloreError as error:
        return {"error": {"kind": type(error).__name__, **error.as_json()}}
    except MemoryError:
        # What a library does after a failed allocation is anyone's guess: this process ends here.
        message = f"out of memory: the parser needed more than {memory_mib} MiB"
        failure = _failure(message).as_json()
        return {"error": {"kind": "ParseFailed", **failure}, "ended": True}
    return {"result": request["result"]}


def _rss_mib() -> float:
    """Memory this process holds now, or its peak where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MIB
    return pages * resource.getpagesize() / _MIB


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
