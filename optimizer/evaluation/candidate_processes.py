"""The processes and the memory of one candidate's evaluation, and the reference's: where the
candidate is loaded, and the release of all resources.

`EvaluationContext` holds everything that outlives one candidate. This module never calls the
evaluator.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from kb.errors import Unavailable
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.correctness.prepared import PreparedCase, PreparedProblem
from optimizer.evaluation.isolation.machine import DeviceLock
from optimizer.evaluation.isolation.runner_process import Device, RunnerPool, RunnerProcess
from optimizer.evaluation.journal import EvaluationJournal
from optimizer.evaluation.loaded_kernel import LoadedKernel
from optimizer.evaluation.problem.spec import Case
from optimizer.evaluation.settings import GIB, EvaluationSettings
from optimizer.evaluation.shared_arrays import SharedStore
from optimizer.evaluation.timing.measure import RUNNER_FAILED, BaselineFailed, TimedSide
from optimizer.evaluation.toolchains.base import CACHE, EvaluationTarget, Loader

READ_INSIDE = (
    "its own process read the outputs of timed calls: this system lets no process read another's"
    " memory"
)
ROOM = 4  # times the arrays of a case: the candidate's, the reference's, and temporary ones
LARGE = 2 * GIB  # of arrays, above which those of the previous candidate are freed first
MAX_USES = 50  # of a reference's process, which would reach its limit of processor time otherwise


@dataclass(frozen=True)
class EvaluationContext:
    """Everything that outlives the evaluation of one candidate, on one device.

    `reuses`: processes and memory serve several candidates, so a candidate is timed in the process
    that checked it. `flush_bytes` is the size of the buffer that is read before each timed call on
    a GPU. `ceilings` are those of the device, None if they were not measured.
    """

    target: EvaluationTarget
    device: Device
    settings: EvaluationSettings
    problem: PreparedProblem
    pool: RunnerPool
    baselines: Baselines
    store: SharedStore
    lock: DeviceLock
    journal: EvaluationJournal
    flush_bytes: int
    reuses: bool
    departures: Departures
    ceilings: Ceilings | None = None

    def alone(self) -> None:
        """Wait until no process that was measured before is left on the device. The lock is held.
        Raises Unavailable if one cannot be ended."""
        self.departures.settle()
        self.lock.alone()


class Departures:
    """Killed processes of earlier candidates that the system is still ending, and the memory that
    they map. A verdict need not wait for them, but nothing is timed meanwhile. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects _groups
        self._groups: list[_DepartingProcesses] = []

    def add(self, endings: Sequence[Future[bool]], kernels: Sequence[LoadedKernel]) -> None:
        """Add processes that are ending, and kernels whose memory they map, which is freed once all
        of them are gone."""
        with self._lock:
            self._groups.append(_DepartingProcesses(endings, kernels))

    def settle(self) -> None:
        """Wait until all are gone. Raises Unavailable if a process could not be ended."""
        with self._lock:
            groups, self._groups = self._groups, []
        if not all([group.gone() for group in groups]):
            raise Unavailable(
                "a process of an earlier candidate could not be ended and may use the device",
                hint="End it, or restart this machine, and evaluate again.",
            )


class _DepartingProcesses:
    """Ending processes of one candidate."""

    def __init__(self, endings: Sequence[Future[bool]], kernels: Sequence[LoadedKernel]) -> None:
        self._endings, self._kernels = tuple(endings), list(kernels)
        self._lock = threading.Lock()  # memory is freed once
        for ending in self._endings:
            ending.add_done_callback(self._ended)
        self._ended(None)

    def _ended(self, _: object) -> None:
        if all(ending.done() for ending in self._endings):
            self.gone()

    def gone(self) -> bool:
        """Wait until they have ended and their memory is freed; True if all are gone."""
        gone = all([ending.result() for ending in self._endings])
        with self._lock:
            while self._kernels:
                self._kernels.pop().close(reusable=gone)
        return gone


