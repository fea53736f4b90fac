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
from dataclasses import dataclass, field, replace

import torch

from kb.errors import InvalidRequest
from kb.hardware.spec import SignatureSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.correctness.prepared import PreparedProblem
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.machine import DeviceLock
from optimizer.evaluation.isolation.runner_process import VISIBLE, RunnerPool, RunnerSettings
from optimizer.evaluation.journal import EvaluationJournal, NoJournal
from optimizer.evaluation.problem.check import check_reference
from optimizer.evaluation.problem.derived import DerivedCases, fitting
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.operators import dominant, observe
from optimizer.evaluation.problem.spec import Case, Problem, ProblemPolicy, shape_quantities
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.toolchains.base import EvaluationTarget, Toolchain
from optimizer.search.records import Proposal
from optimizer.search.synthesizers.base import CaseView, ProblemView
from retrieval.diagnose.own_rules import NO_RULES, OwnRules


@dataclass(frozen=True)
class LocalDevice:
    """One device of this machine.

    `kind` is `cpu` or `cuda`; `number` is the device's number as torch counts in this process;
    `visible` is its name in CUDA_VISIBLE_DEVICES, None where it is the only device.
    """

    kind: str
    number: int = 0
    visible: str | None = None

    @property
    def lock(self) -> DeviceLock:
        """The lock that every process of this machine takes before it measures on the device."""
        return DeviceLock(self.kind, number=self.number)

    def pool(self, settings: RunnerSettings) -> RunnerPool:
        """Runners that see this device only."""
        return RunnerPool(replace(settings, visible=self.visible))

    @contextmanager
    def current(self) -> Iterator[None]:
        """A context in which this is torch's current device of the calling thread."""
        if self.visible is None:
            yield
            return
        with torch.cuda.device(self.number):
            yield


def devices_here(kind: str) -> tuple[LocalDevice, ...]:
    """Every GPU that this process may use; all processors together are one device."""
    count = torch.cuda.device_count() if kind == "cuda" else 1
    return devices_of(kind, count, os.environ.get(VISIBLE))


def devices_of(kind: str, count: int, visible: str | None) -> tuple[LocalDevice, ...]:
    """`count` devices of a kind; `visible` is CUDA_VISIBLE_DEVICES of this process."""
    if count < 2:
        return (LocalDevice(kind),)
    names = (
        [name.strip() for name in visible.split(",")] if visible else list(map(str, range(count)))
    )
    return tuple(LocalDevice(kind, number, name) for number, name in enumerate(names[:count]))


def problem_view(problem: Problem, device: str, elsewhere: bool = False) -> ProblemView:
    """The problem as proposers see it: signatures and traits of the searched cases for this kind
    of device, nothing of their values. Held-out cases are not shown. `elsewhere`: this machine has
    no such device, so what shapes tell is told without running the reference on arrays.
    """
    cases = [case for case in problem.searched if case.fits(device)]
    view = ProblemView(
        name=problem.name,
        op=problem.op,
        summary=problem.summary,
        source=problem.source,
        cases=tuple(_case_view(problem, case, device, elsewhere) for case in cases),
        policy=_policy(problem.policy),
        hidden_cases=bool(problem.held_out),
    )
    # Who wrote a declaration knows what the problem is about.
    return view if problem.declared else replace(view, mostly=dominant(view.main.work, problem.op))


def _case_view(problem: Problem, case: Case, device: str, elsewhere: bool) -> CaseView:
    opened = OpenCase(problem, case, shapes_only=elsewhere, device="cpu" if elsewhere else device)
    dtype = case.dtype or next(
        (t.dtype for t in opened.signature.tensors if t.dtype.startswith(("float", "bfloat"))), None
    )
    observed = observe(opened, "cpu" if elsewhere else device)
    return CaseView(
        name=case.name,
        signature=opened.signature,
        traits=observed.traits,
        timed=case.timed,
        dtype=dtype,
        constants=opened.constants(),
        source=opened.source,
        kinds=observed.kinds,
        quantities=shape_quantities(opened.signature, observed),
        work=observed.work,
    )


def _policy(policy: ProblemPolicy) -> dict[str, str]:
    return {
        "precision": policy.precision,
        "library": policy.library,
        "weights": policy.weights,
        "outputs": ", ".join(policy.outputs) or "float",
    }


@dataclass(frozen=True)
class TargetToolchain:
    """Where candidates in one language are built and run."""

    target: EvaluationTarget
    toolchain: Toolchain


