"""The bench of a chip, or of its simulator, that runs the command templates of its hardware.toml.

The reference does not run on such a chip, so speed-ups are relative to the first correct candidate,
at best the manual's own sample. Ratios of simulated times are marked `simulator`: a simulator
counts cycles, so each candidate runs once and its times have no spread. A program that measures on
real hardware (`timing = "wall"`) runs several times, so that the ratio has an interval. During the
search those runs are not interleaved with the baseline's, so the ratio includes drift of the
machine; `confirm` runs the baseline before and after the finalist.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.correctness.check import cost_of
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.runner_process import RunnerPool, RunnerSettings
from optimizer.evaluation.journal import EvaluationJournal
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Case
from optimizer.evaluation.records import CaseTiming, Evaluation, Interval, TimingState
from optimizer.evaluation.settings import HARNESS
from optimizer.evaluation.timing.statistics import combined
from optimizer.evaluation.toolchains.base import Toolchain
from optimizer.evaluation.toolchains.command import CommandToolchain
from optimizer.search.bench.local import ProblemBench, journal_evaluation, reference_bundle
from optimizer.search.records import Proposal

GOLDENS: Literal["cpu"] = "cpu"  # device that computes the expected outputs
SIMULATOR: TimingState = "simulator"
NO_REFERENCE = "there is no reference on this chip: the first right candidate stands for it"


def by_commands(toolchain: Toolchain) -> bool:
    """Whether candidates run through command templates."""
    return isinstance(toolchain, CommandToolchain)


def clock_of(toolchain: Toolchain) -> str:
    """The clock of a toolchain's times: `wall` (this harness), `program` (the chip's program),
    `simulator`, or the kind of cost that an emulator counts. They are never mixed."""
    if not isinstance(toolchain, CommandToolchain):
        return "wall"
    if toolchain.template.cost != "cycles":
        return toolchain.template.cost
    return "simulator" if toolchain.template.timing == SIMULATOR else "program"


@dataclass
class SimulatedBench(ProblemBench):
    """Evaluates candidates through a chip's own commands. All `places` are of the same chip.

    The others are compared with `first` if that is correct. `side_by_side` programs run at once.
    """

    first: Proposal | None = None
    side_by_side: int = 1
    _compared_with: Bundle | None = None
    _evaluators: dict[tuple[str, bool], Evaluator] = field(default_factory=dict)
    _baseline: dict[str, CaseTiming] = field(default_factory=dict)

    def close(self) -> None:
        """Close all evaluators."""
        for evaluator in self._evaluators.values():
            evaluator.close()
        self._evaluators.clear()

    @property
    def at_once(self) -> int:
        """1 until there is a baseline, which the first correct candidate becomes."""
        return self.side_by_side if self._baseline else 1

    @property
    def device(self) -> str:
        """The device that computes the expected outputs."""
        return GOLDENS

    def compare_with(self, evaluation: Evaluation) -> None:
        """Use the times of this evaluation as the baseline, for example of a resumed run."""
        self._baseline = {timing.case: timing for timing in evaluation.timings}

    def reference(self) -> Evaluation:
        """The evaluation of `first` if that is correct, else one with the message NO_REFERENCE."""
        if self.first is not None:
            evaluation = self.evaluate(self.first)
            if evaluation.correct:
                return evaluation
        return self._no_reference()

    def evaluate(self, proposal: Proposal) -> Evaluation:
        """Evaluate a candidate on the searched cases that it claims and compare it with the
        baseline. Raises InvalidRequest for a language that no commands run."""
        cases = self.cases(proposal)
        plain = self.measure(proposal.bundle, cases, fresh=False)
        if not self._baseline and plain.correct and all(map(cost_of, plain.timings)):
            self.compare_with(plain)
            self._compared_with = proposal.bundle
        evaluation = self._compared(plain, self._baseline)
        # The ratios are an evaluation with its own key, so that a stored run has them.
        if evaluation.speedup is not None and self.journal.finished(evaluation.key) is None:
            journal_evaluation(self.journal, self.problem, proposal.bundle, cases, evaluation)
        return evaluation

    def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation:
        """Evaluate a candidate on fresh values. On a simulator held-out cases have no baseline, so
        they are only checked; on real hardware the baseline runs before and after it."""
        chosen = [case for case in self.cases(proposal) if case.timed]
        if held_out:
            chosen = [case for case in self.problem.held_out if case.fits(GOLDENS)]
        toolchain = self.places[proposal.bundle.language].toolchain
        before = self._baseline_again(toolchain, chosen)
        evaluation = self.measure(proposal.bundle, chosen, fresh=True)
        after = self._baseline_again(toolchain, chosen) if before else {}
        return self._compared(evaluation, _around(before, after) or self._baseline)

    def measure(self, bundle: Bundle, cases: Sequence[Case], fresh: bool) -> Evaluation:
        """Run a candidate without comparing it; `fresh`: on new values, and not journalled. Raises
        InvalidRequest for a language that no commands run."""
        evaluator = self._evaluator(bundle.language, fresh)
        return evaluator.evaluate(bundle, self.place(bundle.language).toolchain, cases)

    def _baseline_again(self, toolchain: Toolchain, cases: Sequence[Case]) -> dict[str, CaseTiming]:
        """New times of the baseline; empty for a simulator, which repeats itself."""
        bundle = self._compared_with
        if clock_of(toolchain) not in ("wall", "program") or bundle is None:
            return {}
        evaluation = self.measure(bundle, cases, fresh=True)
        return {timing.case: timing for timing in evaluation.timings} if evaluation.correct else {}

    def _compared(self, evaluation: Evaluation, baseline: Mapping[str, CaseTiming]) -> Evaluation:
        if not evaluation.correct or not evaluation.timings:
            return evaluation
        timings = tuple(_ratio(timing, baseline.get(timing.case)) for timing in evaluation.timings)
        ratios = [(t.speedup, self._weight(t.case)) for t in timings if t.speedup is not None]
        whole = len(ratios) == len(timings)
        return replace(
            evaluation,
            key=self._key(evaluation),
            timings=timings,
            speedup=combined(ratios) if whole else None,
        )

    def _weight(self, case: str) -> float:
        return next(known.weight for known in self.problem.cases if known.name == case)

    def _key(self, evaluation: Evaluation) -> str:
        """Key of the ratio: the keys of the evaluation and of the baseline."""
        base = {case: cost_of(timing) for case, timing in sorted(self._baseline.items())}
        return hashlib.sha256(f"{evaluation.key}\0{json.dumps(base)}".encode()).hexdigest()

    def _no_reference(self) -> Evaluation:
        case = self.timed_case()
        bundle = reference_bundle(OpenCase(self.problem, case))
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
        journal_evaluation(self.journal, self.problem, bundle, [case], evaluation)
        return evaluation

    def _evaluator(self, language: str, fresh: bool) -> Evaluator:
        if (language, fresh) not in self._evaluators:
            place = self.place(language)
            # No candidate runs in a runner here, so none waits.
            level = level_for(self.settings.isolation, GOLDENS)
            runners = RunnerSettings(GOLDENS, self.settings.threads, level)
            self._evaluators[language, fresh] = Evaluator(
                self.problem,
                place.target,
                self.settings,
                EvaluationJournal() if fresh else self.journal,
                pool=RunnerPool(runners, spare=0, fork=False),
                signatures=self.signatures,
                rules=self.rules,
            )
        return self._evaluators[language, fresh]


def _ratio(timing: CaseTiming, before: CaseTiming | None) -> CaseTiming:
    """Add the baseline's time over the candidate's; its interval reflects the spread of both."""
    took, base = cost_of(timing), cost_of(before) if before is not None else None
    if before is None or not took or not base or before.counted != timing.counted:
        return timing
    ratio, half = base / took, math.hypot(timing.spread, before.spread)
    figure = Interval(ratio, ratio * math.exp(-half), ratio * math.exp(half), timing.calls)
    return replace(timing, baseline_us=before.candidate_us, speedup=figure)


def _around(
    before: Mapping[str, CaseTiming], after: Mapping[str, CaseTiming]
) -> dict[str, CaseTiming]:
    """The geometric mean of the baseline before and after a candidate; its spread includes their
    difference."""
    joined = {}
    for case, first in before.items():
        second = after.get(case)
        if second is None or not first.candidate_us or not second.candidate_us:
            continue
        mean = math.sqrt(first.candidate_us * second.candidate_us)
        drift = abs(math.log(first.candidate_us / second.candidate_us)) / 2
        spread = max(first.spread, second.spread, drift)
        joined[case] = replace(first, candidate_us=mean, spread=spread)
    return joined