class CandidateProcesses:
    """The runners of one candidate. `called_ns` is the time of all its timed calls and the
    reference's; `confined` names the limits that its runner applied."""

    def __init__(self, context: EvaluationContext, *, seed: int, workdir: Path) -> None:
        """`seed` is that of the timed values, `workdir` the candidate's folder."""
        self.called_ns = 0
        self.confined: tuple[str, ...] = ()
        self.notes: list[str] = []
        self._context = context
        self._seed = seed
        self._workdir = workdir
        self._gone = True
        self._ending: list[Future[bool]] = []
        self._spent: list[LoadedKernel] = []
        self._loaded: tuple[Case, LoadedKernel] | None = None
        self._begun: tuple[Case, Future[TimedSide]] | None = None  # a reference that is loading

    def check_room(self, cases: Sequence[Case]) -> None:
        """Raises Unavailable if others have filled the device's memory, for which a candidate is
        not to blame."""
        if self._context.device != "cuda":
            return
        signatures = (self._context.problem.case(case).signature for case in cases)
        sizes = (sum(t.bytes for t in signature.tensors) for signature in signatures)
        wanted = ROOM * max(sizes, default=0)
        if wanted > ROOM * LARGE or torch.cuda.mem_get_info()[0] < wanted:
            self._context.alone()
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
        """A fresh runner, ended in the background when the context is left."""
        runner = self._context.pool.take()
        try:
            yield runner
        finally:
            self._depart(self._context.pool.end(runner))

    def _depart(self, ending: Future[bool]) -> None:
        """Delay timing until this process has ended."""
        self._ending.append(ending)
        if self._context.reuses:  # the device's lock is held now, but maybe not until then
            mark = self._context.lock.departing()
            ending.add_done_callback(lambda _: mark.close())

    def leave_ending(self) -> bool:
        """Finish with all runners; True if all are gone or ending. Does not wait for
        runners that the system ends in any case."""
        self._taken_begun()
        if not (self._context.reuses and self._context.pool.ends_surely):
            return self.settle()
        self._spend_loaded()
        self._context.departures.add(self._ending, self._spent)
        self._ending, self._spent = [], []
        return self._gone

    def settle(self) -> bool:
        """Wait for the runners that are ending; True if all are gone."""
        gone = all([ending.result() for ending in self._ending])
        self._ending.clear()
        self._gone = self._gone and gone
        self._spend_loaded()
        while self._spent:
            self._spent.pop().close(reusable=gone)
        return self._gone

    def _spend_loaded(self) -> None:
        if self._loaded is not None:
            self._spent.append(self._loaded[1])
            self._loaded = None

    # -- the candidate

    def load(
        self, runner: RunnerProcess, loader: Loader, case: Case, timed: bool = False
    ) -> LoadedKernel:
        """The candidate, loaded with the values of the seed; `timed`: it will only be timed. Raises
        CandidateFailed, or as `RunnerProcess.ask` does."""
        context, settings = self._context, self._context.settings
        prepared = context.problem.case(case)
        kernel = LoadedKernel(
            runner,
            prepared,
            prepared.values(self._seed),
            context.store,
            settings.defences,
            # On a GPU inputs are copied to the device when a kernel is loaded.
            fresh=timed and settings.freshens and context.device == "cpu",
        )
        with ExitStack() as undo:
            undo.callback(self._spent.append, kernel)
            reply = kernel.load(
                loader,
                limits=settings.limits(context.device),
                flush_bytes=context.flush_bytes,
                seconds=settings.load_seconds,
                cache=self._cache(runner) if loader.kind == "python" else None,
            )
            undo.pop_all()
        self.confined = tuple(reply["confined"])
        self.notes += reply["notes"]
        if context.device == "cpu" and not runner.readable:
            self.notes.append(READ_INSIDE)
        return kernel

    def _cache(self, runner: RunnerProcess) -> Path:
        """The folder for results of the candidate's compilers, so that the timed process compiles
        nothing that the checked one did. No other evaluation ever sees it. Two containers have no
        writable folder in common."""
        contained = runner.settings.level == "container"
        folder = (runner.scratch if contained else self._workdir) / CACHE
        folder.mkdir(exist_ok=True)
        return folder

    def leave(self, case: Case, kernel: LoadedKernel) -> None:
        """Finish with the kernel for now; in a process that is reused it stays loaded."""
        self._count(kernel)
        if self._context.reuses:
            self._spend_loaded()
            self._loaded = (case, kernel)
        else:
            self._spent.append(kernel)

    def _ready(self, runner: RunnerProcess, loader: Loader, case: Case) -> LoadedKernel:
        """The candidate with the values of the seed, loaded now or before."""
        runner.wake()  # it is stopped after it was timed
        if self._loaded is None or self._loaded[0] is not case:
            return self.load(runner, loader, case, timed=True)
        (_, kernel), self._loaded = self._loaded, None
        try:
            values = self._context.problem.case(case).values(self._seed)
            settings = self._context.settings
            kernel.renew(values, settings.call_seconds, settings.freshens)
        except RUNNER_FAILED:
            self.leave(case, kernel)
            raise
        return kernel

    # -- the candidate and the reference

    @contextmanager
    def both(
        self, runner: RunnerProcess, loader: Loader, case: Case
    ) -> Iterator[tuple[TimedSide, LoadedKernel]]:
        """The reference's side and the candidate, ready to be timed. Raises BaselineFailed, or the
        errors of the candidate's process."""
        kernel, coming = self._both_ready(runner, loader, case)
        lost = False
        try:
            if not self._context.reuses:
                self.settle()  # the process that checked the candidate
            yield coming.result(), kernel
        except BaselineFailed:
            lost = True
            raise
        finally:
            self.leave(case, kernel)
            self._leave_baseline(case, coming, lost)

    def _both_ready(
        self, runner: RunnerProcess, loader: Loader, case: Case
    ) -> tuple[LoadedKernel, Future[TimedSide]]:
        """Load both at the same time; nothing is timed yet."""
        prepared = self._context.problem.case(case)
        prepared.values(self._seed)  # drawn once, before two threads need them
        with ExitStack() as undo:
            coming = self._taken_begun(case)
            if coming is None:
                coming = _submitted(self._context.baselines.begin(prepared, self._seed))
            undo.callback(self._leave_baseline, case, coming)
            kernel = self._ready(runner, loader, case)
            undo.pop_all()
        return kernel, coming

    def begin_baseline(self, case: Case) -> None:
        """Load the reference, if no process has it, while the candidate is checked."""
        baselines, prepared = self._context.baselines, self._context.problem.case(case)
        if baselines.holds(case.name):
            return
        prepared.values(self._seed)  # not in two threads at once
        _ = prepared.signature
        self._begun = case, _submitted(baselines.begin(prepared, self._seed))

    def _taken_begun(self, case: Case | None = None) -> Future[TimedSide] | None:
        """The reference of this case that is loading, if any; that of another case is left."""
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] is case:
            return begun[1]
        if begun is not None:
            self._leave_baseline(*begun)
        return None

    def _leave_baseline(self, case: Case, coming: Future[TimedSide], lost: bool = False) -> None:
        if coming.exception() is not None:
            return
        side = coming.result()
        self._count(side.kernel)
        ending = self._context.baselines.leave(case.name, side, lost)
        if ending is not None:
            self._depart(ending)

    def _count(self, kernel: LoadedKernel) -> None:
        """Add the time of its calls so far."""
        self.called_ns += kernel.called_ns
        kernel.called_ns = 0


