"""Kernels with one planted defect each, and their diagnosis.

On a GPU every kernel is evaluated, profiled and diagnosed, and the first and the first three
signals are compared with the defect. With --check no device is used: the kernels are compiled for
the chip and the Triton ones checked in the interpreter.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.evaluation.gpu_machine import (
    THREADS,
    machine_of,
    store_record,
    stored_records,
    target_of,
    write_report,
)
from benchmarks.report import ended, say, table
from kb.plain import from_json
from optimizer.evaluation.bundle import Bundle, read_bundle
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.collectors.profilers import Collected
from optimizer.evaluation.evaluator import Attempt, Evaluator
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.toolchains.base import CompileCase, EvaluationTarget, Toolchain
from optimizer.evaluation.toolchains.cuda import Nvcc
from optimizer.evaluation.toolchains.python import TritonNvidia

TITLE = "Planted defects and the verdict"
FOLDER = Path(__file__).parent / "planted"
HARDWARE = "h200"
SMALL = "small"
RECORDS = "planted.jsonl"


@dataclass(frozen=True)
class Planted:
    """expect: signals of a right verdict, the defect itself first."""

    file: str
    problem: str
    case: str
    expect: tuple[str, ...]
    planted: str

    @property
    def name(self) -> str:
        return Path(self.file).stem

    @property
    def bundle(self) -> Bundle:
        return read_bundle(FOLDER / "kernels" / self.file)

    def load(self) -> tuple[Problem, Case]:
        problem = load_problem(FOLDER / "problems" / f"{self.problem}.py")
        return problem, next(case for case in problem.cases if case.name == self.case)


def declared() -> dict[str, Any]:
    return tomllib.loads((FOLDER / "planted.toml").read_text(encoding="utf-8"))


def all_planted(chosen: Sequence[str] = ()) -> list[Planted]:
    rows = declared()["kernels"]
    result = [Planted(**{**row, "expect": tuple(row["expect"])}) for row in rows]
    return [planted for planted in result if not chosen or planted.name in chosen]


def toolchain_of(bundle: Bundle) -> Toolchain:
    return Nvcc() if bundle.language == "cuda" else TritonNvidia()


# -- without a GPU


def check(planted: Planted, target: EvaluationTarget) -> list[object]:
    """Compiled for the chip at the size that will be measured; right on a small case."""
    problem, case = planted.load()
    bundle = planted.bundle
    chain = toolchain_of(bundle)
    cases = (CompileCase(OpenCase(problem, case).signature),)
    with tempfile.TemporaryDirectory() as folder:
        compiled = chain.compile(bundle, target, Path(folder), cases)
    right = ""
    if bundle.language == "triton":
        with Evaluator(problem, target, EvaluationSettings(seeds=1)) as evaluator:
            small = [case for case in problem.cases if case.name == SMALL]
            evaluation = evaluator.evaluate(bundle, chain, small)
            right = (
                evaluation.validity
                if evaluation.correct
                else f"{evaluation.validity}: {evaluation.message}"
            )
    report = compiled.metrics
    names = ["n_regs", "n_spills", "shared", "mma_instructions"]
    names += ["ld_global_vector", "ld_global_scalar"]
    state = "compiled" if compiled.ok else compiled.log[:300]
    return [planted.name, state, right, *(report.get(name, "") for name in names)]


def check_all(chosen: Sequence[str]) -> None:
    target = target_of(HARDWARE, None)
    rows = [check(planted, target) for planted in all_planted(chosen)]
    header = ["kernel", "compiler", "interpreter", "registers", "spilled", "shared", "matrix"]
    print(table([*header, "wide loads", "narrow loads"], rows))


# -- on a GPU


class Keeping(Evaluator):
    """Stores collected metrics, so that other rules can be tried on them later."""

    collected: Sequence[Collected] = ()

    def _profile(self, attempt: Attempt) -> list[Collected]:
        result = super()._profile(attempt)
        self.collected = result
        return result


def measure(
    planted: Planted, target: EvaluationTarget, ceilings: Ceilings
) -> tuple[Evaluation, Sequence[Collected]]:
    problem, case = planted.load()
    bundle = planted.bundle
    settings = EvaluationSettings(seeds=1, threads=THREADS, profile=True)
    small = [other for other in problem.cases if other.name == SMALL and case.dtype == other.dtype]
    evaluator = Keeping(problem, target, settings, ceilings=ceilings)
    with evaluator:
        evaluation = evaluator.evaluate(bundle, toolchain_of(bundle), [*small, case])
        return evaluation, evaluator.collected


@dataclass(frozen=True)
class Row:
    """What came of one kernel."""

    planted: Planted
    evaluation: Evaluation

    @property
    def signals(self) -> list[str]:
        return list(self.evaluation.verdict.signal_ids)

    @property
    def first(self) -> bool:
        return bool(self.signals) and self.signals[0] in self.planted.expect

    @property
    def among_three(self) -> bool:
        return bool({*self.signals[:3]} & {*self.planted.expect})

    def cells(self) -> list[object]:
        result = self.evaluation
        timing = result.timings[0] if result.timings else None
        time_us = f"{timing.candidate_us:.0f}" if timing and timing.candidate_us else ""
        state = result.validity if result.correct else f"{result.validity}: {result.message[:80]}"
        return [
            f"`{self.planted.file}`",
            self.planted.planted,
            self.planted.expect[0],
            state,
            time_us,
            str(result.speedup or ""),
            ", ".join(self.signals[:5]) or "none",
            "yes" if self.first else "no",
            "yes" if self.among_three else "no",
        ]


def confusion(rows: Sequence[Row]) -> str:
    """Planted down, first signal across."""
    planted = list(dict.fromkeys(row.planted.expect[0] for row in rows))
    firsts = [row.signals[0] if row.signals else "unknown" for row in rows]
    columns = [*(name for name in planted if name in firsts)]
    columns += [name for name in dict.fromkeys(firsts) if name not in columns]
    body = []
    for name in planted:
        own = [f for row, f in zip(rows, firsts, strict=True) if row.planted.expect[0] == name]
        body.append([name, *(own.count(column) or "" for column in columns)])
    return table(["planted \\ first signal", *columns], body)


def evidence(row: Row) -> list[str]:
    """The values behind the first three signals."""
    lines = []
    for signal in row.evaluation.verdict.signals[:3]:
        values = [_evidence_text(value) for value in signal.evidence[:4]]
        lines.append(f"{signal.id} ({signal.confidence}): {'; '.join(values)}")
    return [f"* `{row.planted.file}`: " + " | ".join(lines)]


def _evidence_text(value: Mapping[str, Any]) -> str:
    number = value["value"]
    return (
        f"{value['name']} {number:.4g}"
        if isinstance(number, float)
        else f"{value['name']} {number}"
    )


def parts_of(rows: Sequence[Row], about: Sequence[str]) -> list[str]:
    header = ["kernel", "planted", "signal", "validity", "us", "speed-up over the reference"]
    counts = (sum(row.first for row in rows), sum(row.among_three for row in rows), len(rows))
    return [
        *about,
        table([*header, "verdict", "first right", "among three"], [row.cells() for row in rows]),
        f"First signal right: {counts[0]} of {counts[2]}; among the first three: {counts[1]} of"
        f" {counts[2]}.",
        confusion(rows),
        "Evidence behind the first three signals:",
        "\n".join(line for row in rows for line in evidence(row)),
    ]


def measure_all(given: argparse.Namespace) -> None:
    """Kernels with a record in the folder are measured again only by name."""
    folder: Path = given.folder or Path(tempfile.mkdtemp(prefix="kernlore-planted-"))
    measured = machine_of(folder)
    done = {record["file"] for record in stored_records(folder, RECORDS)}
    for planted in () if given.report else all_planted(given.only):
        if given.only or planted.file not in done:
            began = time.perf_counter()
            result, collected = measure(planted, target_of(HARDWARE, "cuda"), measured.ceilings)
            report = {"file": planted.file, "collected": [asdict(c) for c in collected]}
            store_record(folder, RECORDS, {**report, **result.as_json()})
            took = time.perf_counter() - began
            say(f"{planted.name}: {result.validity} {result.message} {took:.1f} s")
    last = {record["file"]: record for record in stored_records(folder, RECORDS)}
    rows = [
        Row(planted, from_json(Evaluation, last[planted.file]))
        for planted in all_planted()
        if planted.file in last
    ]
    lacking = [f"`{p.file}`" for p in all_planted() if p.file not in last]
    about = [
        "`python -m benchmarks.evaluation.planted_kernels"
        " --results benchmarks/results/planted_kernels.md`",
        measured.line,
        "Every kernel has one planted defect, or none. The verdict comes from Nsight Compute, the"
        " PyTorch profiler, static compiler reports and the time against measured ceilings, by the"
        " same rules for all.",
        declared()["note"].strip(),
        *([f"Not measured in this run: {', '.join(lacking)}."] if lacking else []),
    ]
    write_report(given.results, TITLE, parts_of(rows, about), measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="compile and interpret only")
    parser.add_argument("--only", action="append", default=[], help="a kernel's name; repeat")
    parser.add_argument("--folder", type=Path, help="keeps ceilings, verdicts and raw metrics")
    parser.add_argument("--report", action="store_true", help="measure nothing, only report")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()

    def run() -> None:
        if given.check:
            check_all(given.only)
        else:
            measure_all(given)

    ended(run)


if __name__ == "__main__":
    main()
