"""Traced kernels for torch's operators: which are right, which are faster, which stay with torch.

    python -m benchmarks.search.aten --count 160 --minutes 15
    python -m benchmarks.search.aten --cross --count 160 --minutes 40

The operators are drawn by seed from those for which `kernlore problem aten` writes a problem with a
real size. Each gets the C++ kernel written from its traced graph, without a search; it is checked
on the operator's small and real size and timed on the real one, against eager mode.

With `--cross` each gets its Triton kernels instead, cross-compiled for an MI300X: built for
gfx942 at the same two sizes (a GPU's real size is larger), and checked on the small one in Triton's
interpreter.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.report import ended, say, table, write_result
from kb.errors import KernloreError
from optimizer.evaluation.abi import Signature
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.aten import (
    AtenProblem,
    SkippedOperator,
    aten_problem,
    operator_names,
    write_problem_files,
)
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings, TimingPolicy
from optimizer.evaluation.toolchains.base import CompileCase, EvaluationTarget
from optimizer.evaluation.toolchains.registry import usable_toolchain
from optimizer.search.bench.local import LocalBench, TargetToolchain, problem_view
from optimizer.search.records import Proposal
from optimizer.search.synthesizers.base import ProblemView
from optimizer.search.synthesizers.traced import cpp, triton
from optimizer.search.synthesizers.traced.expression import NotWritten, Program
from optimizer.search.synthesizers.traced.synthesizer import CPP, LIBRARY, TRITON, lowered

FASTER, RIGHT, LEFT = "right and faster", "right, not known to be faster", "left to the library"
WRONG, FAILED, NOT_BEGUN = "not right", "not measured", "not begun: the time was over"
BUILT_BY = {"cpp": "g++", "torch": "torch"}
AMD = EvaluationTarget("mi300x", ("mi300x", "cdna3", "amd"), "gfx942")


@dataclass(frozen=True)
class Row:
    """What came of one operator."""

    operator: str
    outcome: str
    speedup: str = ""
    reason: str = ""
    seconds: float | None = None  # from the beginning of its run to its kernel's figure


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.search.aten", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument(
        "--untimed", action="store_true", help="only whether kernels are right: for a busy machine"
    )
    parser.add_argument(
        "--cross", action="store_true", help="Triton for an MI300X, in place of C++ for this CPU"
    )
    parser.add_argument("--operators", nargs="*", help="these in place of drawn ones")
    parser.add_argument("--output", "-o", type=Path)
    options = parser.parse_args()
    ended(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")  # torch's samples warn on purpose
    began = time.monotonic()
    until = began + 60 * options.minutes
    rows: list[Row] = []
    problems = drawn(options.operators, options.count, options.seed)
    say(f"{len(problems)} problems in {time.monotonic() - began:.0f} s")
    with tempfile.TemporaryDirectory(prefix="kernlore-aten-") as folder:
        for made in problems:
            if time.monotonic() > until:
                rows.append(Row(made.operator, NOT_BEGUN))
                continue
            row = outcome_of(made, Path(folder), not options.untimed, options.cross)
            say(f"{row.operator}: {row.outcome} {row.speedup} {row.reason}")
            rows.append(row)
    count = f"--count {options.count} --seed {options.seed} --minutes {options.minutes:g}"
    count += " --untimed" * options.untimed + " --cross" * options.cross
    untimed = "the chip is not here" if options.cross else "the machine was busy"
    where = "MI300X by cross-compiling, Triton" if options.cross else "x86-64, C++"
    write_result(
        options.output,
        f"Traced kernels for torch's operators, {where}",
        [*report(rows, untimed), f"Command: `python -m benchmarks.search.aten {count}`."],
    )


def drawn(names: Sequence[str] | None, count: int, seed: int) -> list[AtenProblem]:
    """Problems with a real size. Raises NotFound, and Unavailable without torch's samples."""
    if names:
        made = [aten_problem(name) for name in names]
        return [m for m in made if not isinstance(m, SkippedOperator)]
    order = operator_names()
    random.Random(seed).shuffle(order)
    chosen: list[AtenProblem] = []
    for name in order:
        if len(chosen) == count:
            break
        problem = aten_problem(name)
        if isinstance(problem, AtenProblem) and problem.larger:
            chosen.append(problem)
    return chosen


def outcome_of(made: AtenProblem, folder: Path, timed: bool, cross: bool) -> Row:
    """Write the operator's kernel and evaluate it."""
    try:
        return _cross_outcome(made, folder) if cross else _outcome(made, folder, timed)
    except KernloreError as problem:
        return Row(made.operator, FAILED, reason=problem.message)
    # Operators are torch's own, and a reference that fails at this size fails in its own way.
    except Exception as problem:
        return Row(made.operator, FAILED, reason=f"{type(problem).__name__}: {problem}"[:160])


