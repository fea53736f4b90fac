"""Evaluates candidates of one problem on one device. An evaluator lives long: it keeps goldens and
prepared runners between candidates, so that each costs little beyond its own work."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kb.errors import Unavailable
from kb.hardware.spec import SignatureSpec
from optimizer.evaluation.attempt import Attempt
from optimizer.evaluation.baselines import Baselines
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.candidate_processes import Departures, EvaluationContext
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.collectors.job import Collected, write_job
from optimizer.evaluation.collectors.profilers import collect_all
from optimizer.evaluation.correctness.prepared import PreparedCase, PreparedProblem
from optimizer.evaluation.diagnose import DiagnosisInputs, diagnose_evaluation
from optimizer.evaluation.isolation.device_lock import DeviceLock
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.pool import RunnerPool
from optimizer.evaluation.isolation.processors import processor
from optimizer.evaluation.isolation.runner_process import RunnerSettings
from optimizer.evaluation.journal import Journal, NoJournal
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import (
    Evaluation,
    Isolation,
    TimingState,
)
from optimizer.evaluation.roofline import Work
from optimizer.evaluation.settings import HARNESS, MIB, EvaluationSettings
from optimizer.evaluation.shared_arrays import SharedStore
from optimizer.evaluation.timing.statistics import combined
from optimizer.evaluation.toolchains.base import Target, Toolchain
from optimizer.evaluation.toolchains.command import CommandToolchain
from retrieval.diagnose.own_rules import NO_RULES, OwnRules

CACHES = ("l1_size", "l2_size", "l3_size")  # facts


def flush_bytes_of(facts: Mapping[str, float | str]) -> int:
    """The bytes to read before a timed call: twice the last-level cache of the target, or more
    than that of any chip of today. The last level is the largest that the facts name: a CPU's
    second level is one core's."""
    sizes = [size for key in CACHES if isinstance(size := facts.get(key), int | float)]
    return int(2 * max(sizes)) if sizes else 256 * MIB


def stays_on(device: str) -> bool:
    """Whether processes and memory serve for more than one candidate. Not on the CPU, where what a
    process has allocated and freed before, and in which pages arrays lie, decides up to a tenth of
    the time."""
    return device != "cpu"


@dataclass(frozen=True)
class Measured:
    """By what an evaluation is done: hardware id, kind of device, toolchain and its version, the
    fingerprint of the settings, and the processor."""

    hardware: str
    device: str
    toolchain: str
    version: str
    settings: str
    processor: str


