"""Checks of the harness: the reference against itself, twice the work, and the overhead of an
evaluation.

Needs torch and nothing else of Kernlore's dependencies, so that it also runs on a bare GPU machine.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.evaluation.gpu_machine import read_logs_here
from benchmarks.report import ended, say, table, write_result
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.runner_process import RunnerPool, RunnerSettings
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.runner.kernels import module_kernel
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.python import TorchPython

TITLE = "Evaluation: the harness against itself"
LOOPS = 60
DEFAULT = ("elementwise_chain", "softmax", "matmul_bias_gelu", "row_reduction")


@dataclass(frozen=True)
class Trial:
    problem: str
    kind: str
    evaluation: Evaluation
    seconds: float

    @property
    def overhead(self) -> float | None:
        """Seconds other than compiling and timed calls."""
        if not self.evaluation.timings:
            return None
        known = self.evaluation.seconds
        return self.seconds - known.get("compile", 0.0) - known.get("calls", 0.0)


def itself(problem: Problem, source: str) -> Bundle:
    """The reference as its own candidate."""
    return Bundle({"m.py": source}, "m.py", "torch", "Model")


def twice(problem: Problem, source: str) -> Bundle:
    """The same results with all of the work done a second time."""
    doubled = source + (
        "\n\nclass ModelTwice(Model):\n"
        "    def forward(self, *args):\n"
        "        super().forward(*args)\n"
        "        return super().forward(*args)\n"
    )
    return Bundle({"m.py": doubled}, "m.py", "torch", "ModelTwice")


def in_a_loop(problem: Problem, case: Case, device: str) -> float:
    """Once over twice the work in one plain loop of one process, without any harness: what doing it
    twice in a row really costs (the second time finds its data in the caches)."""
    opened = OpenCase(problem, case)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.py"
        path.write_text(opened.source, encoding="utf-8")
        call = module_kernel(
            path,
            "Model",
            init_args=opened.init_args,
            inputs=[value.to(device) for value in opened.inputs(0)],
            state={name: value.to(device) for name, value in opened.state(0).items()},
            dtype=case.dtype,
            device=device,
        ).call
    took: dict[int, list[float]] = {1: [], 2: []}
    for number in range(LOOPS):
        for times in (1, 2) if number % 2 else (2, 1):
            _wait(device)
            began = time.perf_counter()
            for _ in range(times):
                call()
            _wait(device)
            took[times].append(time.perf_counter() - began)
    return statistics.median(took[1][2:]) / statistics.median(took[2][2:])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def throughput(name: str, target: EvaluationTarget, fork: bool, count: int) -> list[Trial]:
    """One candidate after the other, each in new processes: forked ahead of time, or interpreters
    started on demand."""
    problem = load_problem(Path(name))
    settings = EvaluationSettings()
    level = level_for(settings.isolation, target.device or "cpu")
    runners = RunnerSettings("cuda" if target.device == "cuda" else "cpu", settings.threads, level)
    pool = RunnerPool(runners) if fork else RunnerPool(runners, spare=1, fork=False)
    kind = "forked" if fork else "fresh"
    trials = []
    try:
        with Evaluator(problem, target, settings, pool=pool) as evaluator:
            cases = [c for c in problem.searched if c.timed and c.fits(evaluator.device)][:1]
            source = OpenCase(problem, cases[0]).source
            for number in range(count + 1):
                began = time.perf_counter()
                evaluation = evaluator.evaluate(itself(problem, source), TorchPython(), cases)
                if number:
                    trials.append(Trial(name, kind, evaluation, time.perf_counter() - began))
    finally:
        pool.close()
    return trials


def run_problem(name: str, target: EvaluationTarget, rounds: int, doubles: int) -> list[Trial]:
    problem = load_problem(Path(name))
    trials = []
    with Evaluator(problem, target, EvaluationSettings()) as evaluator:
        cases = [c for c in problem.searched if c.timed and c.fits(evaluator.device)][:1]
        source = OpenCase(problem, cases[0]).source
        plan = [("A/A", itself)] * (rounds + 1) + [("twice", twice)] * doubles
        for number, (kind, make) in enumerate(plan):
            began = time.perf_counter()
            evaluation = evaluator.evaluate(make(problem, source), TorchPython(), cases)
            took = time.perf_counter() - began
            say(
                f"{name} {kind}: {evaluation.validity} {evaluation.timing} "
                f"{evaluation.speedup} {took:.2f} s"
            )
            if number:  # the first one makes goldens and the reference's runner
                trials.append(Trial(name, kind, evaluation, took))
    return trials


def summary(trials: Sequence[Trial]) -> list[str]:
    rows = []
    for name in dict.fromkeys(t.problem for t in trials):
        own = [t for t in trials if t.problem == name]
        for kind in ("A/A", "twice"):
            of_kind = [t for t in own if t.kind == kind]
            measured = [t.evaluation.speedup for t in of_kind if t.evaluation.speedup]
            expected = 1.0 if kind == "A/A" else 0.5
            hold = sum(i.low <= expected <= i.high for i in measured)
            values = [i.value for i in measured]
            widths = [(i.high - i.low) / 2 for i in measured]
            rows.append(
                [
                    name,
                    kind,
                    len(of_kind),
                    sum(not t.evaluation.correct for t in of_kind),
                    sum(t.evaluation.timing == "repeat" for t in of_kind),
                    f"{hold} of {len(measured)}",
                    f"{min(values):.3f} .. {max(values):.3f}" if values else "",
                    f"{statistics.median(widths):.3f}" if widths else "",
                ]
            )
    return [
        table(
            ["problem", "kind", "n", "not correct", "to repeat", "interval holds 1.0 / 0.5",
             "range", "median half-width"],
            rows,
        )
    ]  # fmt: skip


def budget(trials: Sequence[Trial]) -> list[str]:
    """Where an evaluation's time goes."""
    overheads = sorted(t.overhead for t in trials if t.overhead is not None)
    if not overheads:
        return []
    rows = []
    for stage in ("parse", "compile", "correctness", "benchmark", "diagnose"):
        rows.append([stage, f"{_median_ms(t.evaluation.seconds.get(stage, 0.0) for t in trials)}"])
    calls = _median_ms(t.evaluation.seconds.get("calls", 0.0) for t in trials)
    rows.append(["of both, in clocked calls of the two sides", calls])
    rows.append(["whole evaluation", _median_ms(t.seconds for t in trials)])
    return [
        f"Overhead of an evaluation (all but compiling and timed calls), n={len(overheads)}:"
        f" p50 {1e3 * statistics.median(overheads):.0f} ms,"
        f" p90 {1e3 * overheads[int(0.9 * (len(overheads) - 1))]:.0f} ms.",
        table(["stage", "median, ms"], rows),
    ]


