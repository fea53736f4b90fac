"""The same question as `benchmarks.search.aten`, on another machine: kernels of our own for torch's
operators, each written from its traced graph, by portable sessions.

    python -m benchmarks.search.aten_sessions write --count 160 --out problems
    kernlore runs pack problems/* --hardware h100 --synthesizers traced --candidates 1 -o aten.zip
    python aten.zip --out results --finalists 1 > results.log    (on the machine with the device)
    python -m benchmarks.search.aten_sessions report problems results --log results.log -o report.md
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.report import ended, say, write_result
from benchmarks.search.aten import (
    FAILED,
    FASTER,
    LEFT,
    NOT_BEGUN,
    RIGHT,
    WRONG,
    Row,
    drawn,
    report,
)
from benchmarks.search.gains.sessions import opened, problem_name, runs_in
from optimizer.evaluation.problem.aten import write_problem_files
from optimizer.evaluation.records import Evaluation
from optimizer.search.portable.launch import WHY_FAILED
from optimizer.search.store import FileStore
from optimizer.search.tree import Tree

AIM = 30  # seconds to the first right kernel
# What `TracedSynthesizer` prints where it writes no kernel.
_NO_KERNEL = re.compile(r"^(\S+): no kernel of its own for [^:]+: (.+)$", re.MULTILINE)
_IN_PART = re.compile(r"torch keeps (.+)\.$")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.search.aten_sessions", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="write problem files, a folder each")
    writing.add_argument("--count", type=int, default=160)
    writing.add_argument("--seed", type=int, default=0)
    writing.add_argument("--out", type=Path, required=True)
    reporting = commands.add_parser("report", help="report the folders that sessions left")
    reporting.add_argument("problems", type=Path, help="the folder of the problem files")
    reporting.add_argument("folders", nargs="+", type=Path)
    reporting.add_argument("--log", nargs="*", type=Path, default=[], help="what they printed")
    reporting.add_argument("--about", default="", help="device, versions, date and command")
    reporting.add_argument("--on", default="a GPU, Triton", help="where and in which language")
    reporting.add_argument("--output", "-o", type=Path)
    options = parser.parse_args()
    ended(lambda: write(options) if options.command == "write" else show(options))


def write(options: argparse.Namespace) -> None:
    """Write the problems that `benchmarks.search.aten` draws with the same count and seed."""
    problems = drawn(None, options.count, options.seed)
    for made in problems:
        write_problem_files(made, options.out)
    say(f"{len(problems)} problems in {options.out}")


def show(options: argparse.Namespace) -> None:
    """Raises NotFound or InvalidRequest where a folder holds no runs."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in options.log)
    reasons = dict(_NO_KERNEL.findall(text))
    rows: dict[str, Row] = {}
    with ExitStack() as stack:
        for folder in options.folders:
            rows |= rows_of(stack.enter_context(opened(folder)), reasons)
    names = sorted(path.name for path in options.problems.iterdir() if path.is_dir())
    listed = [rows.get(name) or Row(name, NOT_BEGUN) for name in names]
    own = [row for row in listed if row.outcome in (FASTER, RIGHT)]
    mixed = sum("torch keeps" in row.reason for row in own)
    faster = sum(row.outcome == FASTER for row in own)
    sentences = [
        f"- Of the {len(own)} that are right, {len(own) - mixed} are wholly of our own; in {mixed}"
        " torch keeps a part, which the last column names.",
        f"- Faster than eager: {faster} of {len(own)}.",
    ]
    took = [row.seconds for row in own if row.seconds is not None]
    if took:
        sentences.append(
            f"- From the beginning of a problem to its first right kernel, timed: p50"
            f" {median(took):.0f} s, {sum(t < AIM for t in took)} of {len(took)} within {AIM} s,"
            f" {max(took):.0f} s at the most; the reference, which is timed first, is in it."
        )
    parts = report(listed)
    write_result(
        options.output,
        f"Kernels of our own for torch's operators, {options.on}",
        [parts[0] + "\n" + "\n".join(sentences), *parts[1:], options.about],
    )


def rows_of(folder: Path, reasons: Mapping[str, str]) -> dict[str, Row]:
    """By problem, of one session's folder. `reasons` say why a problem got no kernel."""
    rows = {}
    for path in folder.glob(f"*{WHY_FAILED}"):
        name = path.name.removesuffix(WHY_FAILED)
        reason = path.read_text(encoding="utf-8").splitlines()[0]
        rows[name] = Row(name, FAILED, reason=reason)
    store = FileStore(folder)
    for run in runs_in(folder):
        name = problem_name(run)
        nodes = Tree(store.nodes(run.id)).nodes[1:]
        if nodes and nodes[0].evaluation is not None:
            assert nodes[0].proposal is not None
            row = _row(name, nodes[0].evaluation, nodes[0].proposal.plan)
            rows[name] = replace(row, seconds=nodes[0].at)
        elif name not in rows:
            rows[name] = Row(name, LEFT, reason=reasons.get(name, run.ended or "no reason stored"))
    return rows


def _row(name: str, evaluation: Evaluation, plan: str) -> Row:
    if not evaluation.correct:
        reason = f"{evaluation.validity}: {evaluation.message}"[:200]
        return Row(name, WRONG, reason=reason)
    kept = _IN_PART.search(plan)
    reason = kept.group(0) if kept else ""
    gain = evaluation.speedup
    if gain is None:
        return Row(name, RIGHT, reason="; ".join(filter(None, ("not timed", reason))))
    text = f"{gain.value:.2f} [{gain.low:.2f}, {gain.high:.2f}]"
    if evaluation.timing == "repeat":
        return Row(name, RIGHT, text, "the machine was too busy to trust the time")
    return Row(name, FASTER if gain.low > 1 else RIGHT, text, reason)


if __name__ == "__main__":
    main()
