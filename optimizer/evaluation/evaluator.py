"""One candidate from source to verdict: parse, compile, correctness, benchmark, in that order, each
stage only if the one before it went well.

Long-lived: keeps the reference's runner, goldens and a spare runner between candidates. Never
imports candidate code.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from kb.errors import Unavailable
from optimizer.bundle import Bundle
from optimizer.evaluation.correctness import check_case
from optimizer.evaluation.prepared import PreparedCase
from optimizer.evaluation.records import (
    CaseCheck,
    CaseTiming,
    Evaluation,
    Flag,
    Isolation,
    Stage,
    TimingState,
    Validity,
)
from optimizer.evaluation.settings import HARNESS, MIB, EvaluationSettings
from optimizer.evaluation.source_rules import SourceUnreadable, source_flags
from optimizer.evaluation.statistics import combined
from optimizer.evaluation.subject import LoadedSubject, SubjectFailed
from optimizer.evaluation.timing import Side, measure
from optimizer.isolation.device_lock import DeviceLock
from optimizer.isolation.levels import level_for
from optimizer.isolation.pool import RunnerPool
from optimizer.isolation.runner_process import (
    RunnerDied,
    RunnerForged,
    RunnerHung,
    RunnerProcess,
    RunnerSettings,
)
from optimizer.problem.spec import Case, Problem
from optimizer.problem.tensors import open_case
from optimizer.toolchains.base import Compiled, Loader, Target, Toolchain


@dataclass
class _Draft:
    """What is known so far."""

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
    confined: tuple[str, ...] = ()

    def end(self, validity: Validity, message: str, log: str = "") -> None:
        self.validity, self.message = validity, message
        self.log = log or self.log

    @property
    def ended(self) -> bool:
        return self.validity != "not_run"

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        self.reached = stage
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = time.perf_counter() - began


class Evaluator:
    """Evaluates candidates of one problem on one device."""

    def __init__(self, problem: Problem, target: Target, settings: EvaluationSettings) -> None:
        self.problem = problem
        self.target = target
        self.settings = settings
        self._device = target.device or "cpu"
        self._level = level_for(settings.isolation)
        self._pool = RunnerPool(RunnerSettings(self._device, settings.threads, self._level))
        self._cases: dict[str, PreparedCase] = {}
        self._baselines: dict[str, Side] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="kernlore-evaluate-"))
        # Drawn anew for every evaluator, so that nothing stored from an earlier one is of use; few,
        # so that goldens are computed once.
        self._chance = random.SystemRandom()
        self._seeds = [self._chance.getrandbits(24) for _ in range(settings.seeds + 1)]
        self._lock = DeviceLock(self._device)

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process."""
        for side in self._baselines.values():
            side.runner.end()
            side.subject.close()
        self._baselines.clear()
        self._pool.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def case(self, case: Case) -> PreparedCase:
        """The case with its goldens, made once."""
        if case.name not in self._cases:
            opened = open_case(self.problem, case)
            self._cases[case.name] = PreparedCase(opened, self._device)
        return self._cases[case.name]

    def evaluate(
        self,
        bundle: Bundle,
        toolchain: Toolchain,
        cases: Sequence[Case] | None = None,
    ) -> Evaluation:
        """cases: the searched ones by default."""
        chosen = tuple(cases if cases is not None else self.problem.searched)
        chosen = tuple(case for case in chosen if case.fits(self._device))
        seeds = self._chance.sample(self._seeds, self.settings.seeds)
        draft = _Draft()
        workdir = Path(tempfile.mkdtemp(prefix="candidate-", dir=self._folder))
        try:
            self._run(draft, bundle, toolchain, chosen, seeds, workdir)
        finally:
            shutil.rmtree(workdir, ignore_errors=True)
        return self._evaluation(draft, bundle, toolchain, chosen)

    # -- stages

    def _run(
        self,
        draft: _Draft,
        bundle: Bundle,
        toolchain: Toolchain,
        cases: Sequence[Case],
        seeds: Sequence[int],
        workdir: Path,
    ) -> None:
        with draft.stage("parse"):
            self._parse(draft, bundle)
        if draft.ended:
            return
        runner = self._pool.take()
        try:
            with draft.stage("compile"):
                compiled = self._compile(draft, bundle, toolchain, cases, workdir)
            if draft.ended or compiled.loader is None:
                return
            self._guarded(draft, runner, compiled.loader, cases, seeds)
        finally:
            if not runner.end():
                draft.flags.append(Flag(2, "reject", "it left processes that could not be ended"))
            self._pool.prepare()

    def _parse(self, draft: _Draft, bundle: Bundle) -> None:
        try:
            found = [f for f in source_flags(bundle) if self.settings.on(f.defence)]
        except SourceUnreadable as problem:
            draft.end("not_compiled", str(problem), log=str(problem))
            return
        draft.flags += found
        if found:
            draft.end("rejected", found[0].message)

    def _compile(
        self,
        draft: _Draft,
        bundle: Bundle,
        toolchain: Toolchain,
        cases: Sequence[Case],
        workdir: Path,
    ) -> Compiled:
        available = toolchain.available(self.target)
        if not available.ok:
            raise Unavailable(available.reason, hint=available.hint)
        signatures = tuple(self.case(case).open.signature for case in cases)
        compiled = toolchain.compile(bundle, self.target, workdir, signatures)
        draft.metrics |= compiled.metrics
        draft.notes += compiled.notes
        draft.log = compiled.log
        if compiled.timed_out:
            draft.end("timed_out", "the compiler did not end within its deadline", compiled.log)
        elif not compiled.ok:
            draft.end("not_compiled", _first_error(compiled.log), compiled.log)
        return compiled

    def _guarded(
        self,
        draft: _Draft,
        runner: RunnerProcess,
        loader: Loader,
        cases: Sequence[Case],
        seeds: Sequence[int],
    ) -> None:
        """Correctness and timing; whatever the candidate does to its process is a verdict."""
        try:
            self._measure(draft, runner, loader, cases, seeds)
        except SubjectFailed as failed:
            kind: Validity = "incorrect" if failed.kind == "refused" else "crashed"
            draft.end(kind, failed.message, failed.log)
        except RunnerHung as hung:
            draft.end("timed_out", str(hung), runner.log)
        except RunnerForged as forged:
            draft.flags.append(Flag(12, "reject", f"it wrote into the result channel: {forged}"))
            draft.end("rejected", "it wrote into the result channel", runner.log)
        except RunnerDied as died:
            draft.end("crashed", str(died), died.log)

    def _measure(
        self,
        draft: _Draft,
        runner: RunnerProcess,
        loader: Loader,
        cases: Sequence[Case],
        seeds: Sequence[int],
    ) -> None:
        with draft.stage("correctness"):
            timed = [case for case in cases if case.timed]
            # Timed cases last: their arrays stay loaded for the benchmark.
            for case in sorted(cases, key=lambda case: case.timed):
                subject = self._load(draft, runner, loader, case, seeds[0])
                try:
                    found = check_case(self.case(case), subject, seeds, self.settings)
                finally:
                    subject.close()
                draft.checks += found.checks
                draft.flags += found.flags
                if found.message:
                    draft.end("rejected" if found.flags else "incorrect", found.message)
                    return
            draft.validity = "correct"
        if loader.kind == "interpreter":
            draft.notes.append("checked in Triton's interpreter; not timed")
            return
        with draft.stage("benchmark"), self._lock:
            for case in timed:
                self._time(draft, runner, loader, case, seeds[0])

    def _load(
        self, draft: _Draft, runner: RunnerProcess, loader: Loader, case: Case, seed: int
    ) -> LoadedSubject:
        prepared = self.case(case)
        subject = LoadedSubject(runner, prepared.open, prepared.sample(seed))
        told = subject.load(
            loader,
            limits=self.settings.limits(self._device),
            flush_bytes=self._flush_bytes,
            seconds=self.settings.load_seconds,
        )
        draft.confined = tuple(told["confined"])
        draft.notes += [note for note in told["notes"] if note not in draft.notes]
        return subject

    def _time(
        self, draft: _Draft, runner: RunnerProcess, loader: Loader, case: Case, seed: int
    ) -> None:
        prepared = self.case(case)
        subject = self._load(draft, runner, loader, case, seed)
        baseline = self._baseline(case, seed)
        try:
            measured = measure(
                case.name,
                baseline,
                Side("candidate", runner, subject),
                self.settings.timing,
                lambda ours, theirs: prepared.disagreement(
                    ours, theirs, subject.mirror.tensors, seed
                ),
                self._chance.getrandbits(30),
            )
        finally:
            subject.close()
        flags = [f for f in measured.flags if self.settings.on(f.defence)]
        draft.flags += flags
        if measured.mismatch and self.settings.on(8):
            draft.end("incorrect", measured.mismatch)
        elif any(flag.severity == "reject" for flag in flags):
            draft.end("rejected", flags[0].message)
        draft.timings.append(measured.timing)

    def _baseline(self, case: Case, seed: int) -> Side:
        """The reference in its own process, kept for the next candidate."""
        prepared = self.case(case)
        side = self._baselines.get(case.name)
        if side is None:
            runner = self._pool.take()
            subject = LoadedSubject(runner, prepared.open, prepared.sample(seed))
            path = (
                self._folder / f"reference_{hashlib.sha256(case.name.encode()).hexdigest()[:8]}.py"
            )
            path.write_text(prepared.open.source, encoding="utf-8")
            subject.load(
                Loader("python", path, "Model"),
                limits={},
                flush_bytes=self._flush_bytes,
                seconds=self.settings.load_seconds,
            )
            side = self._baselines[case.name] = Side("baseline", runner, subject)
        else:
            side.runner.wake()
            side.subject.renew(prepared.sample(seed), self.settings.call_seconds)
        side.blocks.clear()
        return side

    @property
    def _flush_bytes(self) -> int:
        """Twice the last-level cache of the target, or 256 MiB where it is not known."""
        size = self.target.facts.get("l2_size")
        return int(2 * size) if isinstance(size, int | float) else 256 * MIB

    # -- the record

    def _evaluation(
        self, draft: _Draft, bundle: Bundle, toolchain: Toolchain, cases: Sequence[Case]
    ) -> Evaluation:
        ended = draft.validity if draft.validity != "not_run" or not draft.checks else "correct"
        weights = {case.name: case.weight for case in cases}
        measured = [(t.speedup, weights[t.case]) for t in draft.timings if t.speedup is not None]
        whole = len(measured) == len(draft.timings) > 0 and ended == "correct"
        state: TimingState = "none"
        if draft.timings and ended == "correct":
            state = "measured" if whole else "repeat"
        return Evaluation(
            key=self.key(bundle, toolchain, cases),
            problem=self.problem.name,
            candidate=bundle.sha256,
            language=bundle.language,
            hardware=self.target.hardware,
            device=self._device,
            toolchain=f"{toolchain.name} {toolchain.version()}",
            harness=HARNESS,
            validity=ended,
            timing=state,
            reached=draft.reached,
            message=draft.message,
            checks=tuple(draft.checks),
            timings=tuple(t if whole else replace(t, speedup=None) for t in draft.timings),
            speedup=combined(measured) if whole else None,
            flags=tuple(draft.flags),
            log=draft.log,
            metrics=draft.metrics,
            isolation=self._isolation(draft),
            seconds={stage: round(took, 4) for stage, took in draft.seconds.items()},
            notes=tuple(draft.notes),
        )

    def key(self, bundle: Bundle, toolchain: Toolchain, cases: Sequence[Case]) -> str:
        """What decides a result: the same key never has to be evaluated twice."""
        told = (
            self.problem.sha256,
            *(case.name for case in cases),
            bundle.sha256,
            self.target.hardware,
            self._device,
            toolchain.name,
            toolchain.version(),
            self.settings.fingerprint,
        )
        return hashlib.sha256("\0".join(told).encode()).hexdigest()

    def _isolation(self, draft: _Draft) -> Isolation:
        own = self._level == "namespaces"
        return Isolation(
            network=own,
            user_namespace=own,
            pid_namespace=own,
            limits=self.settings.limits(self._device),
            level="+".join((self._level, *draft.confined)),
        )


def _first_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()]
    return (telling or lines or ["the compiler failed and said nothing"])[0][:300]