def _median_ms(seconds: Iterable[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.0f}"


def rate(trials: Sequence[Trial]) -> list[str]:
    rows = []
    for kind in dict.fromkeys(t.kind for t in trials):
        took = [t.seconds for t in trials if t.kind == kind]
        rows.append([kind, len(took), f"{60 * len(took) / sum(took):.1f}"])
    return [table(["runners", "n", "candidates a minute"], rows)] if rows else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--problem", action="append", help="repeat; default four of different kind")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--twice", type=int, default=5)
    parser.add_argument("--rate", type=int, default=10, help="evaluations to find the rate with")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--hardware", default="x86-64")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    read_logs_here()
    target = EvaluationTarget(given.hardware, (given.hardware,), None, given.device)

    def run() -> None:
        trials, loops = [], []
        names = given.problem or DEFAULT
        for name in names:
            trials += run_problem(name, target, given.rounds, given.twice)
            problem = load_problem(Path(name))
            case = next(c for c in problem.searched if c.timed and c.fits(given.device))
            loops.append([name, f"{in_a_loop(problem, case, given.device):.3f}"])
        raced = [
            t for fork in (True, False) for t in throughput(names[0], target, fork, given.rate)
        ]
        command = f"`python -m benchmarks.evaluation.checks --device {given.device}`"
        looped = table(["problem", "once over twice, in a plain loop"], loops)
        report = [command, *summary(trials), looped, *budget(trials), *rate(raced)]
        write_result(given.results, TITLE, report)

    ended(run)


if __name__ == "__main__":
    main()
