"""`kernlore evaluate` for a service, each time in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from typing import IO, Protocol

from kb import telemetry
from kb import workers as jobs
from kb.settings import Settings
from kb.workers import ROOT, ChildProcess
from optimizer.evaluation.isolation.prepared import AVAILABLE, PreparedProcess, PreparedProcesses

REST_SECONDS = 300.0  # after which what waits for an evaluation is ended: it holds 350 MiB


class Evaluating(Protocol):
    """An evaluation on its way."""

    def answer(self, seconds: float) -> tuple[str, str]:
        """What it wrote to standard output and error. Raises TimeoutError where it did not end in
        time; it still runs then.
        """
        ...

    def end(self) -> None:
        """End it and what it has started."""
        ...


class EvaluateProcesses:
    """Starts evaluations: where processes can be forked, without importing anything again."""

    def __init__(self, command: Sequence[str], entry: str) -> None:
        """`command` is `kernlore evaluate`; `entry` is the `module:function` that does the same
        with the arguments of that command.
        """
        self._command = tuple(command)
        self._prepared = PreparedProcesses(entry) if AVAILABLE else None

    def start(self, arguments: Sequence[str], settings: Settings) -> Evaluating:
        """An evaluation that has begun. Raises OSError where no process could be made."""
        if self._prepared is None:
            return ChildProcess([*self._command, *arguments], settings)
        return _Forked(self._prepared, arguments, settings)

    def rest(self) -> None:
        """Give back the memory of what has been waiting for an evaluation for long."""
        if self._prepared is not None:
            self._prepared.rest(REST_SECONDS)

    def close(self) -> None:
        """End what was started, and what waits."""
        if self._prepared is not None:
            self._prepared.close()


class _Forked:
    def __init__(
        self, prepared: PreparedProcesses, arguments: Sequence[str], settings: Settings
    ) -> None:
        variables = {**jobs.environment(settings), **telemetry.for_child()}
        with ExitStack() as files:
            self._out = files.enter_context(tempfile.TemporaryFile())
            self._err = files.enter_context(tempfile.TemporaryFile())
            output = self._out.fileno(), self._err.fileno()
            self._process: PreparedProcess = prepared.start(arguments, variables, ROOT, output)
            self._files = files.pop_all()

    def answer(self, seconds: float) -> tuple[str, str]:
        """As `Evaluating.answer`."""
        if self._process.wait(seconds) is None:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        return _read(self._out), _read(self._err)

    def end(self) -> None:
        """As `Evaluating.end`."""
        self._process.end()
        self._files.close()


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