def _outcome(made: AtenProblem, folder: Path, timed: bool) -> Row:
    problem = load_problem(write_problem_files(made, folder))
    programs = _programs(problem_view(problem, "cpu"), None)
    if isinstance(programs, str):
        return Row(made.operator, LEFT, reason=programs)
    text = cpp.write_candidate(programs)
    bundle = Bundle({CPP.file: text}, CPP.file, CPP.name, CPP.entry, dict(CPP.defaults), "recipe")
    timing = TimingPolicy(max_pairs=12, seconds=20.0)
    settings = EvaluationSettings(seeds=1, call_seconds=20.0, load_seconds=60.0, timing=timing)
    target = EvaluationTarget("x86-64", ("x86-64",), "native", "cpu")
    places = {
        name: TargetToolchain(target, usable_toolchain(name, target, t))
        for name, t in BUILT_BY.items()
    }
    if not timed:
        problem = replace(problem, cases=tuple(replace(c, timed=False) for c in problem.cases))
    with LocalBench(problem, places, settings) as bench:
        evaluation = bench.evaluate(Proposal(bundle, "traced"))
    return _row(made.operator, evaluation)


def _programs(
    view: ProblemView, library: frozenset[str] | None
) -> list[tuple[Signature, Program]] | str:
    """Of each case, or why one has none."""
    programs = []
    for case in view.cases:
        program = lowered(case, library)
        if isinstance(program, str):
            return program
        programs.append((case.signature, program))
    return programs


def _cross_outcome(made: AtenProblem, folder: Path) -> Row:
    """Of the operator's Triton kernels, which torch may keep parts of: compiled for gfx942, and
    right in the interpreter at the small size."""
    problem = load_problem(write_problem_files(made, folder))
    view = problem_view(problem, "cpu")
    programs = _programs(view, LIBRARY)
    if isinstance(programs, str):
        return Row(made.operator, LEFT, reason=programs)
    try:
        source = triton.write_candidate(programs, view.source, triton.DEFAULTS)
    except NotWritten as reason:
        return Row(made.operator, LEFT, reason=str(reason))
    bundle = Bundle({TRITON.file: source.text}, TRITON.file, TRITON.name, TRITON.entry)
    toolchain = usable_toolchain(TRITON.name, AMD, "triton-amd")
    with tempfile.TemporaryDirectory(dir=folder) as workdir:
        cases = tuple(CompileCase(signature) for signature, _ in programs)
        compiled = toolchain.compile(bundle, AMD, Path(workdir), cases)
    if not compiled.ok:
        return Row(made.operator, WRONG, reason=f"it does not compile: {compiled.log[-200:]}")
    small = tuple(replace(case, timed=False) for case in problem.searched if not case.timed)
    settings = EvaluationSettings(seeds=1, call_seconds=60.0, load_seconds=60.0)
    with LocalBench(
        replace(problem, cases=small), {TRITON.name: TargetToolchain(AMD, toolchain)}, settings
    ) as bench:
        evaluation = bench.evaluate(Proposal(bundle, "traced"))
    left = f"torch keeps {', '.join(source.left)}." if source.left else ""
    row = _row(made.operator, evaluation)
    return replace(row, reason=left) if row.outcome == RIGHT else row


def _row(operator: str, evaluation: Evaluation) -> Row:
    if not evaluation.correct:
        return Row(operator, WRONG, reason=f"{evaluation.validity}: {evaluation.message}"[:200])
    gain = evaluation.speedup
    if gain is None:
        return Row(operator, RIGHT, reason="not timed")
    text = f"{gain.value:.2f} [{gain.low:.2f}, {gain.high:.2f}]"
    if evaluation.timing == "repeat":
        return Row(operator, RIGHT, text, "the machine was too busy to trust the time")
    return Row(operator, FASTER if gain.low > 1 else RIGHT, text)


def report(rows: Sequence[Row], untimed: str = "the machine was busy") -> list[str]:
    """The parts of the report, in Markdown. `untimed` says why nothing was timed, where so."""
    counts = Counter(row.outcome for row in rows)
    begun = [row for row in rows if row.outcome != NOT_BEGUN]
    own = counts[FASTER] + counts[RIGHT]
    sentences = [
        f"Operators: {len(rows)}, {len(begun)} begun. A traced kernel is right for {own} of them.",
        f"Nothing was timed: {untimed}."
        if all(not row.speedup for row in begun)
        else '"Faster" means that the whole interval of the speed-up over eager is above 1; other'
        " programs ran on the machine, so intervals are wide and some true gains are not counted.",
        "One kernel each, as it is written first: nothing was searched.",
    ]
    order = (FASTER, RIGHT, LEFT, WRONG, FAILED, NOT_BEGUN)
    reasons = Counter(_kind(row.reason) for row in rows if row.outcome == LEFT)
    return [
        "\n".join(f"- {sentence}" for sentence in sentences),
        table(["outcome", "operators"], [[name, counts[name]] for name in order if counts[name]]),
        table(["left to the library because", "operators"], reasons.most_common()),
        table(
            ["operator", "outcome", "speed-up", "reason"],
            [
                [row.operator, row.outcome, row.speedup, " ".join(row.reason.split())]
                for row in sorted(rows, key=lambda r: (order.index(r.outcome), r.operator))
                if row.outcome != NOT_BEGUN
            ],
        ),
    ]


def _kind(reason: str) -> str:
    """A reason without what differs from operator to operator."""
    first, _, rest = reason.partition(": ")
    return f"{first}: {rest.partition(': ')[0]}" if rest else first


if __name__ == "__main__":
    main()
