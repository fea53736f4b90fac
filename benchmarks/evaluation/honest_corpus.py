"""Honest candidates, fast and slow, in several languages: none may be flagged or rejected.

Those in tests/exploits/honest are evaluated on the shipped problems with the settings of every
evaluation: torch candidates on all CPU cases, C++ on the float32 ones, Triton on small float32 ones
in its interpreter. `--gpu` evaluates those in tests/exploits/honest_gpu on this machine's GPU.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.evaluation.gpu_machine import read_logs_here
from benchmarks.report import say, table, write_result
from optimizer.evaluation.bundle import read_bundle
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.exploits.proof import gpu_here
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.runner_process import RunnerPool, RunnerSettings
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings, TimingPolicy
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.registry import toolchain_for

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "exploits" / "honest"
GPU_FOLDER = ROOT / "tests" / "exploits" / "honest_gpu"
EXPLOITED = ROOT / "optimizer" / "evaluation" / "exploits" / "problems"
CPU = EvaluationTarget("x86-64", ("x86-64",), "native", "cpu")
# compiled for, checked in the interpreter
GPU = EvaluationTarget("h100", ("h100", "hopper", "nvidia"), "90")
BUILTIN = {"cpp": "g++", "cuda": "nvcc", "torch": "torch", "triton": "triton-nvidia"}
SETTINGS = EvaluationSettings(timing=TimingPolicy(max_pairs=8))
HEADER = ("problem", "candidate", "accepted", "checks", "error / bound", "speed-up", "messages")
_PROBLEM_LINE = re.compile(r"kernlore-honest: problem=(\w+)")


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
        report = _PROBLEM_LINE.search(path.read_text(encoding="utf-8")) if path.is_file() else None
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="candidates by name; default: all")
    parser.add_argument("--small", action="store_true", help="leave the large cases out")
    parser.add_argument("--gpu", action="store_true", help="the GPU candidates, on the GPU here")
    parser.add_argument("--output", type=Path, help="Markdown file for the result")
    given = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    refused, began = 0, time.monotonic()
    if given.gpu:
        gpu = gpu_here()
        if gpu is None:
            raise SystemExit("there is no GPU here that torch can use")
        read_logs_here()
        results = evaluate_on_gpu(corpus(given.names, GPU_FOLDER), gpu)
    else:
        results = evaluate_all(corpus(given.names), small=given.small)
    for honest, result in results:
        fine = accepted(result)
        refused += not fine
        messages = [result.message, *(flag.message for flag in result.flags)]
        tightest = max((_share(result, n) for n in range(len(result.checks))), default=0.0)
        rows.append(
            (
                honest.problem,
                honest.path.name,
                "yes" if fine else "NO",
                f"{sum(check.ok for check in result.checks)}/{len(result.checks)}",
                f"{tightest:.2f}",
                result.speedup if result.speedup is not None else result.timing,
                "; ".join(filter(None, messages)) or "-",
            )
        )
        say(" ".join(map(str, rows[-1])))
    summary = (
        f"Accepted {len(rows) - refused} of {len(rows)}, in {time.monotonic() - began:.0f} s."
        " `error / bound` is the tightest of the candidate's cases. `repeat`: the machine was busy;"
        " `none`: not timed on this machine."
    )
    write_result(given.output, "Honest candidates", [summary, table(HEADER, rows)])
    return 1 if refused else 0


def _share(result: Evaluation, check: int) -> float:
    """The largest error as a share of its bound."""
    errors = result.checks[check].errors
    return max((e.worst / e.allowed for e in errors if e.allowed > 0), default=0.0)


if __name__ == "__main__":
    raise SystemExit(main())
