"""Measures on a chip's simulator through its command templates.

There is no reference on such a chip, so there is no speed-up over it. Candidates are compared with
the first correct candidate, at best the manual's own sample as it stands. Figures are ratios of
simulated times, marked `simulator`, and can be compared with each other only. A simulator counts
cycles, so each candidate runs once and its times have no spread.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kb.errors import InvalidRequest, Unavailable
from kb.hardware.spec import SignatureSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.pool import RunnerPool
from optimizer.evaluation.isolation.runner_process import RunnerSettings
from optimizer.evaluation.journal import Journal, NoJournal
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.problem.tensors import open_case
from optimizer.evaluation.records import CaseTiming, Evaluation, Interval, TimingState
from optimizer.evaluation.settings import HARNESS, EvaluationSettings
from optimizer.evaluation.simulated import cost_of
from optimizer.evaluation.timing.statistics import combined
from optimizer.evaluation.toolchains.base import Toolchain
from optimizer.evaluation.toolchains.command import CommandToolchain
from optimizer.search.bench.local import Place
from optimizer.search.records import Proposal

GOLDENS: Literal["cpu"] = "cpu"  # where the reference is computed
SIMULATOR: TimingState = "simulator"
NO_REFERENCE = "there is no reference on this chip: the first right candidate stands for it"


def simulated(toolchain: Toolchain) -> bool:
    """Whether the toolchain's times come from a simulator."""
    return isinstance(toolchain, CommandToolchain) and toolchain.template.timing == SIMULATOR


