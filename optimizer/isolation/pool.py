"""Runners that are there before they are needed. Not for threads."""

from __future__ import annotations

import sys
from collections import deque

from optimizer.isolation.launch import Zygote
from optimizer.isolation.runner_process import RunnerProcess, RunnerSettings


class RunnerPool:
    """Forks runners for the CPU; keeps `spare` fresh ones waiting for a GPU."""

    def __init__(self, settings: RunnerSettings, spare: int = 1) -> None:
        self._settings = settings
        self._spare = spare
        self._waiting: deque[RunnerProcess] = deque()
        forks = settings.device == "cpu" and sys.platform.startswith("linux")
        self._zygote = Zygote(settings.threads, settings.level) if forks else None

    def prepare(self) -> None:
        """Start what is missing; returns at once."""
        while self._zygote is None and len(self._waiting) < self._spare:
            self._waiting.append(RunnerProcess(self._settings))

    def take(self) -> RunnerProcess:
        """A runner that is ready."""
        if self._waiting:
            runner = self._waiting.popleft()
        else:
            runner = RunnerProcess(self._settings, self._zygote)
        runner.wait_ready()
        return runner

    def close(self) -> None:
        while self._waiting:
            self._waiting.popleft().end()
        if self._zygote is not None:
            self._zygote.close()
