"""Where the time of one evaluation goes: supervisor and runners, in wall and processor time.

`python -m benchmarks.evaluation.costs --problem softmax [--constants rows=2048] [--device cuda]`
evaluates the reference against itself. On a busy machine only processor time means something.
Needs torch and nothing else of Kernlore's dependencies.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.evaluation.checks import itself, twice
from benchmarks.evaluation.gpu_machine import read_logs_here
from benchmarks.report import ended, machine, say, table
from optimizer.evaluation import evaluator as attempt
from optimizer.evaluation import loaded_kernel
from optimizer.evaluation.candidate_processes import CandidateProcesses, EvaluationContext
from optimizer.evaluation.correctness import check as comparison
from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.evaluator import Attempt, Evaluator
from optimizer.evaluation.isolation.runner_process import RunnerPool, RunnerProcess
from optimizer.evaluation.loaded_kernel import LoadedKernel, TimedBlock
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.python import TorchPython

WATCHED: tuple[tuple[Any, str, str], ...] = (
    (Attempt, "_parse", "source rules"),
    (Attempt, "_compile", "compile"),
    (RunnerPool, "take", "taking a runner"),
    (LoadedKernel, "__init__", "shared memory, inputs into it"),
    (LoadedKernel, "load", "load: until the runner has set up the kernel"),
    (LoadedKernel, "renew", "other values: until the runner has them"),
    (LoadedKernel, "call", "calls to be checked"),
    (LoadedKernel, "inputs_changed", "inputs compared after a call"),
    (LoadedKernel, "block", "blocks: until the runner has answered"),
    (LoadedKernel, "_poison", "patterns into outputs"),
    (PreparedCase, "values", "drawing values"),
    (PreparedCase, "expected", "goldens and bounds"),
    (PreparedCase, "errors", "outputs against goldens"),
    (PreparedCase, "disagreement", "outputs of a block against each other"),
    (PreparedCase, "samples_disagree", "sampled elements against each other"),
    (comparison, "same_bits", "a second call against the first, bit by bit"),
    (loaded_kernel, "same_bits", "inputs, bit by bit"),
    (CandidateProcesses, "settle", "waiting until runners are gone"),
    (EvaluationContext, "alone", "waiting until those of the candidate before are gone"),
    (RunnerProcess, "wake", "waking a runner"),
    (RunnerProcess, "pause", "stopping a runner"),
    (RunnerProcess, "grant", "blocks: tokens and samples"),
    (attempt, "measure", "the rest of timing"),
    (Evaluator, "_diagnosed", "diagnosis"),
    (Evaluator, "evaluate", "the rest"),
)


@dataclass
class Spent:
    """Of one evaluation: seconds by the clock, processor seconds of the thread, and times, of each
    part without its parts; and the blocks."""

    wall: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    worked: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    times: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    blocks: list[TimedBlock] = field(default_factory=list)
    total: float = 0.0
    beyond: float = 0.0
    process: float = 0.0
    speedup: str = ""


class Watch:
    """Wraps the functions that are watched, in this process."""

    def __init__(self) -> None:
        self.spent = Spent()
        self._stacks = threading.local()
        for holder, name, label in WATCHED:
            setattr(holder, name, self._wrapped(getattr(holder, name), label))

    def _wrapped(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            stack = self._stacks.__dict__.setdefault("open", [])
            stack.append([0.0, 0.0])
            began, worked = time.perf_counter(), time.thread_time()
            try:
                result = function(*args, **kwargs)
            finally:
                took, work = time.perf_counter() - began, time.thread_time() - worked
                inner = stack.pop()
                if stack:
                    stack[-1][0] += took
                    stack[-1][1] += work
                main = threading.current_thread() is threading.main_thread()
                shown = label if main else f"beside it: {label}"
                self.spent.wall[shown] += took - inner[0]
                self.spent.worked[shown] += work - inner[1]
                self.spent.times[shown] += 1
            if isinstance(result, TimedBlock):
                self.spent.blocks.append(result)
            return result

        return watched


def constants(pairs: Sequence[str]) -> dict[str, int]:
    """`rows=2048` and the like."""
    return {name: int(value) for name, _, value in (pair.partition("=") for pair in pairs)}


def chosen_problem(name: str, device: str, changed: dict[str, int]) -> Problem:
    """The problem with its first timed case for the device, whose constants are changed."""
    problem = load_problem(Path(name))
    case = next(c for c in problem.searched if c.timed and c.fits(device))
    return replace(problem, cases=(replace(case, constants={**case.constants, **changed}),))


def measured(problem: Problem, target: EvaluationTarget, count: int, kind: str) -> list[Spent]:
    """Evaluations after two that are not counted."""
    watch, results = Watch(), []
    with Evaluator(problem, target, EvaluationSettings()) as evaluator:
        source = OpenCase(problem, problem.cases[0]).source
        make = {"itself": itself, "twice": twice}[kind]
        for number in range(count + 2):
            watch.spent = spent = Spent()
            began, process = time.perf_counter(), time.process_time()
            result = evaluator.evaluate(make(problem, source), TorchPython(), problem.cases)
            spent.total = time.perf_counter() - began
            spent.process = time.process_time() - process
            known = result.seconds
            spent.beyond = spent.total - known.get("compile", 0.0) - known.get("calls", 0.0)
            spent.speedup = f"{result.validity} {result.timing} {result.speedup}"
            say(f"{spent.speedup}: {spent.total:.2f} s, load {os.getloadavg()[0]:.1f}")
            if number >= 2:
                results.append(spent)
    return results


def report(results: Sequence[Spent]) -> list[str]:
    """Medians over the evaluations, in milliseconds."""
    labels = list(dict.fromkeys(label for spent in results for label in spent.wall))
    rows = [
        [
            label,
            _median(r.times[label] for r in results),
            _ms(r.wall[label] for r in results),
            _ms(r.worked[label] for r in results),
        ]
        for label in labels
    ]
    rows.sort(key=lambda row: -float(row[2]))
    blocks = [
        ["blocks", _median(len(r.blocks) for r in results)],
        ["calls", _median(sum(len(b.times) for b in r.blocks) for r in results)],
        ["in calls, ms", _of_blocks(results, lambda b: sum(b.walls))],
        ["fresh values, ms", _of_blocks(results, lambda b: b.refresh_ns)],
        ["reading outputs, ms", _of_blocks(results, lambda b: b.touch_ns)],
        ["in blocks by the runner, ms", _of_blocks(results, lambda b: b.total_ns)],
        ["in blocks by the supervisor, ms", _of_blocks(results, lambda b: b.wall_ns)],
        ["processor time of the runners in blocks, ms", _of_blocks(results, lambda b: b.worked_ns)],
    ]
    beyond = ", ".join(f"{1e3 * r.beyond:.0f}" for r in sorted(results, key=lambda r: r.beyond))
    return [
        f"Beyond compiling and calls: {_ms(r.beyond for r in results)} ms p50 of {beyond};"
        f" processor time of the supervisor {_ms(r.process for r in results)} ms.",
        table(["supervisor", "times", "ms", "processor time, ms"], rows),
        table(["blocks", "median"], blocks),
    ]


def _of_blocks(results: Sequence[Spent], value: Callable[[TimedBlock], float]) -> str:
    return f"{statistics.median(sum(map(value, r.blocks)) for r in results) / 1e6:.1f}"


def _median(values: Any) -> str:
    return f"{statistics.median(values):g}"


def _ms(values: Any) -> str:
    return f"{1e3 * statistics.median(values):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--problem", required=True)
    parser.add_argument("--constants", nargs="*", default=[], help="of the case: rows=2048")
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--kind", choices=("itself", "twice"), default="itself")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--hardware", default="x86-64")
    given = parser.parse_args()
    read_logs_here()
    target = EvaluationTarget(given.hardware, (given.hardware,), None, given.device)

    def run() -> None:
        problem = chosen_problem(given.problem, given.device, constants(given.constants))
        print("\n\n".join(report(measured(problem, target, given.count, given.kind))))
        print(f"\nMeasured {machine()}.")

    ended(run)


if __name__ == "__main__":
    main()
