"""Runners that are started before they are needed. Not for several threads."""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from optimizer.evaluation.isolation.launch import Zygote
from optimizer.evaluation.isolation.runner_process import RunnerProcess, RunnerSettings

# An evaluation takes three on the CPU: one checks, two are timed against each other. On a GPU it
# takes one, and each that waits holds a context there.
SPARES = {"cpu": 3, "cuda": 1}
ENDERS = 3  # runners that are being ended at a time


class RunnerPool:
    """Keeps fresh runners waiting, forked from one interpreter where the system can fork."""

    def __init__(
        self, settings: RunnerSettings, spare: int | None = None, fork: bool = True
    ) -> None:
        """`spare` is the number of runners that wait, by default that of the device. `fork` says
        whether runners may be forked; otherwise, and in containers, each is an interpreter of its
        own."""
        self._settings = settings
        self._spare = SPARES[settings.device] if spare is None else spare
        self._waiting: deque[RunnerProcess] = deque()
        forks = fork and sys.platform.startswith("linux") and settings.level != "container"
        forked = (settings.threads, settings.level, settings.device)
        self._zygote = Zygote.kept(*forked) if forks else None
        self._enders = ThreadPoolExecutor(ENDERS, thread_name_prefix="end-runner")
        # One thread that lives as long as the pool: runners end with the thread that started them.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="start-runner")
        self._starting: Future[None] | None = None

    def prepare(self) -> None:
        """Start missing runners, beside whatever comes next."""
        self.settle()
        self._starting = self._starter.submit(self._start_missing)

    @property
    def ends_surely(self) -> bool:
        """Whether nothing of a runner can outlive its first process, which the system ends as soon
        as it is killed: then nobody has to look whether it is gone."""
        return self._zygote is not None and self._settings.level == "namespaces"

    def import_compiler(self) -> None:
        """Take care that from now on every runner on a CPU that is forked has torch's compiler
        imported, which each would otherwise do for itself, in seconds."""
        if self._zygote is None or self._settings.device != "cpu" or self._settings.compiler:
            return
        self.settle()
        self._settings = replace(self._settings, compiler=True)
        while self._waiting:
            self.end(self._waiting.popleft())
        self.prepare()

    def _start_missing(self) -> None:
        while len(self._waiting) < self._spare:
            self._waiting.append(RunnerProcess(self._settings, self._zygote))

    def settle(self) -> None:
        """Wait until nothing is being started; raises what that raised."""
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
        """End a runner, beside whatever comes next (the system takes a while to give memory back).
        The result is whether nothing of it is left."""
        return self._enders.submit(runner.end)

    def close(self) -> None:
        """End all waiting runners, and wait for those that are being ended."""
        self._starter.shutdown()  # after what is being started, which is ended with the others
        while self._waiting:
            self.end(self._waiting.popleft())
        self._enders.shutdown()
