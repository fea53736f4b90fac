"""What the search gains on the shipped problems, on this machine's CPU, without a key.

Winners are written as modules and called in a process that has only torch. Figures: over eager, and
over torch.compile's default where that compiled; also without winners of origin config, and without
elementwise chains.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from api.cli.backends import read_settings
from api.cli.backends.local import LocalTarget
from api.optimization.runs import Finished, optimize
from benchmarks.report import ended, say, table, write_result
from kb.errors import KernloreError
from optimizer.evaluation.correct.prepared import PreparedCase
from optimizer.output.module import write_module
from optimizer.problem.load import load_problem, shipped_problems
from optimizer.problem.tensors import open_case
from optimizer.search.goal import Goal
from optimizer.search.records import Node
from optimizer.search.tree import Tree

TITLE = "What the search gains on this CPU, without a key"
NOT_UNSEEN = (
    "These are no unseen problems: the recipes were written for their families by people who had "
    "read them and tried settings on their main case, so the figures say what the loop and its "
    "library reach here, not what to expect of a problem that nobody has looked at. Most "
    "candidates are instances of the one recipe that fits."
)
SEED = 7
# Calls the winner on the measured shape in a process that sees only the module's folder.
CHECK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import importlib, torch
module = importlib.import_module(sys.argv[2])
inputs, state, args = torch.load(sys.argv[3])
model = module.ModelNew(*args)
model.load_state_dict(state)
model.eval().requires_grad_(False)
with torch.no_grad():
    told = model.dispatch(*inputs)
    torch.save(model(*inputs), sys.argv[4])
print(json.dumps({"dispatch": str(told)}))
"""


@dataclass(frozen=True)
class Row:
    """One problem. gain: (value, low, high, n) over eager; compiled: torch.compile's default over
    eager; checked: what calling the module in a process with only torch came to."""

    problem: str
    op: str
    candidates: int
    verdicts: dict[str, int]
    gain: tuple[float, float, float, int] | None
    held_out: str
    compiled: tuple[float, float, float, int] | None
    origin: str
    recipe: str
    seconds: float
    ended: str
    checked: str


def row_of(finished: Finished, folder: Path) -> Row:
    tree, outcome = finished.tree, finished.outcome
    winner = tree[outcome.node] if outcome.node is not None else None
    proposal = winner.proposal if winner is not None else None
    held = [f for f in outcome.figures if f.held_out]
    return Row(
        problem=finished.problem.name,
        op=finished.problem.op,
        candidates=len(tree) - 1,
        verdicts=dict(Counter(node.verdict for node in tree.nodes[1:])),
        gain=_interval(outcome.gain),
        held_out="; ".join(str(figure.speedup) for figure in held),
        compiled=_compiled(tree),
        origin=proposal.origin if proposal is not None else "",
        recipe=(proposal.recipe or proposal.synthesizer) if proposal is not None else "",
        seconds=finished.run.seconds,
        ended=finished.run.ended,
        checked=_checked(finished, folder),
    )


def _interval(found: Any) -> tuple[float, float, float, int] | None:
    return (found.value, found.low, found.high, found.n) if found is not None else None


def _compiled(tree: Tree) -> tuple[float, float, float, int] | None:
    """The first configuration that the compiler synthesizer tries is torch.compile as it comes."""
    for node in tree.nodes[1:]:
        if node.proposal is not None and node.proposal.origin == "config":
            return _interval(node.speedup) if node.correct else None
    return None


def _checked(finished: Finished, folder: Path) -> str:
    """Whether the module gives the reference's results with nothing but torch beside it."""
    import torch

    module = write_module(finished.tree, finished.outcome, finished.problem, folder)
    case = next(c for c in finished.problem.searched if c.timed and c.fits("cpu"))
    opened = open_case(finished.problem, case)
    inputs, state = opened.inputs(SEED), opened.state(SEED)
    scalars = [v.item() if s else v for v, s in zip(inputs, opened.scalars, strict=True)]
    given, result = folder / "given.pt", folder / "result.pt"
    torch.save((scalars, state, opened.init_args), given)
    done = subprocess.run(
        [sys.executable, "-I", "-c", CHECK, str(module.parent), module.name, given, result],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        timeout=300,
        check=False,
    )
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[-1][:120]}"
    found = torch.load(result)
    values = list(found) if isinstance(found, tuple | list) else [found]
    prepared = PreparedCase(opened, "cpu")
    wrong = [error.told() for error in prepared.errors(values, SEED) if not error.ok]
    told = json.loads(done.stdout.splitlines()[-1])["dispatch"]
    which = re.search(r"which='(\w+)'", told)
    return f"WRONG: {wrong[0]}" if wrong else f"right, by the {which[1] if which else told[:60]}"


