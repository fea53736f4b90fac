"""Evaluates candidates of one problem on one device, from top to bottom: `Evaluator.evaluate` runs
an `Attempt` (parse -> compile -> correctness -> benchmark), profiles and diagnoses it, and stores
the result. An evaluator lives long: goldens and prepared runners serve many candidates. Never
imports candidate code.
"""

from __future__ import annotations

import ast
import hashlib
import math
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kb import telemetry
from kb.errors import Unavailable
from kb.hardware.spec import SignatureSpec
from kb.plain import from_json
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.candidate_processes import (
    Baselines,
    CandidateProcesses,
    Departures,
    EvaluationContext,
)
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.collectors.profilers import (
    Collected,
    collect_all,
    collect_lines,
    write_job,
)
from optimizer.evaluation.correctness.check import check_case, run_simulated
from optimizer.evaluation.correctness.prepared import PreparedCase, PreparedProblem
from optimizer.evaluation.diagnose import DiagnosisInputs, diagnose_evaluation
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.machine import DeviceLock, processor
from optimizer.evaluation.isolation.runner_process import (
    RunnerDied,
    RunnerForged,
    RunnerHung,
    RunnerPool,
    RunnerProcess,
    RunnerSettings,
)
from optimizer.evaluation.journal import EvaluationJournal
from optimizer.evaluation.loaded_kernel import CandidateFailed, LoadedKernel, TimedBlock, one_thread
from optimizer.evaluation.problem.check import too_little
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import (
    BRIEFLY,
    CaseCheck,
    CaseTiming,
    Evaluation,
    Flag,
    Isolation,
    Stage,
    TimingState,
    Validity,
    Violation,
)
from optimizer.evaluation.roofline import CaseWork
from optimizer.evaluation.runner.defences import Defences
from optimizer.evaluation.settings import HARNESS, MIB, EvaluationSettings, TimingPolicy
from optimizer.evaluation.shared_arrays import SharedStore
from optimizer.evaluation.timing.measure import (
    BaselineFailed,
    CompareOutputs,
    CompareSamples,
    TimedSide,
    TimingResult,
    measure,
)
from optimizer.evaluation.timing.statistics import combined
from optimizer.evaluation.toolchains.base import (
    CompileCase,
    Compiled,
    EvaluationTarget,
    Loader,
    Toolchain,
)
from optimizer.evaluation.toolchains.command import CommandToolchain
from retrieval.diagnose.rules import NO_RULES, OwnRules

MAX_LINE_PROFILES = 8  # of one evaluator; each takes seconds
CACHES = ("l1_size", "l2_size", "l3_size")  # facts


def flush_bytes_of(facts: Mapping[str, float | str]) -> int:
    """Bytes to read before a timed call: twice the last-level cache of the target, by default more
    than that of any current chip. The last level is the largest in the facts, because a CPU's
    second level is one core's."""
    sizes = [size for key in CACHES if isinstance(size := facts.get(key), int | float)]
    return int(2 * max(sizes)) if sizes else 256 * MIB


def reuses_processes(device: str) -> bool:
    """Whether processes and memory serve several candidates. Not on the CPU, where a process's
    earlier allocations and the pages of arrays decide up to a tenth of the time."""
    return device != "cpu"


@dataclass(frozen=True)
class MeasuringPlace:
    """The inputs of an evaluation other than problem and candidate: hardware id, kind of device,
    toolchain and its version, fingerprint of the settings, and processor."""

    hardware: str
    device: str
    toolchain: str
    version: str
    settings: str
    processor: str


