"""Whether the harness itself can be trusted: the reference against itself, twice the work, and what
an evaluation costs beyond the work.

Needs torch and nothing else of Kernlore's dependencies, so that it also runs on a bare GPU machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import ended, say, table, write_result
from optimizer.bundle import Bundle
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.problem.load import load_problem
from optimizer.problem.spec import Problem
from optimizer.problem.tensors import open_case
from optimizer.toolchains.base import Target
from optimizer.toolchains.torch_python import TorchPython

TITLE = "Evaluation: the harness against itself"
DEFAULT = ("elementwise_chain", "softmax", "matmul_bias_gelu", "row_reduction")


@dataclass(frozen=True)
class Trial:
    problem: str
    kind: str
    evaluation: Evaluation
    seconds: float

    @property
    def overhead(self) -> float | None:
        """Seconds beside compiling and timed calls."""
        if not self.evaluation.timings:
            return None
        timed = sum(_timed_seconds(self.evaluation))
        return self.seconds - self.evaluation.seconds.get("compile", 0.0) - timed


def _timed_seconds(evaluation: Evaluation) -> Sequence[float]:
    return [
        t.calls * ((t.baseline_us or 0.0) + (t.candidate_us or 0.0)) / 1e6
        for t in evaluation.timings
    ]


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


def run_problem(name: str, target: Target, rounds: int, doubles: int) -> list[Trial]:
    problem = load_problem(Path(name))
    trials = []
    with Evaluator(problem, target, EvaluationSettings()) as evaluator:
        cases = [c for c in problem.searched if c.timed and c.fits(evaluator.device)][:1]
        source = open_case(problem, cases[0]).source
        plan = [("A/A", itself)] * (rounds + 1) + [("twice", twice)] * doubles
        for number, (kind, make) in enumerate(plan):
            began = time.perf_counter()
            found = evaluator.evaluate(make(problem, source), TorchPython(), cases)
            took = time.perf_counter() - began
            say(f"{name} {kind}: {found.validity} {found.timing} {found.speedup} {took:.2f} s")
            if number:  # the first one makes goldens and the reference's runner
                trials.append(Trial(name, kind, found, took))
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
    overheads = sorted(t.overhead for t in trials if t.overhead is not None)
    told = [
        table(
            ["problem", "kind", "n", "not correct", "to repeat", "interval holds 1.0 / 0.5",
             "range", "median half-width"],
            rows,
        )
    ]  # fmt: skip
    if overheads:
        told.append(
            f"Overhead of an evaluation (all but compiling and timed calls), n={len(overheads)}:"
            f" p50 {1e3 * statistics.median(overheads):.0f} ms,"
            f" p90 {1e3 * overheads[int(0.9 * (len(overheads) - 1))]:.0f} ms."
        )
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--problem", action="append", help="repeat; default four of different kind")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--twice", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--hardware", default="x86-64")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    target = Target(given.hardware, (given.hardware,), None, given.device)

    def run() -> None:
        trials = []
        for name in given.problem or DEFAULT:
            trials += run_problem(name, target, given.rounds, given.twice)
        command = f"`python -m benchmarks.evaluation_checks --device {given.device}`"
        write_result(given.results, TITLE, [command, *summary(trials)])

    ended(run)


if __name__ == "__main__":
    main()
