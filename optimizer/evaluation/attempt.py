"""One candidate on its way through the stages: parse, compile, correctness, benchmark; each only if
the stage before it succeeded. Never imports candidate code."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kb import telemetry
from kb.errors import Unavailable
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.candidate_processes import CandidateProcesses, EvaluationContext
from optimizer.evaluation.correctness.comparison import check_case
from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.isolation.runner_process import (
    RunnerDied,
    RunnerForged,
    RunnerHung,
    RunnerProcess,
)
from optimizer.evaluation.loaded_kernel import KernelFailed, LoadedKernel
from optimizer.evaluation.problem.least import too_little
from optimizer.evaluation.problem.spec import Case
from optimizer.evaluation.records import (
    BRIEFLY,
    CaseCheck,
    CaseTiming,
    Flag,
    Stage,
    Validity,
    checks_from_json,
)
from optimizer.evaluation.roofline import Work, impossible_times
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.simulated import run_simulated
from optimizer.evaluation.source_rules import SourceUnreadable, source_flags
from optimizer.evaluation.timed_block import Block
from optimizer.evaluation.timing.blocks import (
    BETWEEN,
    BLOCK_MS,
    NARROW,
    PLACES_NS,
    QUIET,
    WALL_BLOCKS,
    BaselineFailed,
    Compare,
    CompareLooks,
    Measured,
    Side,
    TimingPolicy,
    measure,
)
from optimizer.evaluation.toolchains.base import Compiled, Loader, Toolchain
from optimizer.evaluation.toolchains.command import CommandToolchain
from optimizer.evaluation.toolchains.triton.compile import CaseSetup, write_setups

# Calls in a block where a candidate may know it (without defence 9).
KNOWN_CALLS = 15
UNVARIED = "not tested whether it reads {}: the same values in every call (see problem check)"
LONG_CALL_US = 1000.0  # ten times what moving too few bytes to time takes on two cores
UNDECIDED = (
    "{output}: {count} of the compared elements differ from the reference's and are right by"
    " another rounding of it (values at the edge of a comparison)"
)
CHANCE = random.SystemRandom()  # its numbers cannot be known beforehand


@dataclass
class Attempt:
    """One candidate's evaluation in progress.

    `key` is that of the evaluation, `seeds` those of the values that the candidate is checked with.
    The fields after `workdir` are the result so far.
    """

    context: EvaluationContext
    key: str
    bundle: Bundle
    toolchain: Toolchain
    cases: Sequence[Case]
    seeds: Sequence[int]
    workdir: Path
    validity: Validity = "not_run"
    reached: Stage = "parse"
    message: str = ""
    log: str = ""
    checks: list[CaseCheck] = field(default_factory=list)
    timings: list[CaseTiming] = field(default_factory=list)
    flags: list[Flag] = field(default_factory=list)
    metrics: dict[str, float | str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    undecided: Counter[str] = field(default_factory=Counter)  # elements by output
    loader: Loader | None = None
    processes: CandidateProcesses = field(init=False)

    def __post_init__(self) -> None:
        self.processes = CandidateProcesses(self.context, seed=self.seeds[0], workdir=self.workdir)

    def run(self) -> None:
        """Run all stages, or up to the first that ends the evaluation. Raises Unavailable where the
        toolchain cannot compile here or the device has no room."""
        with self._stage("parse"):
            self._parse()
        if self.ended:
            return
        with self._stage("compile"):
            compiled = self._compile()
        if self.ended or compiled.loader is None:
            return
        self.loader = compiled.loader
        if isinstance(self.toolchain, CommandToolchain):
            self._simulate(self.toolchain, compiled)
            return
        try:
            self._guarded(compiled.loader)
        finally:
            self._ended_processes()

    @property
    def ended(self) -> bool:
        """Whether a stage has decided the outcome."""
        return self.validity != "not_run"

    def _end(self, validity: Validity, message: str, log: str = "") -> None:
        self.validity, self.message = validity, message
        self.log = log or self.log

    @contextmanager
    def _stage(self, stage: Stage) -> Iterator[None]:
        self.reached = stage
        began = time.perf_counter()
        try:
            with telemetry.span(f"evaluate: {stage}", {"kernlore.evaluation": self.key}):
                yield
        finally:
            self.seconds[stage] = time.perf_counter() - began

    @property
    def _settings(self) -> EvaluationSettings:
        return self.context.settings

    # -- parse and compile

    def _parse(self) -> None:
        try:
            flags = [f for f in source_flags(self.bundle) if self._settings.on(f.defence)]
        except SourceUnreadable as problem:
            self._end("not_compiled", str(problem), log=str(problem))
            return
        self.flags += flags
        if flags:
            self._end("rejected", flags[0].message)

    def _compile(self) -> Compiled:
        available = self.toolchain.available(self.context.target)
        if not available.ok:
            raise Unavailable(available.reason, hint=available.hint)
        signatures = tuple(self.context.problem.case(case).open.signature for case in self.cases)
        write_setups(self.workdir, [self._setup(case) for case in self.cases])
        compiled = self.toolchain.compile(
            self.bundle, self.context.target, self.workdir, signatures
        )
        self.metrics |= compiled.metrics
        self.notes += compiled.notes
        self.log = compiled.log
        if compiled.timed_out:
            self._end("timed_out", "the compiler did not end within its deadline", compiled.log)
        elif not compiled.ok:
            self._end("not_compiled", _first_error(compiled.log), compiled.log)
        return compiled

    def _setup(self, case: Case) -> CaseSetup:
        """What a Python candidate is constructed with, for compilers that call it."""
        opened = self.context.problem.case(case).open
        scalars = {}
        if any(opened.scalars):  # drawing large values takes long
            inputs = zip(opened.input_names, opened.scalars, opened.inputs(0), strict=True)
            scalars = {name: value.item() for name, scalar, value in inputs if scalar}
        return CaseSetup(opened.init_args, {}, case.dtype, scalars)

    def _simulate(self, toolchain: CommandToolchain, compiled: Compiled) -> None:
        """Correctness and time of a program that its own commands run."""
        # A program that times itself on real hardware is disturbed by others; a simulator is not.
        alone = self.context.lock if toolchain.template.timing == "wall" else nullcontext()
        with self._stage("correctness"), alone:
            for case in self.cases:
                outcome = run_simulated(
                    self.context.problem.case(case),
                    toolchain,
                    compiled,
                    seeds=self.seeds,
                    workdir=self.workdir,
                    seconds=self._settings.call_seconds,
                )
                self.checks += outcome.checks
                if outcome.validity != "correct":
                    self._end(outcome.validity, outcome.message, outcome.log)
                    return
                self.metrics |= outcome.metrics or {}
                if outcome.timing is not None and case.timed:
                    self.timings.append(outcome.timing)
            self.validity = "correct"

    # -- in the runner

    def _ended_processes(self) -> None:
        processes = self.processes
        if not processes.leave_ending():
            self.flags.append(Flag(2, "reject", "it left processes that could not be ended"))
        self.seconds["calls"] = processes.called_ns / 1e9
        self.notes += [UNDECIDED.format(count=n, output=o) for o, n in self.undecided.items() if n]
        self.notes = list(dict.fromkeys([*self.notes, *processes.notes]))

    def _guarded(self, loader: Loader) -> None:
        """Correctness and timing; whatever the candidate does to its process is a verdict."""
        try:
            if self.context.stays:
                self._in_one_process(loader)
            else:
                self._in_fresh_processes(loader)
        except KernelFailed as failed:
            kind: Validity = "incorrect" if failed.kind == "refused" else "crashed"
            if kind == "incorrect":  # as the reference's would be, if their shapes are not fixed
                for case in self.cases:
                    self.context.problem.case(case).expected(self.seeds[0])
            self._end(kind, failed.message, failed.log)
        except RunnerHung as hung:
            self._end("timed_out", str(hung), hung.log)
        except RunnerForged as forged:
            self._forged(forged, forged.log)
        except RunnerDied as died:
            self._end("crashed", str(died), died.log)

    def _in_fresh_processes(self, loader: Loader) -> None:
        """Both sides are timed in processes that have done nothing else."""
        if loader.compiles:
            self.context.pool.import_compiler()
        with self._stage("correctness"), self.processes.runner() as runner:
            self._correctness(runner, loader)
        if self._to_be_timed(loader):
            with self._stage("benchmark"), self.context.lock, _one_thread():
                self._benchmark(loader, None)

    def _in_one_process(self, loader: Loader) -> None:
        """The candidate is timed where it was checked: its arrays are there. Nobody else measures
        on the device meanwhile, because checking uses it too."""
        for case in self.cases:
            for seed in self.seeds:  # drawing values does not use the device
                self.context.problem.case(case).sample(seed)
        with self.context.lock, self.processes.runner() as runner:
            self.processes.check_room(self.cases)
            self.context.pool.prepare()  # the runner of the next candidate
            with self._stage("correctness"):
                self._correctness(runner, loader)
            self.context.pool.settle()
            if self._to_be_timed(loader):
                self.context.alone()
                with self._stage("benchmark"):
                    self._benchmark(loader, runner)

    def _to_be_timed(self, loader: Loader) -> bool:
        if self.ended and self.validity != "correct":
            return False
        if loader.kind == "interpreter":
            self.notes.append("checked in Triton's interpreter; not timed")
            return False
        return any(case.timed for case in self.cases)

    def _forged(self, forged: RunnerForged, log: str) -> None:
        if not self._settings.on(12) and isinstance(forged.content, dict):
            # Without the defence whatever was written into the channel is believed.
            self._end(forged.content.get("validity", "crashed"), "as written into the channel", log)
            return
        self.flags.append(Flag(12, "reject", f"it wrote into the result channel: {forged}"))
        self._end("rejected", "it wrote into the result channel", log)

    def _correctness(self, runner: RunnerProcess, loader: Loader) -> None:
        done: Mapping[str, Any] = self.context.journal.left(self.key).get("correctness") or {}
        if done:
            self.checks = checks_from_json(done["checks"])
            self.notes.append("checked by an evaluation that was interrupted later")
            self.validity = "correct"
            return
        # Small cases first: there a wrong candidate costs least.
        cases = self._checkable(loader)
        for case in sorted(cases, key=lambda case: case.timed):
            kernel = self.processes.load(runner, loader, case)
            try:
                result = check_case(
                    self.context.problem.case(case), kernel, self.seeds, self._settings
                )
            finally:
                self.processes.leave(case, kernel)
            if unread := self.context.problem.case(case).unvaried:
                self.notes.append(UNVARIED.format(", ".join(unread)))
            self.checks += result.checks
            self.flags += result.flags
            self._count_undecided(result.checks)
            if result.message:
                self._end("rejected" if result.flags else "incorrect", result.message)
                return
        self.validity = "correct"
        left = {"checks": [asdict(check) for check in self.checks]}
        self.context.journal.stage(self.key, "correctness", left)

    def _count_undecided(self, checks: Sequence[CaseCheck]) -> None:
        for check in checks:
            for error in check.errors:
                self.undecided[error.output] += error.undecided

    def _checkable(self, loader: Loader) -> list[Case]:
        """Triton's interpreter computes bfloat16 wrongly (errors of 1e10 were seen), so it is never
        asked about it."""
        cases = list(self.cases if self._settings.on(19) else self.cases[:1])
        if loader.kind != "interpreter":
            return cases
        return [case for case in cases if not self._in_bfloat16(case)]

    def _in_bfloat16(self, case: Case) -> bool:
        return any(
            t.dtype == "bfloat16" for t in self.context.problem.case(case).open.signature.tensors
        )

    def _benchmark(self, loader: Loader, runner: RunnerProcess | None) -> None:
        """runner: of the candidate, where it is timed in the process that checked it."""
        if self._settings.brief and any(case.timed for case in self.cases):
            self.notes.append(BRIEFLY)
        for case in self.cases:
            if case.timed and self.validity == "correct":
                measured = self._measured(loader, case, runner)
                if measured.doubtful:
                    # Hidden work is there in both measurements, a delay of the machine in one only.
                    reasons = "; ".join(flag.message for flag in measured.flags)
                    self.notes.append(f"timed twice: at first {reasons}")
                    measured = self._measured(loader, case, runner)
                self._take(case, measured)

    def _measured(self, loader: Loader, case: Case, runner: RunnerProcess | None) -> Measured:
        if runner is not None:
            return self._time(runner, loader, case)
        with self.processes.runner() as fresh:
            return self._time(fresh, loader, case)

    def _time(self, runner: RunnerProcess, loader: Loader, case: Case) -> Measured:
        try:
            with self.processes.both(runner, loader, case) as (baseline, kernel):
                return measure(
                    case.name,
                    baseline=baseline,
                    candidate=Side("candidate", runner, kernel),
                    policy=self._timing_policy,
                    compare=self._comparison(self.context.problem.case(case), kernel),
                    looks=self._looks(self.context.problem.case(case), kernel, baseline.kernel),
                    seed=CHANCE.getrandbits(30),
                    on=self._settings.on,
                )
        except BaselineFailed as failed:
            reason = f"timing must be repeated: the reference's process failed ({failed})"
            return Measured(CaseTiming(case.name, "repeat", reason=reason))

    def _take(self, case: Case, measured: Measured) -> None:
        flags = [*measured.flags, *self._impossible(case, measured.timing)]
        rejected = [flag for flag in flags if flag.severity == "reject"]
        self.flags += flags
        timing = measured.timing
        if timing.state == "repeat":
            timing = with_size(timing, self.context.problem.work(case))
        self.timings.append(timing)
        if measured.mismatch:
            self._end("incorrect", measured.mismatch)
        elif rejected:
            self._end("rejected", rejected[0].message)

    def _impossible(self, case: Case, timing: CaseTiming) -> list[Flag]:
        """What the ceilings of the device say against a time."""
        if not self._settings.on(29):
            return []
        problem, ceilings = self.context.problem, self.context.ceilings
        work = problem.work(case)
        flags = impossible_times(work, timing, ceilings)
        if _rejects(flags) and work.whole:
            unread = impossible_times(replace(work, read_bytes=0), timing, ceilings)
            # A slice or a stride may leave out most of an input, and then no kernel has to read it.
            # That is looked at only where it can make a difference.
            if not _rejects(unread):
                flags = impossible_times(problem.needed_work(case), timing, ceilings)
        return flags

    @property
    def _timing_policy(self) -> TimingPolicy:
        policy = self._settings.timing
        if self.context.device == "cpu":
            policy = replace(policy, threads=self._settings.threads)
        if policy.between is None:
            policy = replace(policy, between=BETWEEN[self.context.device])
        if policy.narrow is None:
            policy = replace(policy, narrow=NARROW[self.context.device])
        if policy.places_ns is None:
            policy = replace(policy, places_ns=PLACES_NS[self.context.device])
        if policy.walls is None:
            policy = replace(policy, walls=WALL_BLOCKS[self.context.device])
        tolerated = max(policy.tolerated or 0.0, QUIET[self.context.device])
        policy = replace(policy, tolerated=tolerated)
        if policy.block_ms is None:
            policy = replace(policy, block_ms=BLOCK_MS[self.context.device])
        return policy if self._settings.on(9) else replace(policy, calls=KNOWN_CALLS)

    def _comparison(self, prepared: PreparedCase, kernel: LoadedKernel) -> Compare:
        """Of both sides' outputs of a timed call."""
        seed = self.seeds[0]

        def compare(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> str | None:
            if not self._settings.on(10):
                return None
            return prepared.disagreement(
                candidate=ours,
                baseline=theirs,
                tensors=lambda: kernel.mirror.tensors,
                seed=seed,
                undecided=self.undecided,
            )

        return compare

    def _looks(
        self, prepared: PreparedCase, kernel: LoadedKernel, reference: LoadedKernel
    ) -> CompareLooks:
        """Of some elements of the outputs and inputs of every timed call on both sides."""
        seed, on = self.seeds[0], self._settings.on

        def compare(ours: Block, theirs: Block) -> str | None:
            if on(2) and ours.late:
                return f"outputs of {ours.late} timed calls changed after the calls had ended"
            # Where the reference itself changes them, nobody is asked to keep them.
            changed = on(43) and ours.inputs != theirs.inputs
            if changed and reference.keeps_inputs(kernel.mirror):
                return "it changed its inputs in a timed call"
            held = partial(kernel.held, ours)
            return prepared.looks_disagree(ours, theirs, seed, held, self.undecided)

        return compare


@contextmanager
def _one_thread() -> Iterator[None]:
    """The supervisor compares outputs between blocks; threads of its own would go on spinning for
    milliseconds into the block that follows."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _first_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()]
    first = (telling or lines or ["the compiler failed and printed nothing"])[0]
    # Some compilers print the place first and the error last.
    message = f"{first} {lines[-1]}" if first.endswith(":") and lines[-1] != first else first
    return message[:300]


def with_size(timing: CaseTiming, work: Work) -> CaseTiming:
    """A timing that has to be repeated says so where the case itself is too small to time: where
    little is moved and counted, and a call of the reference shows no other work."""
    if (timing.rough_baseline_us or 0.0) >= LONG_CALL_US:
        return timing
    little = too_little(work.read_bytes + work.written_bytes, work.flops)
    if not little:
        return timing
    advice = f"{little}: choose a larger case, or set timed = false. {timing.reason}"
    return replace(timing, reason=advice)


def _rejects(flags: Sequence[Flag]) -> bool:
    return any(flag.severity == "reject" for flag in flags)
