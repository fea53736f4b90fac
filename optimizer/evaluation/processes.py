"""The processes and the memory of one candidate's evaluation: what is loaded where, and that all of
it is gone afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import torch

from kb.errors import Unavailable
from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.isolation.runner_process import RunnerProcess
from optimizer.evaluation.loaded_kernel import LoadedKernel
from optimizer.evaluation.problem.spec import Case
from optimizer.evaluation.settings import GIB, EvaluationSettings
from optimizer.evaluation.shared_arrays import SharedStore
from optimizer.evaluation.timing.blocks import RUNNER_FAILED, BaselineFailed, Side
from optimizer.evaluation.toolchains.base import CACHE, Loader

ROOM = 4  # times the arrays of a case: the candidate's, the reference's, and what they make


class Host(Protocol):
    """What outlives the evaluation."""

    @property
    def settings(self) -> EvaluationSettings: ...

    @property
    def device(self) -> str: ...

    @property
    def stays(self) -> bool:
        """Whether a candidate is timed in the process that checked it."""
        ...

    @property
    def flush_bytes(self) -> int: ...

    @property
    def store(self) -> SharedStore: ...

    def case(self, case: Case) -> PreparedCase: ...

    def begin_baseline(self, case: Case, seed: int) -> Callable[[], Side]:
        """What makes the reference ready; it raises BaselineFailed."""
        ...

    def leave_baseline(self, case: Case, side: Side, failed: bool) -> Future[bool] | None:
        """The future of its process, where that is being ended."""
        ...

    def take_runner(self) -> RunnerProcess: ...

    def begin_spare(self) -> Callable[[], None]:
        """Start the runner of the next candidate; what waits until that is done."""
        ...

    def give_runner(self, runner: RunnerProcess) -> Future[bool]:
        """End it; the result is whether nothing of it is left."""
        ...


class Processes:
    """seed: of the values that are timed. workdir: of the candidate.

    called_ns: time of all calls.
    """

    def __init__(self, host: Host, seed: int, workdir: Path) -> None:
        self.stays = host.stays
        self.called_ns = 0
        self.confined: tuple[str, ...] = ()
        self.notes: list[str] = []
        self._host = host
        self._seed = seed
        self._workdir = workdir
        self._gone = True
        self._ending: list[Future[bool]] = []
        self._spent: list[LoadedKernel] = []
        self._loaded: tuple[Case, LoadedKernel] | None = None

    def check_room(self, cases: Sequence[Case]) -> None:
        """Raises Unavailable where others have filled the device's memory: a candidate that finds
        none is not to blame."""
        if self._host.device != "cuda":
            return
        signatures = (self._host.case(case).open.signature for case in cases)
        wanted = ROOM * max(sum(t.bytes for t in one.tensors) for one in signatures)
        if torch.cuda.mem_get_info()[0] < wanted:
            torch.cuda.empty_cache()  # of this process
        free, _ = torch.cuda.mem_get_info()
        if free < wanted:
            raise Unavailable(
                f"{free / GIB:.1f} GiB of the device's memory are free, and {wanted / GIB:.1f} GiB"
                " are needed to measure here",
                hint="End what else uses the device, and evaluate again.",
            )

    @contextmanager
    def runner(self) -> Iterator[RunnerProcess]:
        """A fresh one; it is being ended when the next thing begins."""
        runner = self._host.take_runner()
        try:
            yield runner
        finally:
            self._ending.append(self._host.give_runner(runner))

    def settle(self) -> bool:
        """Wait for the runners that were left to end; whether nothing of any is there."""
        gone = all([ending.result() for ending in self._ending])
        self._ending.clear()
        self._gone = self._gone and gone
        if self._loaded is not None:
            self._spent.append(self._loaded[1])
            self._loaded = None
        while self._spent:
            self._spent.pop().close(reusable=gone)
        return self._gone

    # -- the candidate

    def load(self, runner: RunnerProcess, loader: Loader, case: Case) -> LoadedKernel:
        """With the values of the seed. Raises SubjectFailed, or what `RunnerProcess.ask` raises."""
        host, settings = self._host, self._host.settings
        prepared = host.case(case)
        kernel = LoadedKernel(
            runner, prepared.open, prepared.sample(self._seed), host.store, settings.without
        )
        with ExitStack() as undo:
            undo.callback(self._spent.append, kernel)
            told = kernel.load(
                loader,
                limits=settings.limits(host.device),
                flush_bytes=host.flush_bytes,
                seconds=settings.load_seconds,
                cache=self._cache() if loader.kind == "python" else None,
            )
            undo.pop_all()
        self.confined = tuple(told["confined"])
        self.notes += told["notes"]
        return kernel

    def _cache(self) -> Path:
        """What is compiled when it is called is compiled once: the process that is timed finds what
        the one that was checked compiled. No other evaluation ever sees it."""
        folder = self._workdir / CACHE
        folder.mkdir(exist_ok=True)
        return folder

    def leave(self, case: Case, kernel: LoadedKernel) -> None:
        """Done with it for now; in a process that stays it stays loaded."""
        self._count(kernel)
        if self.stays:
            if self._loaded is not None:
                self._spent.append(self._loaded[1])
            self._loaded = (case, kernel)
        else:
            self._spent.append(kernel)

    def _ready(self, runner: RunnerProcess, loader: Loader, case: Case) -> LoadedKernel:
        """Loaded, now or before, with the values of the seed."""
        runner.wake()  # it is stopped where it was timed before
        if self._loaded is None or self._loaded[0] is not case:
            return self.load(runner, loader, case)
        (_, kernel), self._loaded = self._loaded, None
        try:
            sample = self._host.case(case).sample(self._seed)
            kernel.renew(sample, self._host.settings.call_seconds)
        except RUNNER_FAILED:
            self.leave(case, kernel)
            raise
        return kernel

    # -- the candidate and the reference

    @contextmanager
    def both(
        self, runner: RunnerProcess, loader: Loader, case: Case
    ) -> Iterator[tuple[Side, LoadedKernel]]:
        """Ready to be timed against each other. Raises BaselineFailed, or what the candidate's
        process raises."""
        kernel, coming = self._both_ready(runner, loader, case)
        lost = False
        try:
            if not self.stays:
                self.settle()  # what it was checked in
            yield coming.result(), kernel
        except BaselineFailed:
            lost = True
            raise
        finally:
            self.leave(case, kernel)
            self._leave_baseline(case, coming, lost)

    def _both_ready(
        self, runner: RunnerProcess, loader: Loader, case: Case
    ) -> tuple[LoadedKernel, Future[Side]]:
        """The reference is loaded beside the candidate; nothing is timed yet."""
        self._host.case(case).sample(self._seed)  # made once, before two threads want it
        with ThreadPoolExecutor(1) as beside, ExitStack() as undo:
            coming = beside.submit(self._host.begin_baseline(case, self._seed))
            undo.callback(self._leave_baseline, case, coming)
            kernel = self._ready(runner, loader, case)
            undo.pop_all()
        return kernel, coming

    def _leave_baseline(self, case: Case, coming: Future[Side], lost: bool = False) -> None:
        if coming.exception() is not None:
            return
        side = coming.result()
        self._count(side.kernel)
        ending = self._host.leave_baseline(case, side, lost)
        if ending is not None:
            self._ending.append(ending)

    def _count(self, kernel: LoadedKernel) -> None:
        """Add the time of its calls so far."""
        self.called_ns += kernel.called_ns
        kernel.called_ns = 0
