"""The processes and the memory of one candidate's evaluation: what is loaded where, and that all of
it is gone afterwards.

`EvaluationContext` is what the evaluator hands down: everything that outlives one candidate. This
module uses its parts and never calls the evaluator.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from kb.errors import Unavailable
from optimizer.evaluation.baselines import Baselines
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.correctness.prepared import PreparedProblem
from optimizer.evaluation.isolation.device_lock import DeviceLock
from optimizer.evaluation.isolation.pool import RunnerPool
from optimizer.evaluation.isolation.runner_process import Device, RunnerProcess
from optimizer.evaluation.journal import Journal
from optimizer.evaluation.loaded_kernel import LoadedKernel
from optimizer.evaluation.problem.spec import Case
from optimizer.evaluation.settings import GIB, EvaluationSettings
from optimizer.evaluation.shared_arrays import SharedStore
from optimizer.evaluation.timing.blocks import RUNNER_FAILED, BaselineFailed, Side
from optimizer.evaluation.toolchains.base import CACHE, Loader, Target

READ_INSIDE = (
    "its own process read the outputs of timed calls: this system lets no process read another's"
    " memory"
)
ROOM = 4  # times the arrays of a case: the candidate's, the reference's, and what they make
LARGE = 2 * GIB  # of arrays, above which those of the candidate before are given back first


class Departures:
    """What earlier candidates left: processes that were killed and that the system is still taking
    apart, and the memory that they map. A verdict need not wait for that, but nothing is timed
    beside it. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects _groups
        self._groups: list[_Group] = []

    def add(self, endings: Sequence[Future[bool]], kernels: Sequence[LoadedKernel]) -> None:
        """Processes that are being ended, and kernels whose memory they map, which is given back
        once all of them are gone."""
        with self._lock:
            self._groups.append(_Group(endings, kernels))

    def settle(self) -> None:
        """Wait until all are gone. Raises Unavailable where a process could not be ended."""
        with self._lock:
            groups, self._groups = self._groups, []
        if not all([group.gone() for group in groups]):
            raise Unavailable(
                "a process of an earlier candidate could not be ended and may use the device",
                hint="End it, or restart this machine, and evaluate again.",
            )


class _Group:
    """Processes of one candidate."""

    def __init__(self, endings: Sequence[Future[bool]], kernels: Sequence[LoadedKernel]) -> None:
        self._endings, self._kernels = tuple(endings), list(kernels)
        self._lock = threading.Lock()  # so that memory is given back once
        for ending in self._endings:
            ending.add_done_callback(self._ended)
        self._ended(None)

    def _ended(self, _: object) -> None:
        if all(ending.done() for ending in self._endings):
            self.gone()

    def gone(self) -> bool:
        """Wait until they are, and their memory is given back; True when nothing of any of them is
        left."""
        gone = all([ending.result() for ending in self._endings])
        with self._lock:
            while self._kernels:
                self._kernels.pop().close(reusable=gone)
        return gone


@dataclass(frozen=True)
class EvaluationContext:
    """What outlives the evaluation of one candidate, on one device.

    `stays` says whether processes and memory serve for more than one candidate, so that a candidate
    is timed in the process that checked it. `flush_bytes` is the size of the buffer that is
    read before each timed call on a GPU. `ceilings` are those of the device, None where nobody
    measured them.
    """

    target: Target
    device: Device
    settings: EvaluationSettings
    problem: PreparedProblem
    pool: RunnerPool
    baselines: Baselines
    store: SharedStore
    lock: DeviceLock
    journal: Journal
    flush_bytes: int
    stays: bool
    departures: Departures
    ceilings: Ceilings | None = None

    def alone(self) -> None:
        """Wait until nothing that was measured on the device before is left on it, by whatever
        process. The lock is held. Raises Unavailable where that cannot be had."""
        self.departures.settle()
        self.lock.alone()


