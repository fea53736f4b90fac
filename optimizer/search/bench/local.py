"""Measures on this machine: one evaluator for each language and device, and runners of each device
shared by all languages. Devices of one kind measure side by side.

In this process a device is torch's current device of the thread that uses it; in a runner it is the
only device there is.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from kb.errors import InvalidRequest
from kb.hardware.spec import SignatureSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.device_lock import DeviceLock
from optimizer.evaluation.isolation.launch import Zygote
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.pool import RunnerPool
from optimizer.evaluation.isolation.runner_process import RunnerProcess, RunnerSettings
from optimizer.evaluation.journal import Journal, NoJournal
from optimizer.evaluation.prepared_problem import PreparedProblem
from optimizer.evaluation.problem.spec import Case, Policy, Problem
from optimizer.evaluation.problem.tensors import open_case
from optimizer.evaluation.problem.traits import traits_of
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.toolchains.base import Target, Toolchain
from optimizer.search.records import Proposal
from optimizer.search.synthesizers.base import CaseView, ProblemView

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Seat:
    """number: of the device, as torch counts here. visible: its name in CUDA_VISIBLE_DEVICES, None
    where it is the only one."""

    device: str
    number: int = 0
    visible: str | None = None

    @property
    def lock(self) -> DeviceLock:
        return DeviceLock(self.device, number=self.number)

    def pool(self, settings: RunnerSettings) -> RunnerPool:
        return RunnerPool(settings) if self.visible is None else SeatPool(settings, self.visible)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """What this thread puts on the device lies on this one."""
        if self.visible is None:
            yield
            return
        with torch.cuda.device(self.number):
            yield


def seats_here(device: str) -> tuple[Seat, ...]:
    """Every GPU that this process may use; the processors are one device."""
    count = torch.cuda.device_count() if device == "cuda" else 1
    return seats_of(device, count, os.environ.get(VISIBLE))


def seats_of(device: str, count: int, visible: str | None) -> tuple[Seat, ...]:
    """visible: CUDA_VISIBLE_DEVICES of this process."""
    if count < 2:
        return (Seat(device),)
    names = (
        [name.strip() for name in visible.split(",")] if visible else list(map(str, range(count)))
    )
    return tuple(Seat(device, number, name) for number, name in enumerate(names[:count]))


class SeatRunner(RunnerProcess):
    """A runner on one of several devices."""

    def __init__(self, settings: RunnerSettings, zygote: Zygote | None, visible: str) -> None:
        self._visible = visible
        super().__init__(settings, zygote)

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), VISIBLE: self._visible}


class SeatPool(RunnerPool):
    """Runners on one of several devices."""

    def __init__(
        self, settings: RunnerSettings, visible: str, spare: int | None = None, fork: bool = True
    ) -> None:
        self._visible = visible
        super().__init__(settings, spare, fork)

    def _start_missing(self) -> None:
        while len(self._waiting) < self._spare:
            self._waiting.append(SeatRunner(self._settings, self._zygote, self._visible))


def problem_view(problem: Problem, device: str) -> ProblemView:
    """Of the searched cases for this kind of device; the held-out ones stay unseen."""
    cases = [case for case in problem.searched if case.fits(device)]
    return ProblemView(
        name=problem.name,
        op=problem.op,
        summary=problem.summary,
        source=problem.source,
        cases=tuple(_case_view(problem, case, device) for case in cases),
        policy=_policy(problem.policy),
    )


def _case_view(problem: Problem, case: Case, device: str) -> CaseView:
    opened = open_case(problem, case)
    dtype = case.dtype or next(
        (t.dtype for t in opened.signature.tensors if t.dtype.startswith(("float", "bfloat"))), None
    )
    return CaseView(case.name, opened.signature, traits_of(opened, device), case.timed, dtype)


def _policy(policy: Policy) -> dict[str, str]:
    return {
        "precision": policy.precision,
        "library": policy.library,
        "weights": policy.weights,
        "outputs": ", ".join(policy.outputs) or "float",
    }


@dataclass(frozen=True)
class Place:
    """Where candidates in one language are built and run."""

    target: Target
    toolchain: Toolchain


@dataclass
class LocalBench:
    """A context: leaving it ends every process. places: by language; `torch` is always one of them
    where the device is here, because the reference is written in it. seats: devices that measure
    side by side, by default all of the target's that are here."""

    problem: Problem
    places: Mapping[str, Place]
    settings: EvaluationSettings
    journal: Journal = field(default_factory=NoJournal)
    ceilings: Ceilings | None = None
    signatures: Sequence[SignatureSpec] = ()
    seats: Sequence[Seat] = ()
    _evaluators: dict[tuple[str, bool, Seat], Evaluator] = field(default_factory=dict)
    _pools: dict[Seat, RunnerPool] = field(default_factory=dict)
    _problems: dict[Seat, PreparedProblem] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seats = self.seats or seats_here(self.device)
        self._free: queue.SimpleQueue[Seat] = queue.SimpleQueue()
        for seat in self.seats:
            self._free.put(seat)

    def __enter__(self) -> LocalBench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for evaluator in list(self._evaluators.values()):
            evaluator.close()
        self._evaluators.clear()
        for pool in list(self._pools.values()):
            pool.close()
        self._pools.clear()

    @property
    def at_once(self) -> int:
        """One for each device: on one, what is timed side by side disturbs each other."""
        return len(self.seats)

    @property
    def device(self) -> str:
        return next(iter(self.places.values())).target.device or "cpu"

    def reference(self) -> Evaluation:
        """On its first timed case; its verdict says what bounds it."""
        case = self._timed()[0]
        source = open_case(self.problem, case).source
        bundle = Bundle({"reference.py": source}, "reference.py", "torch", "Model", {}, "external")
        return self._evaluate(bundle, [case], fresh=False)

    def evaluate(self, proposal: Proposal) -> Evaluation:
        return self._evaluate(proposal.bundle, self.cases(proposal), fresh=False)

    def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation:
        """Measured anew, with values nobody has seen: on the searched timed cases, or on those that
        were held out."""
        chosen = [case for case in self.cases(proposal) if case.timed]
        if held_out:
            chosen = [case for case in self.problem.held_out if case.fits(self.device)]
        return self._evaluate(proposal.bundle, chosen, fresh=True)

    def cases(self, proposal: Proposal) -> list[Case]:
        """The searched cases that it claims and that are meant for this device."""
        claimed = set(proposal.cases)
        return [
            case
            for case in self.problem.searched
            if case.fits(self.device) and (not claimed or case.name in claimed)
        ]

    def _timed(self) -> list[Case]:
        timed = [c for c in self.problem.searched if c.timed and c.fits(self.device)]
        if not timed:
            raise InvalidRequest(
                f"{self.problem.name} has no timed case for {self.device}",
                hint="Give its problem.toml a case without `timed = false` for this device.",
            )
        return timed

    def _evaluate(self, bundle: Bundle, cases: Sequence[Case], fresh: bool) -> Evaluation:
        place = self.places.get(bundle.language)
        if place is None:
            known = ", ".join(self.places)
            raise InvalidRequest(
                f"nothing here builds {bundle.language!r}", hint=f"Propose one of {known}."
            )
        seat = self._free.get()
        try:
            with seat.taken():
                evaluator = self._evaluator(bundle.language, fresh, seat)
                return evaluator.evaluate(bundle, place.toolchain, cases)
        finally:
            self._free.put(seat)

    def _prepared(self, seat: Seat) -> PreparedProblem:
        """Goldens lie on the seat's device, and serve every language there."""
        if seat not in self._problems:
            self._problems[seat] = PreparedProblem(self.problem, self.device, self.settings)
        return self._problems[seat]

    def _evaluator(self, language: str, fresh: bool, seat: Seat) -> Evaluator:
        key = (language, fresh, seat)
        if key not in self._evaluators:
            target = self.places[language].target
            if seat not in self._pools and target.device is not None:
                level = level_for(self.settings.isolation, target.device)
                runners = RunnerSettings(target.device, self.settings.threads, level)
                self._pools[seat] = seat.pool(runners)
            self._evaluators[key] = Evaluator(
                self.problem,
                target,
                self.settings,
                NoJournal() if fresh else self.journal,
                pool=self._pools.get(seat),
                ceilings=self.ceilings,
                signatures=self.signatures,
                prepared=None if fresh else self._prepared(seat),
            )
            self._evaluators[key].lock = seat.lock
        return self._evaluators[key]
