"""What PyTorch itself reaches on a GPU: eager and torch.compile on every shipped problem.

The evaluator measures a torch.compile configuration as it measures any candidate: checked against
the float64 golden, timed in blocks that alternate with eager. Needs torch and nothing else of
Kernlore's dependencies. A run can be done in parts: what the folder holds is not measured again.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.evaluation.gpu_machine import (
    THREADS,
    Measured,
    keep,
    kept,
    machine_of,
    target_of,
    write_report,
)
from benchmarks.report import ended, say, table
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.problem.load import load_problem, shipped_problems
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation, evaluation_from_json
from optimizer.evaluation.roofline import CaseWork, achieved
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.python import TorchPython

TITLE = "Baselines: eager and torch.compile on all problems"
CASE = "gpu"
RECORDS = "baselines.jsonl"
MODES = {"default": (), "max-autotune": ("matmul_bias_gelu", "softmax", "batched_matmul")}
ITSELF = "eager"
# Compiling happens in the first call.
SETTINGS = EvaluationSettings(seeds=1, threads=THREADS, call_seconds=240.0, load_seconds=240.0)

COMPILED = '''

class ModelNew(Model):
    """The reference through torch.compile."""

    def __init__(self, *args):
        super().__init__(*args)
        self.compiled = torch.compile(super().forward, mode={mode!r})

    def forward(self, *args):
        return self.compiled(*args)
'''


def bundle_of(source: str, mode: str) -> Bundle:
    """The reference itself, or it behind torch.compile."""
    if mode == ITSELF:
        return Bundle({"m.py": source}, "m.py", "torch", "Model")
    text = source + COMPILED.format(mode=mode)
    return Bundle({"m.py": text}, "m.py", "torch", "ModelNew")


def measure(
    name: str, modes: Sequence[str], target: EvaluationTarget, ceilings: Ceilings, folder: Path
) -> None:
    """One problem in these modes; where none gives a time, eager alone."""
    problem = load_problem(Path(name))
    case = next(case for case in problem.cases if case.name == CASE)
    rows: list[dict[str, Any]] = []
    with Evaluator(problem, target, SETTINGS, ceilings=ceilings) as evaluator:
        for mode in [*modes, ITSELF]:
            timed = any(row["timings"] and row["timings"][0]["baseline_us"] for row in rows)
            if mode == ITSELF and timed:
                break
            rows.append(_measured(evaluator, problem, case, mode))
            keep(folder, RECORDS, rows[-1])


def _measured(evaluator: Evaluator, problem: Problem, case: Case, mode: str) -> dict[str, Any]:
    began = time.perf_counter()
    source = evaluator.case(case).open.source
    evaluation = evaluator.evaluate(bundle_of(source, mode), TorchPython(), [case])
    took = time.perf_counter() - began
    say(
        f"{problem.name} {mode}: {evaluation.validity} {evaluation.message} "
        f"{evaluation.speedup} {took:.1f} s"
    )
    work = vars(evaluator.work(case))
    return {"mode": mode, "work": work, **evaluation.as_json()}


# -- the table


def shares(work: CaseWork, us: float, ceilings: Ceilings) -> str:
    """Of the copy bandwidth, and of the matrix product rate where operations are counted."""
    description = achieved(work, us * 1e-6, ceilings)
    if description.flops_pct and description.flops_pct > (description.bandwidth_pct or 0.0):
        return f"{description.flops_pct:.0f} % of matmul"
    return "" if description.bandwidth_pct is None else f"{description.bandwidth_pct:.0f} % of copy"


def row_of(record: Mapping[str, Any], ceilings: Ceilings) -> list[object]:
    result = evaluation_from_json(record)
    work = CaseWork(**record["work"])
    timing = result.timings[0] if result.timings else None
    state = result.validity if result.correct else f"{result.validity}: {result.message[:90]}"
    cells: list[object] = [result.problem, record["mode"], state]
    size = f"{work.compulsory_bytes / 1e6:.0f}"
    cells += [size, f"{work.flops / 1e9:.1f}" if work.flops else ""]
    if timing is None or timing.baseline_us is None or timing.candidate_us is None:
        return [*cells, "", "", timing.reason[:60] if timing else "", "", ""]
    times = (timing.baseline_us, timing.candidate_us)
    return [
        *cells,
        *(f"{us:.0f}" for us in times),
        str(timing.speedup or ""),
        *(shares(work, us, ceilings) for us in times),
    ]


def summary(records: Sequence[Mapping[str, Any]]) -> str:
    default = [evaluation_from_json(r) for r in records if r["mode"] == "default"]
    gains = [e.speedup.value for e in default if e.speedup is not None]
    if not gains:
        return "Nothing was measured."
    mean = math.exp(sum(map(math.log, gains)) / len(gains))
    return (
        f"torch.compile default over eager: geometric mean {mean:.2f} over n={len(gains)} of"
        f" {len(shipped_problems())} problems; {_failed(default)} {_lacking(default)}"
    )


def _lacking(result: Sequence[Evaluation]) -> str:
    seen = {e.problem for e in result}
    lacking = [name for name in shipped_problems() if name not in seen]
    return f"Not measured in this run: {', '.join(lacking)}." if lacking else ""


def _failed(result: Sequence[Evaluation]) -> str:
    bad = [f"{e.problem} ({e.validity if not e.correct else e.timing})" for e in result]
    named = [text for text, e in zip(bad, result, strict=True) if e.speedup is None]
    return f"without a figure: {', '.join(named) or 'none'}."


def report(records: Sequence[Mapping[str, Any]], measured: Measured) -> list[str]:
    header = ["problem", "torch.compile", "validity", "MB", "GFLOP", "eager us", "compiled us"]
    header += ["speed-up [95 %] pairs", "eager's share", "compiled's share"]
    ordered = sorted(records, key=lambda r: (r["problem"], r["mode"]))
    return [
        "`python -m benchmarks.evaluation.h200_baselines"
        " --results benchmarks/results/h200_baselines.md`",
        measured.line,
        "Case `gpu` of every problem in float32 with TF32 off, cold second-level cache. A share is"
        " the least time at the measured ceiling over the time taken; none is told of operators"
        " that read only a part of their inputs. Attention in float32 can exceed the rate of plain"
        " products: its kernel may emulate them on the matrix units.",
        table(header, [row_of(record, measured.ceilings) for record in ordered]),
        summary(records),
    ]


# -- in parts


def run(given: argparse.Namespace) -> None:
    folder: Path = given.folder or Path(tempfile.mkdtemp(prefix="kernlore-baselines-"))
    measured = machine_of(folder)
    done = {(record["problem"], record["mode"]) for record in kept(folder, RECORDS)}
    until = time.monotonic() + 60 * given.minutes
    for name in () if given.report else given.problem or shipped_problems():
        modes = [
            m for m, only in MODES.items() if (not only or name in only) and (name, m) not in done
        ]
        if modes and time.monotonic() < until:
            measure(name, modes, target_of("h200", "cuda"), measured.ceilings, folder)
    write_report(given.results, TITLE, report(kept(folder, RECORDS), measured), measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--problem", action="append", help="repeat; default all")
    parser.add_argument("--folder", type=Path, help="keeps what was measured and the ceilings")
    parser.add_argument("--minutes", type=float, default=60.0, help="start nothing after these")
    parser.add_argument("--report", action="store_true", help="measure nothing, only report")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    ended(lambda: run(given))


if __name__ == "__main__":
    main()