def evaluation_key(problem: Problem, cases: Sequence[Case], bundle: Bundle, by: Measured) -> str:
    """A digest of everything that decides a result: the same key never has to be evaluated
    twice."""
    parts = (
        problem.sha256,
        *(case.name for case in cases),
        bundle.sha256,
        by.hardware,
        by.device,
        by.toolchain,
        by.version,
        by.settings,
        *([by.processor] if by.device == "cpu" else []),  # the id x86-64 means many processors
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Evaluator:
    """Evaluates candidates. It is a context manager: leaving it ends every process that it
    started."""

    def __init__(
        self,
        problem: Problem,
        target: Target,
        settings: EvaluationSettings,
        journal: Journal | None = None,
        *,
        pool: RunnerPool | None = None,
        ceilings: Ceilings | None = None,
        signatures: Sequence[SignatureSpec] = (),
        rules: OwnRules = NO_RULES,
        prepared: PreparedProblem | None = None,
        lock: DeviceLock | None = None,
    ) -> None:
        """`journal` keeps evaluations; without it nothing is kept. `pool` has runners with the same
        device, threads and isolation and may be shared with other evaluators. `ceilings` are those
        of the device with as many threads. `signatures` are error texts of the hardware's own
        tools, `rules` its own rules over its counters. `prepared` is the problem for this device
        with these settings, shared where others evaluate candidates of it too. `lock` is held while
        something is measured, by default that of the first device of this kind.

        Raises Unavailable where the isolation that the settings name cannot be had.
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
        self._folder = Path(tempfile.mkdtemp(prefix="kernlore-evaluate-"))
        pool = pool or RunnerPool(RunnerSettings(device, settings.threads, self._level))
        flush_bytes, stays = flush_bytes_of(target.facts), stays_on(device)
        # Only where the end of a process's namespace is proof that nobody maps its memory any more.
        store = SharedStore(keeps=stays or self._level == "namespaces")
        self.context = EvaluationContext(
            target=target,
            device=device,
            settings=settings,
            problem=prepared or PreparedProblem(problem, device, settings),
            pool=pool,
            baselines=Baselines(
                pool,
                settings,
                store,
                flush_bytes=flush_bytes,
                folder=self._folder,
                keeps=stays,
            ),
            store=store,
            lock=lock or DeviceLock(device),
            journal=journal or NoJournal(),
            flush_bytes=flush_bytes,
            stays=stays,
            departures=Departures(),
            ceilings=ceilings,
        )

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of its own, and remove its files."""
        self.context.baselines.close()
        with suppress(Unavailable):
            self.context.departures.settle()
        self.context.store.close()
        if self._owns_pool:
            self.context.pool.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- the problem

    def case(self, case: Case) -> PreparedCase:
        """The case with its goldens, made once."""
        return self.context.problem.case(case)

    def work(self, case: Case) -> Work:
        """What one call of the case has to do at least."""
        return self.context.problem.work(case)

    # -- evaluation

    def evaluate(
        self, bundle: Bundle, toolchain: Toolchain, cases: Sequence[Case] | None = None
    ) -> Evaluation:
        """Evaluate a candidate on `cases`, by default those that a search may see.

        What the journal has finished is not done again, unless its timing has to be repeated.
        Whatever the candidate does wrong is a result; Unavailable is raised where the toolchain or
        the device cannot be used.
        """
        chosen = tuple(cases if cases is not None else self.problem.searched)
        chosen = tuple(case for case in chosen if case.fits(self.device))
        key = self.key(bundle, toolchain, chosen)
        earlier = self.context.journal.finished(key)
        if earlier is not None and earlier.timing != "repeat":
            return earlier
        signatures = {case.name: self.case(case).open.signature for case in chosen}
        self.context.journal.begin(key, self.problem, signatures, bundle, self.device)
        workdir = Path(tempfile.mkdtemp(prefix="candidate-", dir=self._folder))
        seeds = self.context.problem.drawn_seeds()
        attempt = Attempt(self.context, key, bundle, toolchain, chosen, seeds, workdir)
        try:
            attempt.run()
            collected = self._profile(attempt)
        finally:
            if not self.context.stays:
                self.context.pool.prepare()
            shutil.rmtree(workdir, ignore_errors=True)
        evaluation = self._diagnosed(self._evaluation(attempt), chosen, collected)
        self.context.journal.finish(evaluation, self.problem)
        return evaluation

    def _profile(self, attempt: Attempt) -> list[Collected]:
        """Only of what is right, and only where it was asked for: profilers take seconds."""
        kinds = ("python", "c_abi")
        timed = [case for case in attempt.cases if case.timed]
        wanted = self.settings.profile and attempt.validity == "correct" and timed
        if not wanted or attempt.loader is None or attempt.loader.kind not in kinds:
            return []
        began = time.perf_counter()
        case = max(timed, key=lambda case: self.work(case).compulsory_bytes)
        prepared = self.case(case)
        sample = prepared.sample(attempt.seeds[0])
        folder = attempt.workdir / "profile"
        job = write_job(
            folder,
            attempt.loader,
            prepared.open,
            sample.tensors,
            device=self.device,
            threads=self.settings.threads,
        )
        with self.context.lock:
            self.context.alone()
            collected = collect_all(job)
        attempt.seconds["profile"] = time.perf_counter() - began
        return collected

    def _diagnosed(
        self, evaluation: Evaluation, cases: Sequence[Case], collected: Sequence[Collected]
    ) -> Evaluation:
        began = time.perf_counter()
        works = {case.name: self.work(case) for case in cases if case.timed}
        inputs = DiagnosisInputs(
            lineage=self.target.lineage,
            facts=self.target.facts,
            works=works if evaluation.checks else {},
            ceilings=self.context.ceilings,
            signatures=self._signatures,
            rules=self._rules,
            collected=collected,
        )
        verdict = diagnose_evaluation(evaluation, inputs)
        took = {**evaluation.seconds, "diagnose": round(time.perf_counter() - began, 4)}
        return replace(evaluation, verdict=verdict, seconds=took)

    def key(self, bundle: Bundle, toolchain: Toolchain, cases: Sequence[Case]) -> str:
        """The key of an evaluation here; see `evaluation_key`."""
        place = Measured(
            self.target.hardware,
            self.device,
            toolchain.name,
            toolchain.version(),
            self.settings.fingerprint,
            processor(),
        )
        return evaluation_key(self.problem, cases, bundle, place)

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
        apart = self._level != "process"
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
            # A figure of one case beside cases without one would be read as the whole.
            timings=tuple(t if whole else replace(t, speedup=None) for t in timings),
            speedup=combined(measured) if whole else None,
            flags=tuple(attempt.flags),
            log=attempt.log,
            metrics=attempt.metrics,
            isolation=Isolation(
                network=apart,
                user_namespace=self._level == "namespaces",
                pid_namespace=apart,
                limits=self.settings.limits(self.device),
                level="+".join((self._level, *attempt.processes.confined)),
            ),
            seconds={stage: round(took, 4) for stage, took in attempt.seconds.items()},
            notes=tuple(attempt.notes),
        )