def _submitted(work: Callable[[], TimedSide]) -> Future[TimedSide]:
    """The work in another thread, which ends with it."""
    background = ThreadPoolExecutor(1)
    coming = background.submit(work)
    background.shutdown(wait=False)
    return coming


@dataclass
class WaitingBaseline:
    """A stopped side that waits for the next candidate. `uses` counts the candidates that it was
    timed against."""

    side: TimedSide
    uses: int = 1


class Baselines:
    """References in runners.

    On the CPU each runs in a process that has done nothing else, because earlier allocations decide
    up to a tenth of the time there. On a GPU a process stays for further candidates (`reuses`),
    because copying its large arrays to the device takes longer than using them.
    """

    def __init__(
        self,
        pool: RunnerPool,
        settings: EvaluationSettings,
        store: SharedStore,
        *,
        flush_bytes: int,
        folder: Path,
        reuses: bool,
    ) -> None:
        """`folder` is for the reference's source; `flush_bytes` as in `EvaluationContext`."""
        self._pool = pool
        self._settings = settings
        self._flush_bytes = flush_bytes
        self._folder = folder
        self._store = store
        self._reuses = reuses
        self._waiting: dict[str, WaitingBaseline] = {}

    def holds(self, case: str) -> bool:
        """Whether a process waits with the reference of this case."""
        return case in self._waiting

    def begin(self, prepared: PreparedCase, seed: int) -> Callable[[], TimedSide]:
        """A function that makes the reference's side ready with the values of the seed. It may be
        called in another thread, and raises BaselineFailed."""
        waiting = self._waiting.get(prepared.name)
        if waiting is not None:
            waiting.uses += 1
            return lambda: self._renewed(waiting.side, prepared, seed)
        runner = self._pool.take()
        return lambda: self._loaded(runner, prepared, seed)

    def _renewed(self, side: TimedSide, prepared: PreparedCase, seed: int) -> TimedSide:
        try:
            side.runner.wake()
            settings = self._settings
            side.kernel.renew(prepared.values(seed), settings.call_seconds, settings.freshens)
        except RUNNER_FAILED as failed:
            self._end(prepared.name, side)
            raise BaselineFailed(str(failed)) from failed
        return side

    def _loaded(self, runner: RunnerProcess, prepared: PreparedCase, seed: int) -> TimedSide:
        name = hashlib.sha256(prepared.name.encode()).hexdigest()[:8]
        path = self._folder / f"reference_{name}.py"
        path.write_text(prepared.source, encoding="utf-8")
        kernel = LoadedKernel(
            runner,
            prepared,
            prepared.values(seed),
            self._store,
            self._settings.defences,
            mirrored=False,
            fresh=self._settings.freshens and runner.settings.device == "cpu",
        )
        side = TimedSide("baseline", runner, kernel, trusted=True)
        try:
            kernel.load(
                Loader("python", path, "Model"),
                limits=self._settings.limits(runner.settings.device),
                flush_bytes=self._flush_bytes,
                seconds=self._settings.load_seconds,
            )
        except RUNNER_FAILED as failed:
            self._end(prepared.name, side)
            raise BaselineFailed(str(failed)) from failed
        if self._reuses:
            self._waiting[prepared.name] = WaitingBaseline(side)
        return side

    def leave(self, case: str, side: TimedSide, failed: bool = False) -> Future[bool] | None:
        """Return the side after one candidate. Returns the future of its process if that is being
        ended, else None."""
        waiting = self._waiting.get(case)
        if waiting is None or failed or waiting.uses >= MAX_USES:
            return self._end(case, side)
        return None

    def _end(self, case: str, side: TimedSide) -> Future[bool]:
        self._waiting.pop(case, None)
        ending = self._pool.end(side.runner)
        ending.add_done_callback(lambda ended: side.kernel.close(reusable=ended.result()))
        return ending

    def close(self) -> None:
        """End the waiting processes."""
        for case, waiting in list(self._waiting.items()):
            self._end(case, waiting.side).result()
