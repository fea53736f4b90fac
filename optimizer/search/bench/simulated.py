"""Measures on a chip, or on its simulator, through the command templates of its hardware.toml.

There is no reference on such a chip, so there is no speed-up over it. Candidates are compared with
the first correct candidate, at best the manual's own sample as it stands. Figures can be
compared with each other only. Ratios of simulated times are marked `simulator`: a simulator counts
cycles, so each candidate runs once and its times have no spread. Where a program reports the time
that it measured on real hardware (`timing = "wall"`), each candidate runs several times and the
ratio has an interval. During the search those runs are not interleaved with the baseline's, so a
drift of the machine is in the ratio; `confirm` runs the baseline before and after the finalist.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kb.errors import InvalidRequest, Unavailable
from kb.hardware.spec import SignatureSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.correctness.check import cost_of
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.runner_process import RunnerPool, RunnerSettings
from optimizer.evaluation.journal import EvaluationJournal, NoJournal
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import CaseTiming, Evaluation, Interval, TimingState
from optimizer.evaluation.settings import HARNESS, EvaluationSettings
from optimizer.evaluation.timing.statistics import combined
from optimizer.evaluation.toolchains.base import Toolchain
from optimizer.evaluation.toolchains.command import CommandToolchain
from optimizer.search.bench.local import TargetToolchain
from optimizer.search.records import Proposal
from retrieval.diagnose.own_rules import NO_RULES, OwnRules

GOLDENS: Literal["cpu"] = "cpu"  # where the reference is computed
SIMULATOR: TimingState = "simulator"
NO_REFERENCE = "there is no reference on this chip: the first right candidate stands for it"


def by_commands(toolchain: Toolchain) -> bool:
    """Whether candidates run through command templates, so that a program reports their times."""
    return isinstance(toolchain, CommandToolchain)


def clock_of(toolchain: Toolchain) -> str:
    """Whose clock the times of a toolchain are by: `wall` is this harness's own, `program` the
    program's, `simulator` a simulator's. They are never mixed."""
    if not isinstance(toolchain, CommandToolchain):
        return "wall"
    return "simulator" if toolchain.template.timing == SIMULATOR else "program"


def _ratio(timing: CaseTiming, before: CaseTiming | None) -> CaseTiming:
    """With the baseline's time over the candidate's, and its interval where times have a spread."""
    took, base = cost_of(timing), cost_of(before) if before is not None else None
    if before is None or not took or not base:
        return timing
    ratio, half = base / took, math.hypot(timing.spread, before.spread)
    figure = Interval(ratio, ratio * math.exp(-half), ratio * math.exp(half), timing.calls)
    return replace(timing, baseline_us=before.candidate_us, speedup=figure)


def _around(
    before: Mapping[str, CaseTiming], after: Mapping[str, CaseTiming]
) -> dict[str, CaseTiming]:
    """The baseline as it was before and after a candidate: the mean of both, with what they differ
    by in its spread."""
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


@dataclass
class SimulatedBench:
    """Evaluates candidates through a chip's own commands. It is a context manager: leaving it
    removes the files that it wrote.

    `places` is by language, all of the same chip. `first` is the candidate that others are compared
    with if it is correct. `side_by_side` is how many programs run at once.
    """

    problem: Problem
    places: Mapping[str, TargetToolchain]
    settings: EvaluationSettings
    journal: EvaluationJournal = field(default_factory=NoJournal)
    signatures: Sequence[SignatureSpec] = ()
    rules: OwnRules = NO_RULES
    first: Proposal | None = None
    side_by_side: int = 1
    _compared_with: Bundle | None = None
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
        """As many as run side by side, once there is a baseline: before that, the first correct
        candidate decides what the others are compared with."""
        return self.side_by_side if self._baseline else 1

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
        baseline. Raises Unavailable for a language that no commands here run."""
        cases = self.cases(proposal)
        plain = self.measure(proposal.bundle, cases, fresh=False)
        if not self._baseline and plain.correct and all(map(cost_of, plain.timings)):
            self.compare_with(plain)
            self._compared_with = proposal.bundle
        evaluation = self._compared(plain, self._baseline)
        self._keep(evaluation, proposal.bundle, cases)
        return evaluation

    def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation:
        """Evaluate a candidate again on fresh values. On a simulator held-out cases have no
        baseline, so they are checked only; on real hardware the baseline is run again around it."""
        chosen = [case for case in self.cases(proposal) if case.timed]
        if held_out:
            chosen = [case for case in self.problem.held_out if case.fits(GOLDENS)]
        toolchain = self.places[proposal.bundle.language].toolchain
        before = self._baseline_again(toolchain, chosen)
        evaluation = self.measure(proposal.bundle, chosen, fresh=True)
        after = self._baseline_again(toolchain, chosen) if before else {}
        return self._compared(evaluation, _around(before, after) or self._baseline)

    def cases(self, proposal: Proposal) -> list[Case]:
        """The searched cases that the candidate claims."""
        claimed = set(proposal.cases)
        return [
            case
            for case in self.problem.searched
            if case.fits(GOLDENS) and (not claimed or case.name in claimed)
        ]

    def measure(self, bundle: Bundle, cases: Sequence[Case], fresh: bool) -> Evaluation:
        """Run a candidate, compared with nothing yet; `fresh` on new values, and not journalled.
        Raises Unavailable for a language that no commands here run."""
        evaluator = self._evaluator(bundle.language, fresh)
        return evaluator.evaluate(bundle, self.places[bundle.language].toolchain, cases)

    # -- comparing

    def _baseline_again(self, toolchain: Toolchain, cases: Sequence[Case]) -> dict[str, CaseTiming]:
        """The baseline measured anew, where that makes a difference: a simulator repeats itself."""
        bundle = self._compared_with
        if clock_of(toolchain) == SIMULATOR or bundle is None:
            return {}
        evaluation = self.measure(bundle, cases, fresh=True)
        return {timing.case: timing for timing in evaluation.timings} if evaluation.correct else {}

    def _compared(self, evaluation: Evaluation, baseline: Mapping[str, CaseTiming]) -> Evaluation:
        """The evaluation with ratios to the baseline."""
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
        """A key of the evaluation and of the baseline, which together decide the ratio."""
        base = {case: cost_of(timing) for case, timing in sorted(self._baseline.items())}
        return hashlib.sha256(f"{evaluation.key}\0{json.dumps(base)}".encode()).hexdigest()

    def _keep(self, evaluation: Evaluation, bundle: Bundle, cases: Sequence[Case]) -> None:
        """Journal the ratios as an evaluation of their own, so that a stored run has them."""
        if evaluation.speedup is None or self.journal.finished(evaluation.key) is not None:
            return
        signatures = {case.name: OpenCase(self.problem, case).signature for case in cases}
        self.journal.begin(evaluation.key, self.problem, signatures, bundle, GOLDENS)
        self.journal.finish(evaluation, self.problem)

    def _nothing(self) -> Evaluation:
        case = next((c for c in self.problem.searched if c.timed and c.fits(GOLDENS)), None)
        if case is None:
            raise InvalidRequest(
                f"{self.problem.name} has no timed case for {GOLDENS}",
                hint="Give its problem.toml a case without `timed = false`.",
            )
        opened = OpenCase(self.problem, case)
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
            if place is None or not by_commands(place.toolchain):
                raise Unavailable(
                    f"no commands here run {language!r}",
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
                rules=self.rules,
            )
        return self._evaluators[language, fresh]