@dataclass
class SimulatedBench:
    """Evaluates candidates on a chip's simulator. It is a context manager: leaving it removes the
    files that it wrote.

    `places` is by language, all of the same chip. `first` is the candidate that others are compared
    with if it is correct.
    """

    problem: Problem
    places: Mapping[str, Place]
    settings: EvaluationSettings
    journal: Journal = field(default_factory=NoJournal)
    signatures: Sequence[SignatureSpec] = ()
    first: Proposal | None = None
    _evaluators: dict[tuple[str, bool], Evaluator] = field(default_factory=dict)
    _baseline: dict[str, CaseTiming] = field(default_factory=dict)

    def __enter__(self) -> SimulatedBench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all evaluators."""
        for evaluator in self._evaluators.values():
            evaluator.close()
        self._evaluators.clear()

    @property
    def at_once(self) -> int:
        """1, because the first correct candidate decides what the others are compared with."""
        return 1

    @property
    def device(self) -> str:
        """Where the reference is computed: `cpu`."""
        return GOLDENS

    def compare_with(self, evaluation: Evaluation) -> None:
        """Use the times of this evaluation as the baseline, for example those of a continued
        run."""
        self._baseline = {timing.case: timing for timing in evaluation.timings}

    def reference(self) -> Evaluation:
        """The evaluation of `first` where it is correct; else an evaluation that says that there is
        no reference."""
        if self.first is not None:
            evaluation = self.evaluate(self.first)
            if evaluation.correct:
                return evaluation
        return self._nothing()

    def evaluate(self, proposal: Proposal) -> Evaluation:
        """Evaluate a candidate on the searched cases that it claims and compare it with the
        baseline. Raises Unavailable for a language that nothing here simulates."""
        cases = self.cases(proposal)
        evaluator = self._evaluator(proposal.bundle.language, fresh=False)
        toolchain = self.places[proposal.bundle.language].toolchain
        evaluation = self._compared(evaluator.evaluate(proposal.bundle, toolchain, cases))
        self._keep(evaluation, proposal.bundle, cases)
        return evaluation

    def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation:
        """Evaluate a candidate again on fresh values. Held-out cases have no baseline, so they are
        checked only."""
        chosen = [case for case in self.cases(proposal) if case.timed]
        if held_out:
            chosen = [case for case in self.problem.held_out if case.fits(GOLDENS)]
        evaluator = self._evaluator(proposal.bundle.language, fresh=True)
        toolchain = self.places[proposal.bundle.language].toolchain
        return self._compared(evaluator.evaluate(proposal.bundle, toolchain, chosen))

    def cases(self, proposal: Proposal) -> list[Case]:
        """The searched cases that the candidate claims."""
        claimed = set(proposal.cases)
        return [
            case
            for case in self.problem.searched
            if case.fits(GOLDENS) and (not claimed or case.name in claimed)
        ]

    # -- comparing

    def _compared(self, evaluation: Evaluation) -> Evaluation:
        """The evaluation with ratios to the baseline; the first correct and timed candidate becomes
        the baseline."""
        if not evaluation.correct or not evaluation.timings:
            return evaluation
        if not self._baseline:
            self.compare_with(evaluation)
        timings = tuple(self._against_baseline(timing) for timing in evaluation.timings)
        ratios = [(t.speedup, self._weight(t.case)) for t in timings if t.speedup is not None]
        whole = len(ratios) == len(timings)
        return replace(
            evaluation,
            key=self._key(evaluation),
            timings=timings,
            timing=SIMULATOR,
            speedup=combined(ratios) if whole else None,
        )

    def _against_baseline(self, timing: CaseTiming) -> CaseTiming:
        before = self._baseline.get(timing.case)
        took, base = cost_of(timing), cost_of(before) if before is not None else None
        if before is None or not took or not base:
            return timing
        ratio = base / took
        only = Interval(ratio, ratio, ratio, 1)
        return replace(timing, baseline_us=before.candidate_us, speedup=only)

    def _weight(self, case: str) -> float:
        return next(known.weight for known in self.problem.cases if known.name == case)

    def _key(self, evaluation: Evaluation) -> str:
        """A key of the evaluation and of the baseline, which together decide the ratio."""
        base = {case: cost_of(timing) for case, timing in sorted(self._baseline.items())}
        return hashlib.sha256(f"{evaluation.key}\0{json.dumps(base)}".encode()).hexdigest()

    def _keep(self, evaluation: Evaluation, bundle: Bundle, cases: Sequence[Case]) -> None:
        """Journal the ratios as an evaluation of their own, so that a stored run has them."""
        if evaluation.speedup is None or self.journal.finished(evaluation.key) is not None:
            return
        evaluator = self._evaluator(bundle.language, fresh=False)
        signatures = {case.name: evaluator.case(case).open.signature for case in cases}
        self.journal.begin(evaluation.key, self.problem, signatures, bundle, GOLDENS)
        self.journal.finish(evaluation, self.problem)

    def _nothing(self) -> Evaluation:
        case = next((c for c in self.problem.searched if c.timed and c.fits(GOLDENS)), None)
        if case is None:
            raise InvalidRequest(
                f"{self.problem.name} has no timed case for {GOLDENS}",
                hint="Give its problem.toml a case without `timed = false`.",
            )
        opened = open_case(self.problem, case)
        files = {"reference.py": opened.source}
        bundle = Bundle(files, "reference.py", "torch", "Model", {}, "external")
        hardware = next(iter(self.places.values())).target.hardware
        identity = f"{self.problem.sha256}\0{bundle.sha256}\0{hardware}\0{HARNESS}\0none"
        evaluation = Evaluation(
            key=hashlib.sha256(identity.encode()).hexdigest(),
            problem=self.problem.name,
            candidate=bundle.sha256,
            language="torch",
            hardware=hardware,
            device=GOLDENS,
            toolchain="none",
            harness=HARNESS,
            validity="not_run",
            timing="none",
            reached="parse",
            message=NO_REFERENCE,
        )
        self.journal.begin(
            evaluation.key, self.problem, {case.name: opened.signature}, bundle, GOLDENS
        )
        self.journal.finish(evaluation, self.problem)
        return evaluation

    def _evaluator(self, language: str, fresh: bool) -> Evaluator:
        if (language, fresh) not in self._evaluators:
            place = self.places.get(language)
            if place is None or not simulated(place.toolchain):
                raise Unavailable(
                    f"nothing here simulates {language!r}",
                    hint=f"Propose one of {', '.join(self.places)}.",
                )
            # No candidate runs in a runner here, so none is kept waiting.
            level = level_for(self.settings.isolation, GOLDENS)
            runners = RunnerSettings(GOLDENS, self.settings.threads, level)
            self._evaluators[language, fresh] = Evaluator(
                self.problem,
                place.target,
                self.settings,
                NoJournal() if fresh else self.journal,
                pool=RunnerPool(runners, spare=0, fork=False),
                signatures=self.signatures,
            )
        return self._evaluators[language, fresh]