def evaluation_key(
    problem: Problem, cases: Sequence[Case], bundle: Bundle, place: MeasuringPlace
) -> str:
    """A digest of everything that decides a result; the same key is never evaluated twice."""
    parts = (
        problem.sha256,
        *(case.name for case in cases),
        bundle.sha256,
        place.hardware,
        place.device,
        place.toolchain,
        place.version,
        place.settings,
        *([place.processor] if place.device == "cpu" else []),  # x86-64 is many processors
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Evaluator:
    """Evaluates candidates. A context manager, which ends every process that it started."""

    def __init__(
        self,
        problem: Problem,
        target: EvaluationTarget,
        settings: EvaluationSettings,
        journal: EvaluationJournal | None = None,
        *,
        pool: RunnerPool | None = None,
        ceilings: Ceilings | None = None,
        signatures: Sequence[SignatureSpec] = (),
        rules: OwnRules = NO_RULES,
        prepared: PreparedProblem | None = None,
        lock: DeviceLock | None = None,
    ) -> None:
        """`journal` stores evaluations. `pool` has runners with the same device, threads and
        isolation, and may be shared with other evaluators. `ceilings` are those of the device with
        as many threads. `signatures` are error texts of the hardware's own tools, `rules` its own
        rules over its counters. `prepared` is the problem for this device with these settings, if
        shared with other evaluators. `lock` is held during measurements, by default that of the
        first device of this kind.

        Raises Unavailable if the isolation of the settings cannot be had.
        """
        device = target.device or "cpu"
        self.problem = problem
        self.target = target
        self.settings = settings
        self.device = device
        self._level = level_for(settings.isolation, device)
        self._owns_pool = pool is None
        self._signatures = tuple(signatures)
        self._rules = rules
        self._fastest_us = math.inf
        self._sampled = 0
        self._folder = Path(tempfile.mkdtemp(prefix="kernlore-evaluate-"))
        pool = pool or RunnerPool(RunnerSettings(device, settings.threads, self._level))
        flush_bytes, reuses = flush_bytes_of(target.facts), reuses_processes(device)
        # Memory is reused only if the end of a process's namespace proves that it is unmapped.
        store = SharedStore(reuses=reuses or self._level == "namespaces")
        self.context = EvaluationContext(
            target=target,
            device=device,
            settings=settings,
            problem=prepared or PreparedProblem(problem, device, settings),
            pool=pool,
            baselines=Baselines(
                pool, settings, store, flush_bytes=flush_bytes, folder=self._folder, reuses=reuses
            ),
            store=store,
            lock=lock or DeviceLock(device),
            journal=journal or EvaluationJournal(),
            flush_bytes=flush_bytes,
            reuses=reuses,
            departures=Departures(),
            ceilings=ceilings,
        )

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End its processes, and remove its files."""
        self.context.baselines.close()
        with suppress(Unavailable):
            self.context.departures.settle()
        self.context.store.close()
        if self._owns_pool:
            self.context.pool.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def case(self, case: Case) -> PreparedCase:
        return self.context.problem.case(case)

    def work(self, case: Case) -> CaseWork:
        """The least work of one call of the case."""
        return self.context.problem.work(case)

    def key(self, bundle: Bundle, toolchain: Toolchain, cases: Sequence[Case]) -> str:
        """The key of an evaluation here; see `evaluation_key`."""
        place = MeasuringPlace(
            self.target.hardware,
            self.device,
            toolchain.name,
            toolchain.version(),
            self.settings.fingerprint,
            processor(),
        )
        return evaluation_key(self.problem, cases, bundle, place)

    def evaluate(
        self, bundle: Bundle, toolchain: Toolchain, cases: Sequence[Case] | None = None
    ) -> Evaluation:
        """Evaluate a candidate on `cases`, by default those that a search may see.

        A finished evaluation in the journal is returned, unless its timing has to be repeated. A
        failure of the candidate is a result; Unavailable is raised if the toolchain or the device
        cannot be used.
        """
        chosen = tuple(cases if cases is not None else self.problem.searched)
        chosen = tuple(case for case in chosen if case.fits(self.device))
        key = self.key(bundle, toolchain, chosen)
        earlier = self.context.journal.finished(key)
        if earlier is not None and earlier.timing != "repeat":
            return earlier
        signatures = {case.name: self.case(case).signature for case in chosen}
        self.context.journal.begin(key, self.problem, signatures, bundle, self.device)
        workdir = Path(tempfile.mkdtemp(prefix="candidate-", dir=self._folder))
        seeds = self.context.problem.drawn_seeds()
        attempt = Attempt(self.context, key, bundle, toolchain, chosen, seeds, workdir)
        try:
            attempt.run()
            collected = self._profile(attempt)
        finally:
            if not self.context.reuses:
                self.context.pool.prepare()
            shutil.rmtree(workdir, ignore_errors=True)
        evaluation = self._diagnosed(self._evaluation(attempt), chosen, collected, bundle.source)
        self.context.journal.finish(evaluation, self.problem)
        return evaluation

    def _profile(self, attempt: Attempt) -> list[Collected]:
        """Reports of profilers, which take seconds: on request, and for correct candidates."""
        kinds = ("python", "c_abi")
        timed = [case for case in attempt.cases if case.timed]
        by_line = self._is_fastest(attempt)
        wanted = (self.settings.profile or by_line) and attempt.validity == "correct" and timed
        if not wanted or attempt.loader is None or attempt.loader.kind not in kinds:
            return []
        began = time.perf_counter()
        case = self.case(max(timed, key=lambda case: self.work(case).compulsory_bytes))
        job = write_job(
            attempt.workdir / "profile",
            attempt.loader,
            case,
            case.values(attempt.seeds[0]).tensors,
            device=self.device,
            threads=self.settings.threads,
        )
        with self.context.lock:
            self.context.alone()
            collected = collect_all(job) if self.settings.profile else []
            if by_line is not None:
                collected.append(collect_lines(job, by_line))
        attempt.seconds["profile"] = time.perf_counter() - began
        return collected

    def _is_fastest(self, attempt: Attempt) -> float | None:
        """Microseconds of a call of the leading case if this candidate is to be sampled by line: it
        is the fastest so far, and fewer than MAX_LINE_PROFILES were sampled."""
        known = (t.candidate_us or t.rough_us for t in attempt.timings)
        times = [time_us for time_us in known if time_us is not None]
        whole = len(times) == len(attempt.timings) > 0
        if not whole or attempt.validity != "correct" or sum(times) >= self._fastest_us:
            return None
        self._fastest_us = sum(times)
        compiled = attempt.loader is not None and attempt.loader.kind == "c_abi"
        sampled = self.settings.lines and (compiled or self.device == "cuda")
        if not sampled or self._sampled >= MAX_LINE_PROFILES:
            return None
        self._sampled += 1
        return max(times)

    def _diagnosed(
        self,
        evaluation: Evaluation,
        cases: Sequence[Case],
        collected: Sequence[Collected],
        source: str,
    ) -> Evaluation:
        began = time.perf_counter()
        counted = self.context.problem.counted_work if evaluation.correct else self.work
        works = {case.name: counted(case) for case in cases if case.timed}
        inputs = DiagnosisInputs(
            lineage=self.target.lineage,
            facts=self.target.facts,
            works=works if evaluation.checks else {},
            ceilings=self.context.ceilings,
            signatures=self._signatures,
            rules=self._rules,
            collected=collected,
            source=source,
        )
        verdict = diagnose_evaluation(evaluation, inputs)
        took = {**evaluation.seconds, "diagnose": round(time.perf_counter() - began, 4)}
        return replace(evaluation, verdict=verdict, seconds=took)

    def _evaluation(self, attempt: Attempt) -> Evaluation:
        weights = {case.name: case.weight for case in attempt.cases}
        timings = attempt.timings
        measured = [(t.speedup, weights[t.case]) for t in timings if t.speedup is not None]
        right = attempt.validity == "correct"
        whole = right and len(measured) == len(timings) > 0
        timing: TimingState = "none"
        if timings and right:
            timing = "measured" if whole else "repeat"
            states = {t.state for t in timings}
            if "simulator" in states:
                timing = "simulator"
            elif isinstance(attempt.toolchain, CommandToolchain):
                # A program that reports no time will report none the next time either.
                timing = "measured" if states == {"measured"} else "none"
        separate = self._level != "process"
        return Evaluation(
            key=attempt.key,
            problem=self.problem.name,
            candidate=attempt.bundle.sha256,
            language=attempt.bundle.language,
            hardware=self.target.hardware,
            device=self.device,
            toolchain=f"{attempt.toolchain.name} {attempt.toolchain.version()}",
            harness=HARNESS,
            validity=attempt.validity,
            timing=timing,
            reached=attempt.reached,
            message=attempt.message,
            checks=tuple(attempt.checks),
            # A figure of one case without those of the others would be read as the whole.
            timings=tuple(t if whole else replace(t, speedup=None) for t in timings),
            speedup=combined(measured) if whole else None,
            flags=tuple(attempt.flags),
            log=attempt.log,
            metrics=attempt.metrics,
            isolation=Isolation(
                network=separate,
                user_namespace=self._level == "namespaces",
                pid_namespace=separate,
                limits=self.settings.limits(self.device),
                level="+".join((self._level, *attempt.processes.confined)),
            ),
            seconds={stage: round(took, 4) for stage, took in attempt.seconds.items()},
            notes=(*attempt.notes, *_interface_notes(attempt.bundle, attempt.validity)),
        )


FOREIGN_INTERFACE = (
    'the source does not use `kernlore_tensor`: the harness calls `extern "C" int NAME(const'
    " kernlore_tensor *tensors, const kernlore_counts *counts)` of `kernlore_abi.h`, with the"
    " inputs, then the parameters, then the outputs; other arguments are read as garbage"
)


def _interface_notes(bundle: Bundle, validity: Validity) -> Iterator[str]:
    """The interface, for a C function that failed and has another one."""
    text = "\n".join(bundle.files.values())
    of_harness = "kernlore_tensor" in text or "torch/" in text
    failed = validity in ("not_compiled", "crashed") and bundle.language in ("cpp", "cuda")
    if failed and not of_harness:
        yield FOREIGN_INTERFACE


# -- one attempt

UNVARIED = "not tested whether it reads {}: the same values in every call (see problem check)"
LONG_CALL_US = 1000.0  # ten times what moving too few bytes to time takes on two cores
UNDECIDED = (
    "{output}: {count} of the compared elements differ from the reference's and are right by"
    " another rounding of it (values at the edge of a comparison)"
)
NOT_CHECKED = (
    "not checked: Triton's interpreter is wrong in bfloat16, the dtype of every case; evaluate it"
    " where its device is, or add a case in float32"
)
# Failures of a call that are no crash.
ENDED_BY: Mapping[str, Validity] = {"refused": "incorrect", "unsupported": "unsupported"}
CHANCE = random.SystemRandom()  # unpredictable


@dataclass
class Attempt:
    """One candidate's evaluation in progress, each stage only if the previous one succeeded.

    `key` is the evaluation's, `seeds` are those of the values that the candidate is checked with.
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
    checking: Sequence[Case] | None = None  # the case that is checked, after those that passed
    loader: Loader | None = None
    processes: CandidateProcesses = field(init=False)

    def __post_init__(self) -> None:
        self.processes = CandidateProcesses(self.context, seed=self.seeds[0], workdir=self.workdir)

    def run(self) -> None:
        """Run all stages, or up to the first that decides the outcome. Raises Unavailable if the
        toolchain cannot compile here or the device has no memory left."""
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
            self._check_and_time(compiled.loader)
        finally:
            self._leave_processes()

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

    @property
    def _defences(self) -> Defences:
        return self.context.settings.defences

    # -- parse and compile

    def _parse(self) -> None:
        try:
            flags = source_flags(self.bundle, self._defences)
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
        cases = tuple(self._compile_case(case) for case in self.cases)
        with self._preparing_cases():
            compiled = self.toolchain.compile(self.bundle, self.context.target, self.workdir, cases)
        self.metrics |= compiled.metrics
        self.notes += compiled.notes
        self.log = compiled.log
        if compiled.timed_out:
            self._end("timed_out", "the compiler did not end within its deadline", compiled.log)
        elif not compiled.ok:
            self._end("not_compiled", _first_error(compiled.log), compiled.log)
        return compiled

    @contextmanager
    def _preparing_cases(self) -> Iterator[None]:
        """Draw values and compute goldens meanwhile in another thread: on a GPU both leave the
        processors to the compiler. The timed cases come last, as they are checked."""
        if not self.context.reuses or isinstance(self.toolchain, CommandToolchain):
            yield
            return
        with ThreadPoolExecutor(1) as background:
            number = torch.cuda.current_device() if torch.cuda.is_available() else -1
            coming = background.submit(self._prepare_cases, number)
            yield
            coming.result()

    def _prepare_cases(self, number: int) -> None:
        problem = self.context.problem
        with torch.cuda.device(number):
            for case in sorted(self.cases, key=lambda case: case.timed):
                for seed in self.seeds:
                    problem.case(case).values(seed)
                with self.context.lock.if_free() as free:
                    if free:  # else another process measures on the device
                        problem.case(case).expected(self.seeds[0])

    def _compile_case(self, case: Case) -> CompileCase:
        opened = self.context.problem.case(case)
        scalars = {}
        if any(opened.scalars):  # drawing large values takes long
            inputs = zip(opened.input_names, opened.scalars, opened.inputs(0), strict=True)
            scalars = {name: value.item() for name, scalar, value in inputs if scalar}
        return CompileCase(
            opened.signature,
            None if opened.init_source else opened.init_args,
            case.dtype,
            scalars,
            opened.init_source,
            opened.gradients,
        )

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

    # -- correctness

    def _check_and_time(self, loader: Loader) -> None:
        """Correctness and timing; a crash of the candidate's process becomes a verdict."""
        try:
            if self.context.reuses:
                self._in_one_process(loader)
            else:
                self._in_fresh_processes(loader)
        except CandidateFailed as failed:
            kind: Validity = ENDED_BY.get(failed.kind, "crashed")
            if loader.kind == "interpreter" and _beyond_interpreter(failed):
                kind = "not_run"
                failed.message = (
                    "not checked: it calls a device library, which Triton's interpreter does not"
                    f" have ({failed.message}); evaluate it where its device is"
                )
            if kind == "incorrect":  # the reference's outputs would be too, if shapes are not fixed
                for case in self.cases:
                    self.context.problem.case(case).expected(self.seeds[0])
            self._end_in_case(kind, failed.message, failed.log)
        except RunnerHung as hung:
            self._end_in_case("timed_out", str(hung), hung.log)
        except RunnerForged as forged:
            self._reject_forged(forged)
        except RunnerDied as died:
            self._end_in_case("crashed", str(died), died.log)

    def _end_in_case(self, validity: Validity, message: str, log: str) -> None:
        """End in the case that is checked, if any: the message names it, its arrays, and the cases
        before it."""
        if self.checking is None:
            self._end(validity, message, log)
            return
        *passed, now = self.checking
        if validity != "not_run":
            self.checks.append(CaseCheck(now.name, self.seeds[0], False, (), message))
        tensors = self.context.problem.case(now).signature.of("input")
        arrays = ", ".join(f"{t.dtype} {list(t.shape)}" for t in tensors)
        before = f" after {', '.join(case.name for case in passed)}" if passed else ""
        self._end(validity, f"{message}, in case {now.name} ({arrays}){before}", log)

    def _in_fresh_processes(self, loader: Loader) -> None:
        """Time both sides in fresh processes."""
        if loader.compiles:
            self.context.pool.import_compiler()
        with self._stage("correctness"), self.processes.runner() as runner:
            self._check(runner, loader)
        if self._to_be_timed(loader):
            with self._stage("benchmark"), self.context.lock, one_thread():
                self._benchmark(loader, None)

    def _in_one_process(self, loader: Loader) -> None:
        """The candidate is timed in the process that checked it, which has its arrays. The device
        is locked for both, because checking uses it too."""
        for case in self.cases:
            for seed in self.seeds:  # drawing values does not use the device
                self.context.problem.case(case).values(seed)
        with self.context.lock, self.processes.runner() as runner:
            self.processes.check_room(self.cases)
            timed = next((case for case in self.cases if case.timed), None)
            if timed is not None and loader.kind != "interpreter":
                self.processes.begin_baseline(timed)
            self.context.pool.prepare()  # the runner of the next candidate
            with self._stage("correctness"):
                self._check(runner, loader)
            self.context.pool.settle()
            if self._to_be_timed(loader):
                self.context.alone()
                with self._stage("benchmark"):
                    self._benchmark(loader, runner)

    def _check(self, runner: RunnerProcess, loader: Loader) -> None:
        done: Mapping[str, Any] = self.context.journal.left(self.key).get("correctness") or {}
        if done:
            self.checks = [from_json(CaseCheck, row) for row in done["checks"]]
            self.notes.append("checked by an evaluation that was interrupted later")
            self.validity = "correct"
            return
        # Small cases first, in which a wrong candidate costs least.
        checkable = self._checkable(loader)
        if not checkable:
            self._end("not_run", NOT_CHECKED)
            return
        for case in sorted(checkable, key=lambda case: case.timed):
            prepared = self.context.problem.case(case)
            self.checking = [*(self.checking or ()), case]
            kernel = self.processes.load(runner, loader, case)
            try:
                result = check_case(prepared, kernel, self.seeds, self._settings)
            finally:
                self.processes.leave(case, kernel)
            if prepared.unvaried:
                self.notes.append(UNVARIED.format(", ".join(prepared.unvaried)))
            self.checks += result.checks
            self.flags += result.flags
            for error in (error for check in result.checks for error in check.errors):
                self.undecided[error.output] += error.undecided
            if result.message:
                self._end("rejected" if result.flags else "incorrect", result.message)
                return
        self.checking = None
        self.validity = "correct"
        left = {"checks": [asdict(check) for check in self.checks]}
        self.context.journal.stage(self.key, "correctness", left)

    def _checkable(self, loader: Loader) -> list[Case]:
        """Triton's interpreter computes bfloat16 wrongly (errors of 1e10 were seen), so such cases
        are not checked in it."""
        cases = list(self.cases if self._defences.check_all_cases else self.cases[:1])
        if loader.kind != "interpreter":
            return cases
        return [case for case in cases if not self._in_bfloat16(case)]

    def _in_bfloat16(self, case: Case) -> bool:
        signature = self.context.problem.case(case).signature
        return any(tensor.dtype == "bfloat16" for tensor in signature.tensors)

    def _reject_forged(self, forged: RunnerForged) -> None:
        if not self._defences.authenticate_results and isinstance(forged.content, dict):
            # Without this defence the content of the channel is trusted.
            validity = forged.content.get("validity", "crashed")
            self._end(validity, "as written into the channel", forged.log)
            return
        message = f"it wrote into the result channel: {forged}"
        self.flags.append(Flag(Violation.FORGED_RESULT, "reject", message))
        self._end("rejected", "it wrote into the result channel", forged.log)

    def _leave_processes(self) -> None:
        processes = self.processes
        if not processes.leave_ending():
            message = "it left processes that could not be ended"
            self.flags.append(Flag(Violation.BACKGROUND_WORK, "reject", message))
        self.seconds["calls"] = processes.called_ns / 1e9
        self.notes += [UNDECIDED.format(count=n, output=o) for o, n in self.undecided.items() if n]
        self.notes = list(dict.fromkeys([*self.notes, *processes.notes]))

    # -- benchmark

    def _to_be_timed(self, loader: Loader) -> bool:
        if self.ended and self.validity != "correct":
            return False
        if loader.kind == "interpreter":
            self.notes.append("checked in Triton's interpreter; not timed")
            return False
        return any(case.timed for case in self.cases)

    def _benchmark(self, loader: Loader, runner: RunnerProcess | None) -> None:
        """`runner` is the candidate's, if it is timed in the process that checked it."""
        if self._settings.brief and any(case.timed for case in self.cases):
            self.notes.append(BRIEFLY)
        for case in self.cases:
            if case.timed and self.validity == "correct":
                result = self._timed(loader, case, runner)
                if result.doubtful:
                    # Hidden work is in both measurements, a delay of the machine in one only.
                    reasons = "; ".join(flag.message for flag in result.flags)
                    self.notes.append(f"timed twice: at first {reasons}")
                    result = self._timed(loader, case, runner)
                self._record_timing(case, result)

    def _timed(self, loader: Loader, case: Case, runner: RunnerProcess | None) -> TimingResult:
        if runner is not None:
            return self._time(runner, loader, case)
        with self.processes.runner() as fresh:
            return self._time(fresh, loader, case)

    def _time(self, runner: RunnerProcess, loader: Loader, case: Case) -> TimingResult:
        prepared = self.context.problem.case(case)
        try:
            with self.processes.both(runner, loader, case) as (baseline, kernel):
                return measure(
                    case.name,
                    baseline=baseline,
                    candidate=TimedSide("candidate", runner, kernel),
                    policy=self._timing_policy,
                    compare=self._compare_outputs(prepared, kernel),
                    compare_samples=self._compare_samples(prepared, kernel, baseline.kernel),
                    seed=CHANCE.getrandbits(30),
                    defences=self._defences,
                )
        except BaselineFailed as failed:
            reason = f"timing must be repeated: the reference's process failed ({failed})"
            return TimingResult(CaseTiming(case.name, "repeat", reason=reason))

    @property
    def _timing_policy(self) -> TimingPolicy:
        return self._settings.timing.for_device(self.context.device, self._settings.threads)

    def _compare_outputs(self, prepared: PreparedCase, kernel: LoadedKernel) -> CompareOutputs:
        """Compares both sides' outputs of a timed call."""

        def compare(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> str | None:
            if not self._defences.compare_blocks:
                return None
            return prepared.disagreement(
                candidate=ours,
                baseline=theirs,
                tensors=lambda: kernel.mirror.tensors,
                seed=self.seeds[0],
                undecided=self.undecided,
            )

        return compare

    def _compare_samples(
        self, prepared: PreparedCase, kernel: LoadedKernel, reference: LoadedKernel
    ) -> CompareSamples:
        """Compares sampled outputs and inputs of every timed call."""
        defences = self._defences

        def compare(ours: TimedBlock, theirs: TimedBlock) -> str | None:
            if defences.reject_background_work and ours.changed_late:
                late = ours.changed_late
                return f"outputs of {late} timed calls changed after the calls had ended"
            # A candidate may change inputs that the reference changes.
            changed = defences.sample_inputs and ours.inputs != theirs.inputs
            if changed and reference.preserves_inputs(kernel.mirror):
                return "it changed its inputs in a timed call"
            held = partial(kernel.held, ours)
            return prepared.samples_disagree(ours, theirs, self.seeds[0], held, self.undecided)

        return compare

    def _record_timing(self, case: Case, result: TimingResult) -> None:
        problem = self.context.problem
        impossible = problem.impossible_times(case, result.timing, self.context.ceilings)
        flags = [*result.flags, *impossible]
        rejected = [flag for flag in flags if flag.severity == "reject"]
        self.flags += flags
        timing = result.timing
        if timing.state == "repeat":
            timing = with_size(timing, problem.work(case))
        self.timings.append(timing)
        if result.mismatch:
            self._end("incorrect", result.mismatch)
        elif rejected:
            self._end("rejected", rejected[0].message)


def _beyond_interpreter(failed: CandidateFailed) -> bool:
    """Whether the interpreter failed in a call of a device's library: of those, such as libdevice,
    it has no code, and its calls return None."""
    return "InterpreterError" in failed.message and "libdevice" in failed.log


def _first_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    first = (errors or lines or ["the compiler failed and printed nothing"])[0]
    # Some compilers print the position first and the error last.
    message = f"{first} {lines[-1]}" if first.endswith(":") and lines[-1] != first else first
    return message[:300]


def with_size(timing: CaseTiming, work: CaseWork) -> CaseTiming:
    """A timing that has to be repeated, with advice if the case is too small to time: it moves and
    computes little, and a call of the reference shows no other work."""
    if (timing.rough_baseline_us or 0.0) >= LONG_CALL_US:
        return timing
    little = too_little(work.read_bytes + work.written_bytes, work.flops)
    if not little:
        return timing
    advice = f"{timing.reason}. Also, {little}: choose a larger case, or set timed = false"
    return replace(timing, reason=advice)


# -- rules for sources
#
# Only constructs without an honest use in a kernel are refused; the run-time checks see the rest.

_FRAMES = {"_getframe", "currentframe", "get_objects", "get_referrers", "settrace", "setprofile"}
_PROCESS = {"ptrace", "process_vm_readv", "process_vm_writev"}
_MODEL = "Model"


class SourceUnreadable(Exception):
    """The file does not parse; the message has line and column."""


def source_flags(bundle: Bundle, defences: Defences | None = None) -> list[Flag]:
    """Flags of every Python file of the bundle, from its syntax tree. Raises SourceUnreadable for a
    file that does not parse."""
    defences = defences or Defences()
    forbidden = {
        Violation.INTROSPECTION: defences.forbid_introspection,
        Violation.HIDDEN_TIME: defences.forbid_process_access,
        Violation.FALLBACK: defences.forbid_fallback,
    }
    return [
        Flag(kind, "reject", f"{name}:{line} {message}")
        for name, text in bundle.files.items()
        if name.endswith(".py")
        for kind, line, message in _violations(name, text, bundle.entry)
        if forbidden[kind]
    ]


def _violations(name: str, text: str, entry: str) -> Iterator[tuple[Violation, int, str]]:
    try:
        tree = ast.parse(text, filename=name)
    except (SyntaxError, ValueError) as problem:
        raise SourceUnreadable(f"{name}: {problem}") from problem
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _FRAMES:
            yield Violation.INTROSPECTION, node.lineno, "looks into other frames or objects"
        if isinstance(node, ast.Name | ast.Attribute) and _identifier(node) in _PROCESS:
            yield Violation.HIDDEN_TIME, node.lineno, "reaches into other processes"
        if isinstance(node, ast.Try) and any(_falls_back(handler) for handler in node.handlers):
            yield Violation.FALLBACK, node.lineno, "falls back when its own kernel fails"
        if isinstance(node, ast.ClassDef) and node.name == entry and _only_inherits(node):
            yield Violation.FALLBACK, node.lineno, f"{entry} only inherits the reference"


def _identifier(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _falls_back(handler: ast.ExceptHandler) -> bool:
    """Whether a handler computes with torch instead of raising."""
    if any(isinstance(node, ast.Raise) for node in ast.walk(handler)):
        return False
    for node in ast.walk(handler):
        if isinstance(node, ast.Call):
            base: ast.expr = node.func
            while isinstance(base, ast.Attribute):
                base = base.value
            if isinstance(base, ast.Name) and base.id in {"torch", "F", "nn", "super", _MODEL}:
                return True
    return False


def _only_inherits(node: ast.ClassDef) -> bool:
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    return _MODEL in bases and "forward" not in methods