@dataclass
class LocalBench:
    """Evaluates candidates on the devices of this machine. It is a context manager: leaving it
    ends every process.

    `places` is by language; `torch` is always among them where the device is here, because the
    reference is written in it. `devices` are those that measure side by side, by default all of the
    target's kind on this machine.
    """

    problem: Problem
    places: Mapping[str, TargetToolchain]
    settings: EvaluationSettings
    journal: EvaluationJournal = field(default_factory=NoJournal)
    ceilings: Ceilings | None = None
    signatures: Sequence[SignatureSpec] = ()
    rules: OwnRules = NO_RULES
    devices: Sequence[LocalDevice] = ()
    _evaluators: dict[tuple[str, bool, LocalDevice], Evaluator] = field(default_factory=dict)
    _pools: dict[LocalDevice, RunnerPool] = field(default_factory=dict)
    _problems: dict[LocalDevice, PreparedProblem] = field(default_factory=dict)
    _derived: DerivedCases | None = None

    def __post_init__(self) -> None:
        self.devices = self.devices or devices_here(self.device)
        self._free: queue.SimpleQueue[LocalDevice] = queue.SimpleQueue()
        for device in self.devices:
            self._free.put(device)

    def __enter__(self) -> LocalBench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all evaluators and runners."""
        for evaluator in list(self._evaluators.values()):
            evaluator.close()
        self._evaluators.clear()
        for pool in list(self._pools.values()):
            pool.close()
        self._pools.clear()

    @property
    def at_once(self) -> int:
        """One evaluation for each device: two timings on the same device disturb each other."""
        return len(self.devices)

    @property
    def device(self) -> str:
        """The kind of device that candidates run on: `cpu` or `cuda`."""
        return next(iter(self.places.values())).target.device or "cpu"

    def reference(self) -> Evaluation:
        """Evaluate the reference on the first timed case; the verdict says what bounds it. Raises
        InvalidRequest where no kernel can be held against it.
        """
        case = self._timed()[0]
        opened = OpenCase(self.problem, case, device=self.device)
        check_reference(opened, self.device)
        source = opened.source
        bundle = Bundle({"reference.py": source}, "reference.py", "torch", "Model", {}, "external")
        return self._evaluate(bundle, [case], fresh=False)

    def evaluate(self, proposal: Proposal) -> Evaluation:
        """Evaluate a candidate on the searched cases that it claims.

        Raises InvalidRequest for a language that has no toolchain here.
        """
        return self._evaluate(proposal.bundle, self.cases(proposal), fresh=False)

    def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation:
        """Measure a candidate again on fresh values: on the searched timed cases, or on the
        held-out cases. Where the problem declares none it is checked on derived ones; a note says
        on which."""
        chosen = [case for case in self.cases(proposal) if case.timed]
        if not held_out:
            return self._evaluate(proposal.bundle, chosen, fresh=True)
        declared = [case for case in self.problem.held_out if case.fits(self.device)]
        if declared or not chosen:
            return self._evaluate(proposal.bundle, declared, fresh=True)
        if self._derived is None:
            self._derived = fitting(self.problem, self._timed()[0])
        derived = self._derived
        evaluation = self._evaluate(proposal.bundle, derived.cases, fresh=True)
        return replace(evaluation, notes=(*evaluation.notes, derived.note))

    def cases(self, proposal: Proposal) -> list[Case]:
        """The searched cases that the candidate claims and that are meant for this device."""
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
        device = self._free.get()
        try:
            with device.current():
                evaluator = self._evaluator(bundle.language, fresh, device)
                return evaluator.evaluate(bundle, place.toolchain, cases)
        finally:
            self._free.put(device)

    def _prepared(self, device: LocalDevice) -> PreparedProblem:
        """Goldens lie on the device, and serve every language there."""
        if device not in self._problems:
            self._problems[device] = PreparedProblem(self.problem, self.device, self.settings)
        return self._problems[device]

    def _evaluator(self, language: str, fresh: bool, device: LocalDevice) -> Evaluator:
        key = (language, fresh, device)
        if key not in self._evaluators:
            target = self.places[language].target
            if device not in self._pools and target.device is not None:
                level = level_for(self.settings.isolation, target.device)
                runners = RunnerSettings(target.device, self.settings.threads, level)
                self._pools[device] = device.pool(runners)
            self._evaluators[key] = Evaluator(
                self.problem,
                target,
                self.settings,
                NoJournal() if fresh else self.journal,
                pool=self._pools.get(device),
                ceilings=self.ceilings,
                signatures=self.signatures,
                rules=self.rules,
                prepared=None if fresh else self._prepared(device),
                lock=device.lock,
            )
        return self._evaluators[key]