def _geomean(values: Iterable[float]) -> str:
    logs = [math.log(value) for value in values]
    if not logs:
        return "none"
    mean = sum(logs) / len(logs)
    if len(logs) < 2:
        return f"{math.exp(mean):.3f} n=1"
    spread = math.sqrt(sum((x - mean) ** 2 for x in logs) / (len(logs) - 1) / len(logs))
    low, high = math.exp(mean - 1.96 * spread), math.exp(mean + 1.96 * spread)
    return f"{math.exp(mean):.3f} [{low:.3f}, {high:.3f}] n={len(logs)}"


def report(rows: Sequence[Row]) -> list[str]:
    def over_eager(row: Row) -> float:
        return row.gain[0] if row.gain else 1.0  # dispatch goes to the reference

    def over_compiled(row: Row) -> float:
        assert row.compiled is not None
        return over_eager(row) / row.compiled[0]

    kept: dict[str, Callable[[Row], bool]] = {
        "all problems": lambda row: True,
        "winners of origin config counted as the reference": lambda row: row.origin != "config",
        "without elementwise chains": lambda row: row.op != "elementwise",
    }
    lines = []
    for name, keep in kept.items():
        chosen = [row for row in rows if keep(row)]
        if name.startswith("winners"):
            eager = _geomean(over_eager(row) if keep(row) else 1.0 for row in rows)
        else:
            eager = _geomean(over_eager(row) for row in chosen)
        compiled = _geomean(over_compiled(row) for row in chosen if row.compiled)
        lines.append([name, eager, compiled])
    told = [
        table(
            ["", "geometric mean over eager", "over torch.compile default"],
            lines,
        ),
        table(
            ["problem", "gain over eager", "held out", "torch.compile default", "origin", "by",
             "n", "verdicts", "s", "module, only torch"],
            [
                [r.problem, _told(r.gain) or "no gain", r.held_out, _told(r.compiled), r.origin,
                 r.recipe, r.candidates, json.dumps(r.verdicts), f"{r.seconds:.0f}", r.checked]
                for r in rows
            ],
        ),
    ]  # fmt: skip
    origins = Counter(row.origin or "no gain" for row in rows)
    told.append("Winners by origin: " + ", ".join(f"{k} {v}" for k, v in origins.most_common()))
    return told


def _told(found: tuple[float, float, float, int] | None) -> str:
    return "" if found is None else f"{found[0]:.3f} [{found[1]:.3f}, {found[2]:.3f}] n={found[3]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--problem", action="append", help="repeat; default all shipped ones")
    parser.add_argument("--candidates", type=int, default=30)
    parser.add_argument("--minutes", type=float, help="for each problem")
    parser.add_argument("--policy", default="best-first")
    parser.add_argument("--folder", type=Path, required=True, help="data directory and modules")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()

    def run() -> None:
        given.folder.mkdir(parents=True, exist_ok=True)
        kept = given.folder / "rows.jsonl"
        done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
        local = LocalTarget(read_settings(given.folder / "data"))
        local.load_knowledge(say)
        goal = Goal(candidates=given.candidates, minutes=given.minutes, policy=given.policy)
        for name in given.problem or shipped_problems():
            if any(row["problem"] == name for row in done):
                continue
            try:
                found = optimize(
                    local.services, load_problem(Path(name)).path, goal, "auto", _Quiet()
                )
            except KernloreError as problem:
                say(f"{name}: {problem}")
                continue
            row = asdict(row_of(found, given.folder / name))
            done.append(row)
            with kept.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
            say(f"{name}: {row['gain']} by {row['recipe']} ({row['checked']})")
        local.close()
        rows = [Row(**row) for row in done]
        limits = f"--candidates {given.candidates}"
        limits += f" --minutes {given.minutes:g}" if given.minutes is not None else ""
        command = f"`python -m benchmarks.search.search_gains {limits} --folder F`"
        write_result(given.results, TITLE, [command, NOT_UNSEEN, *report(rows)])

    ended(run)


class _Quiet:
    def node(self, node: Node, tree: Tree) -> None:
        """The rows say it."""

    def said(self, message: str) -> None:
        say(message)


if __name__ == "__main__":
    main()
