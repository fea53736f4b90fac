"""Honest candidates, slow and fast, in several languages: none may be flagged or rejected.

`python -m benchmarks.evaluation.honest_corpus [--small] [NAME ...]` evaluates those in
tests/exploits/honest on the shipped problems with the constants of every evaluation and, where it
runs all of them in full, writes benchmarks/results/honest_corpus.md. `--small` leaves the large
cases out. Torch candidates are checked on all cases of the CPU, C++ on
those in float32, Triton on small ones in float32 in its interpreter.

`--gpu` evaluates those in tests/exploits/honest_gpu on the GPU that is here and prints what came
out; it writes no file.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.evaluation.gpu_machine import read_logs_here
from benchmarks.report import machine
from optimizer.evaluation.bundle import read_bundle
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.exploits.proof import gpu_here
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.runner_process import RunnerPool, RunnerSettings
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.timing.measure import TimingPolicy
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.registry import toolchain_for

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "exploits" / "honest"
GPU_FOLDER = ROOT / "tests" / "exploits" / "honest_gpu"
EXPLOITED = ROOT / "optimizer" / "evaluation" / "exploits" / "problems"
RESULT = ROOT / "benchmarks" / "results" / "honest_corpus.md"
CPU = EvaluationTarget("x86-64", ("x86-64",), "native", "cpu")
GPU = EvaluationTarget(
    "h100", ("h100", "hopper", "nvidia"), "90"
)  # compiled for, checked in the interpreter
BUILTIN = {"cpp": "g++", "cuda": "nvcc", "torch": "torch", "triton": "triton-nvidia"}
SETTINGS = EvaluationSettings(timing=TimingPolicy(max_pairs=8))
_TOLD = re.compile(r"kernlore-honest: problem=(\w+)")


@dataclass(frozen=True)
class Honest:
    """A candidate of the corpus and the problem it solves."""

    path: Path
    problem: str
    language: str


def corpus(names: Collection[str] = (), folder: Path = FOLDER) -> list[Honest]:
    """All of them, or those with these names, by problem."""
    result = []
    for path in sorted(folder.iterdir()):
        report = _TOLD.search(path.read_text(encoding="utf-8")) if path.is_file() else None
        if report is not None and (not names or path.stem in names):
            result.append(Honest(path, report[1], read_bundle(path).language))
    return sorted(result, key=lambda honest: (honest.problem, honest.path.name))


def cases_for(problem: Problem, language: str, small: bool = False) -> tuple[Case, ...]:
    """The searched cases that a candidate in this language claims. small: none of the large ones;
    the first is timed instead."""
    cases = [case for case in problem.searched if case.fits("cpu")]
    if language != "torch":
        cases = [case for case in cases if case.dtype in (None, "float32")]
    if small or language == "triton":
        cases = [case for case in cases if not case.timed]
    if small:
        cases[0] = replace(cases[0], timed=True)
    return tuple(cases)


def evaluate_all(
    chosen: Sequence[Honest],
    settings: EvaluationSettings = SETTINGS,
    small: bool = False,
    most: int | None = None,
) -> Iterator[tuple[Honest, Evaluation]]:
    """One evaluator for each problem, one pool of runners for all. most: cases of each candidate,
    all without it."""
    pool = RunnerPool(RunnerSettings("cpu", settings.threads, level_for(settings.isolation)))
    evaluators: dict[tuple[str, bool], Evaluator] = {}
    try:
        for honest in chosen:
            target = GPU if honest.language == "triton" else CPU
            key = (honest.problem, target is GPU)
            if key not in evaluators:
                problem = load_problem(Path(honest.problem))
                evaluators[key] = Evaluator(problem, target, settings, pool=pool)
            evaluator = evaluators[key]
            chain = toolchain_for(honest.language, target, BUILTIN[honest.language])
            cases = cases_for(evaluator.problem, honest.language, small)[:most]
            yield honest, evaluator.evaluate(read_bundle(honest.path), chain, cases)
    finally:
        for evaluator in evaluators.values():
            evaluator.close()
        pool.close()


def evaluate_on_gpu(
    chosen: Sequence[Honest], target: EvaluationTarget, settings: EvaluationSettings = SETTINGS
) -> Iterator[tuple[Honest, Evaluation]]:
    """As `evaluate_all`, on the GPU `target`."""
    level = level_for(settings.isolation, "cuda")
    pool = RunnerPool(RunnerSettings("cuda", settings.threads, level))
    evaluators: dict[str, Evaluator] = {}
    try:
        for honest in chosen:
            if honest.problem not in evaluators:
                own = EXPLOITED / f"{honest.problem}.py"
                problem = load_problem(own if honest.problem == "gamma" else Path(honest.problem))
                evaluators[honest.problem] = Evaluator(problem, target, settings, pool=pool)
            evaluator = evaluators[honest.problem]
            chain = toolchain_for(honest.language, target, BUILTIN[honest.language])
            cases = gpu_cases(evaluator.problem, honest.language)
            if "torch.compile" in honest.path.read_text(encoding="utf-8"):
                cases = cases[:1]  # each is compiled anew, in six seconds
            yield honest, evaluator.evaluate(read_bundle(honest.path), chain, cases)
    finally:
        for evaluator in evaluators.values():
            evaluator.close()
        pool.close()


def gpu_cases(problem: Problem, language: str) -> tuple[Case, ...]:
    """Those that are not timed, and the first on any device, which is timed: calls of some
    microseconds are what clocks err about most."""
    cases = [replace(problem.searched[0], devices=("cuda",)), *problem.searched[1:]]
    cases = [case for case in cases if case is cases[0] or not case.timed]
    if language == "cuda":
        cases = [case for case in cases if case.dtype in (None, "float32")]
    return tuple(cases)


def accepted(result: Evaluation) -> bool:
    """Correct, and nothing held against it."""
    return result.correct and not result.flags


def main(arguments: Sequence[str]) -> int:
    small = "--small" in arguments
    names = [argument for argument in arguments if not argument.startswith("--")]
    rows, wrong, began = [], 0, time.monotonic()
    if "--gpu" in arguments:
        gpu = gpu_here()
        if gpu is None:
            raise SystemExit("there is no GPU here that torch can use")
        read_logs_here()
        results = evaluate_on_gpu(corpus(names, GPU_FOLDER), gpu)
    else:
        results = evaluate_all(corpus(names), small=small)
    for honest, result in results:
        fine = accepted(result)
        wrong += not fine
        report = "; ".join([result.message, *(flag.message for flag in result.flags)]).strip("; ")
        figure = str(result.speedup) if result.speedup is not None else result.timing
        checks = f"{sum(check.ok for check in result.checks)}/{len(result.checks)}"
        tightest = max((_share(result, n) for n in range(len(result.checks))), default=0.0)
        row = (honest.problem, honest.path.name, "yes" if fine else "NO", checks)
        rows.append(f"| {' | '.join(row)} | {tightest:.2f} | {figure} | {report or '-'} |")
        print(rows[-1], flush=True)
    if not arguments:
        RESULT.write_text(_report(rows, wrong, time.monotonic() - began), encoding="utf-8")
    print(f"accepted {len(rows) - wrong} of {len(rows)}")
    return 1 if wrong else 0


def _share(result: Evaluation, check: int) -> float:
    """The largest error beside what was allowed."""
    errors = result.checks[check].errors
    return max((e.worst / e.allowed for e in errors if e.allowed > 0), default=0.0)


def _report(rows: Sequence[str], wrong: int, seconds: float) -> str:
    return "\n".join(
        [
            "# Honest candidates",
            "",
            "`python -m benchmarks.evaluation.honest_corpus`: candidates that do what they are",
            "asked, well or badly. None may be flagged or rejected; the constants are those of",
            "every evaluation.",
            "",
            f"Accepted {len(rows) - wrong} of {len(rows)}, in {seconds:.0f} s. `error / bound` is "
            "the tightest of its cases; a timing of `repeat` means that the machine was busy, "
            "`none` that it is not timed here.",
            "",
            "| problem | candidate | accepted | checks | error / bound | speed-up | said |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            f"Measured {machine()}.",
            "",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
