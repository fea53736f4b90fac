"""What the search gains on the shipped problems, on this machine's CPU, without a key.

Winners are written as modules and called in a process that has only torch. Figures: over eager, and
over torch.compile's default where that compiled; also without winners of origin config, and without
elementwise chains.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from api.cli.target import CommandTarget, read_settings
from benchmarks.report import ended, say, table, write_result
from benchmarks.search.gains.module_check import checked
from benchmarks.search.gains.rows import NOT_HELD_OUT, Row, interval_text, means, origins, row_of
from kb.errors import KernloreError
from optimizer.evaluation.problem.load import load_problem, shipped_problems
from optimizer.search.goal import Goal
from optimizer.search.records import Node
from optimizer.search.runs.optimize import Finished, optimize
from optimizer.search.synthesizers.base import Asking
from optimizer.search.tree import Tree
from skills.lifecycle import prepare_library

TITLE = "What the search gains on this CPU, without a key"


def row(finished: Finished, folder: Path) -> Row:
    tree, outcome, problem = finished.tree, finished.outcome, finished.problem
    verdict = checked(tree, outcome, problem, folder)
    return row_of(finished.run, problem, tree, outcome, verdict)


def report(rows: Sequence[Row]) -> list[str]:
    return [
        means(rows),
        table(
            ["problem", "gain over eager", "held out", "torch.compile default", "origin", "by",
             "n", "verdicts", "s", "module, only torch"],
            [
                [r.problem, interval_text(r.gain) or "no gain", r.held_out,
                 interval_text(r.compiled), r.origin, r.recipe, r.candidates,
                 json.dumps(r.verdicts), f"{r.seconds:.0f}", r.checked]
                for r in rows
            ],
        ),
        origins(rows),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--problem", action="append", help="repeat; default all shipped ones")
    parser.add_argument("--candidates", type=int, default=30)
    parser.add_argument("--minutes", type=float, help="for each problem")
    parser.add_argument("--policy", default="best-first")
    parser.add_argument("--folder", type=Path, required=True, help="data directory and modules")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()

    def run() -> None:
        options.folder.mkdir(parents=True, exist_ok=True)
        kept = options.folder / "rows.jsonl"
        done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
        local = CommandTarget(read_settings(options.folder / "data"))
        local.load_knowledge(say)
        goal = Goal(candidates=options.candidates, minutes=options.minutes, policy=options.policy)
        for name in options.problem or shipped_problems():
            if any(row["problem"] == name for row in done):
                continue
            try:
                prepare_library(local.services, "auto", None, say)
                finished = optimize(
                    local.services, load_problem(Path(name)).path, goal, "auto", _Quiet()
                )
            except KernloreError as problem:
                say(f"{name}: {problem}")
                continue
            new = asdict(row(finished, options.folder / name))
            done.append(new)
            with kept.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(new) + "\n")
            say(f"{name}: {new['gain']} by {new['recipe']} ({new['checked']})")
        local.close()
        rows = [Row(**row) for row in done]
        limits = f"--candidates {options.candidates}"
        limits += f" --minutes {options.minutes:g}" if options.minutes is not None else ""
        command = f"`python -m benchmarks.search.search_gains {limits} --folder F`"
        write_result(options.results, TITLE, [command, NOT_HELD_OUT, *report(rows)])

    ended(run)


class _Quiet:
    def node(self, node: Node, tree: Tree) -> None:
        """The rows say it."""

    def asking(self, asking: Asking) -> None: ...

    def log(self, message: str) -> None:
        say(message)


if __name__ == "__main__":
    main()