class CandidateProcesses:
    """The runners of one candidate. `called_ns` is the time of all its timed calls and the
    reference's; `confined` names the limits that its runner took on."""

    def __init__(self, context: EvaluationContext, *, seed: int, workdir: Path) -> None:
        """`seed` is that of the values that are timed, `workdir` the candidate's folder."""
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

    def check_room(self, cases: Sequence[Case]) -> None:
        """Raises Unavailable where others have filled the device's memory: a candidate that finds
        none is not to blame."""
        if self._context.device != "cuda":
            return
        signatures = (self._context.problem.case(case).open.signature for case in cases)
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
        """A fresh runner. When the context is left it is being ended, beside whatever follows."""
        runner = self._context.pool.take()
        try:
            yield runner
        finally:
            self._depart(self._context.pool.end(runner))

    def _depart(self, ending: Future[bool]) -> None:
        """Wait for it before anything else is timed."""
        self._ending.append(ending)
        if self._context.stays:  # the device's lock is held now, and not until it is gone
            mark = self._context.lock.departing()
            ending.add_done_callback(lambda _: mark.close())

    def leave_ending(self) -> bool:
        """Done with all runners. Where the system ends them in any case, they are left to that;
        elsewhere this waits for them. True when nothing of them is left, or will be."""
        if not (self._context.stays and self._context.pool.ends_surely):
            return self.settle()
        if self._loaded is not None:
            self._spent.append(self._loaded[1])
            self._loaded = None
        self._context.departures.add(self._ending, self._spent)
        self._ending, self._spent = [], []
        return self._gone

    def settle(self) -> bool:
        """Wait for the runners that are being ended; True when nothing of any of them is left."""
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

    def load(
        self, runner: RunnerProcess, loader: Loader, case: Case, timed: bool = False
    ) -> LoadedKernel:
        """The candidate, loaded with the values of the seed; `timed` says that it will only be
        timed. Raises KernelFailed, or what `RunnerProcess.ask` raises."""
        context, settings = self._context, self._context.settings
        prepared = context.problem.case(case)
        kernel = LoadedKernel(
            runner,
            prepared.open,
            prepared.sample(self._seed),
            context.store,
            settings.without,
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
        """Where the candidate's compilers keep their results, so that what the checked process
        compiled is not compiled again in the timed one. No other evaluation ever sees it. Two
        containers have no folder in common that they may write to."""
        contained = runner.settings.level == "container"
        folder = (runner.scratch if contained else self._workdir) / CACHE
        folder.mkdir(exist_ok=True)
        return folder

    def leave(self, case: Case, kernel: LoadedKernel) -> None:
        """Done with the kernel for now; in a process that stays it stays loaded."""
        self._count(kernel)
        if self._context.stays:
            if self._loaded is not None:
                self._spent.append(self._loaded[1])
            self._loaded = (case, kernel)
        else:
            self._spent.append(kernel)

    def _ready(self, runner: RunnerProcess, loader: Loader, case: Case) -> LoadedKernel:
        """The candidate with the values of the seed, loaded now or before."""
        runner.wake()  # it is stopped where it was timed before
        if self._loaded is None or self._loaded[0] is not case:
            return self.load(runner, loader, case, timed=True)
        (_, kernel), self._loaded = self._loaded, None
        try:
            sample = self._context.problem.case(case).sample(self._seed)
            settings = self._context.settings
            kernel.renew(sample, settings.call_seconds, settings.freshens)
        except RUNNER_FAILED:
            self.leave(case, kernel)
            raise
        return kernel

    # -- the candidate and the reference

    @contextmanager
    def both(
        self, runner: RunnerProcess, loader: Loader, case: Case
    ) -> Iterator[tuple[Side, LoadedKernel]]:
        """The reference's side and the candidate, ready to be timed against each other. Raises
        BaselineFailed, or what the candidate's process raises."""
        kernel, coming = self._both_ready(runner, loader, case)
        lost = False
        try:
            if not self._context.stays:
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
    ) -> tuple[LoadedKernel, Future[Side]]:
        """The reference is loaded beside the candidate; nothing is timed yet."""
        prepared = self._context.problem.case(case)
        prepared.sample(self._seed)  # made once, before two threads want it
        with ThreadPoolExecutor(1) as beside, ExitStack() as undo:
            coming = beside.submit(self._context.baselines.begin(prepared, self._seed))
            undo.callback(self._leave_baseline, case, coming)
            kernel = self._ready(runner, loader, case)
            undo.pop_all()
        return kernel, coming

    def _leave_baseline(self, case: Case, coming: Future[Side], lost: bool = False) -> None:
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
