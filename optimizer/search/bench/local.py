"""The bench of this machine, the parts that all benches share, and the problem as proposers see it.

A bench evaluates candidates of one problem. `LocalBench` has an evaluator for each language and
device, and runners of each device that all languages share; devices of one kind measure side by
side. In this process a device is torch's current device of the thread that uses it; in a runner it
is the only visible device.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self

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
from optimizer.evaluation.journal import EvaluationJournal
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
from retrieval.diagnose.rules import NO_RULES, OwnRules


@dataclass(frozen=True)
class TargetToolchain:
    """The toolchain of one language and the target that it compiles for."""

    target: EvaluationTarget
    toolchain: Toolchain


@dataclass
class ProblemBench:
    """Evaluates candidates of a problem. A context manager: leaving it ends every process and
    removes every file of the bench.

    `places` is by language; `torch` is among them if the device can run the reference.
    """

    problem: Problem
    places: Mapping[str, TargetToolchain]
    settings: EvaluationSettings
    journal: EvaluationJournal = field(default_factory=EvaluationJournal)
    signatures: Sequence[SignatureSpec] = ()
    rules: OwnRules = NO_RULES

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything that the bench holds."""

    @property
    def device(self) -> str:
        """The kind of device that candidates run on: `cpu` or `cuda`."""
        return next(iter(self.places.values())).target.device or "cpu"

    def cases(self, proposal: Proposal | None = None) -> list[Case]:
        """The searched cases for this device that a candidate claims, or all of them."""
        claimed = set(proposal.cases) if proposal is not None else set()
        fitting = (case for case in self.problem.searched if case.fits(self.device))
        return [case for case in fitting if not claimed or case.name in claimed]

    def timed_case(self) -> Case:
        """The first timed case for this device. Raises InvalidRequest without one."""
        timed = (case for case in self.cases() if case.timed)
        case = next(timed, None)
        if case is None:
            raise InvalidRequest(
                f"{self.problem.name} has no timed case for {self.device}",
                hint="Give its problem.toml a case without `timed = false` for this device.",
            )
        return case

    def place(self, language: str) -> TargetToolchain:
        """Target and toolchain of a language. Raises InvalidRequest for a language without one."""
        if language not in self.places:
            raise InvalidRequest(
                f"nothing here builds {language!r}",
                hint=f"Propose one of {', '.join(self.places)}.",
            )
        return self.places[language]


def reference_bundle(opened: OpenCase) -> Bundle:
    files = {"reference.py": opened.source}
    return Bundle(files, "reference.py", "torch", "Model", {}, "external")


def journal_evaluation(
    journal: EvaluationJournal,
    problem: Problem,
    bundle: Bundle,
    cases: Sequence[Case],
    evaluation: Evaluation,
    remote: bool = False,
) -> None:
    """Store an evaluation that this process's evaluators did not journal. `remote`: this machine
    need not have its device."""
    signatures = {
        case.name: OpenCase(problem, case, shapes_only=remote).signature for case in cases
    }
    journal.begin(evaluation.key, problem, signatures, bundle, evaluation.device)
    journal.finish(evaluation, problem)


# -- this machine


@dataclass(frozen=True)
class LocalDevice:
    """A device of this machine. `kind` is `cpu` or `cuda`, `number` torch's number in this process,
    `visible` the name in CUDA_VISIBLE_DEVICES, None for the only device."""

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
        """Make this torch's current device of the calling thread."""
        if self.visible is None:
            yield
            return
        with torch.cuda.device(self.number):
            yield


def devices_here(kind: str) -> tuple[LocalDevice, ...]:
    """All GPUs that this process may use; the processors together are one device."""
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


@dataclass
class LocalBench(ProblemBench):
    """Evaluates candidates on the devices of this machine. `devices` measure side by side, by
    default all of the target's kind."""

    ceilings: Ceilings | None = None
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

    def reference(self) -> Evaluation:
        """Evaluate the reference on the first timed case. Raises InvalidRequest if no kernel can be
        compared with it."""
        case, first = self.timed_case(), self.devices[0]
        with first.current():
            opened = self._prepared(first).case(case)
            check_reference(opened, self.device)
        return self._evaluate(reference_bundle(opened), [case], fresh=False)

    def evaluate(self, proposal: Proposal) -> Evaluation:
        """Evaluate a candidate on the searched cases that it claims. Raises InvalidRequest for a
        language without a toolchain."""
        return self._evaluate(proposal.bundle, self.cases(proposal), fresh=False)

    def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation:
        """Measure a candidate on fresh values: on the searched timed cases, or on the held-out
        cases. If the problem declares none it is checked on derived ones, which a note names."""
        chosen = [case for case in self.cases(proposal) if case.timed]
        if not held_out:
            return self._evaluate(proposal.bundle, chosen, fresh=True)
        declared = [case for case in self.problem.held_out if case.fits(self.device)]
        if declared or not chosen:
            return self._evaluate(proposal.bundle, declared, fresh=True)
        if self._derived is None:
            self._derived = fitting(self.problem, self.timed_case())
        derived = self._derived
        evaluation = self._evaluate(proposal.bundle, derived.cases, fresh=True)
        return replace(evaluation, notes=(*evaluation.notes, derived.note))

    def _evaluate(self, bundle: Bundle, cases: Sequence[Case], fresh: bool) -> Evaluation:
        place = self.place(bundle.language)
        device = self._free.get()
        try:
            with device.current():
                evaluator = self._evaluator(bundle.language, fresh, device)
                return evaluator.evaluate(bundle, place.toolchain, cases)
        finally:
            self._free.put(device)

    def _prepared(self, device: LocalDevice) -> PreparedProblem:
        """Expected outputs of a device, shared by all languages."""
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
                EvaluationJournal() if fresh else self.journal,
                pool=self._pools.get(device),
                ceilings=self.ceilings,
                signatures=self.signatures,
                rules=self.rules,
                prepared=None if fresh else self._prepared(device),
                lock=device.lock,
            )
        return self._evaluators[key]


# -- the problem as proposers see it


def problem_view(problem: Problem, device: str, remote: bool = False) -> ProblemView:
    """The problem as proposers see it: signatures and traits of the searched cases for this kind of
    device, without values and held-out cases. `remote`: this machine has no such device, so only
    the shapes are observed and the reference does not run on arrays."""
    cases = [case for case in problem.searched if case.fits(device)]
    view = ProblemView(
        name=problem.name,
        op=problem.op,
        summary=problem.summary,
        source=problem.source,
        cases=tuple(_case_view(problem, case, device, remote) for case in cases),
        policy=_policy(problem.policy),
        hidden_cases=bool(problem.held_out),
    )
    # A declaration names the operator already.
    return view if problem.declared else replace(view, mostly=dominant(view.main.work, problem.op))


def _case_view(problem: Problem, case: Case, device: str, remote: bool) -> CaseView:
    opened = OpenCase(problem, case, shapes_only=remote, device="cpu" if remote else device)
    dtype = case.dtype or next(
        (t.dtype for t in opened.signature.tensors if t.dtype.startswith(("float", "bfloat"))), None
    )
    observed = observe(opened, "cpu" if remote else device)
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
        overwritten=opened.overwritten,
    )


def _policy(policy: ProblemPolicy) -> dict[str, str]:
    return {
        "precision": policy.precision,
        "library": policy.library,
        "weights": policy.weights,
        "outputs": ", ".join(policy.outputs) or "float",
    }
