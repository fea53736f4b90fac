"""The result of a run as a row of a table and of rows.jsonl, means over rows, and figures as text.

Standard library only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from benchmarks.report import table
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Interval
from optimizer.search.confirm import Outcome
from optimizer.search.records import Node
from optimizer.search.store import RunRow
from optimizer.search.tree import Tree

DEFAULT = {"mode": "default"}  # values of torch.compile as it comes
NOT_HELD_OUT = (
    "These are no unseen problems: the recipes were written for their families by people who had "
    "read them and tried settings on their main case, so the figures say what the loop and its "
    "library reach here, not what to expect of a problem that nobody has looked at. Most "
    "candidates are instances of the one recipe that fits."
)


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


def row_of(run: RunRow, problem: Problem, tree: Tree, outcome: Outcome, checked: str) -> Row:
    winner = tree[outcome.node] if outcome.node is not None else None
    proposal = winner.proposal if winner is not None else None
    held = [f for f in outcome.figures if f.held_out]
    default = compiled_default(tree)
    return Row(
        problem=problem.name,
        op=problem.op,
        candidates=len(tree) - 1,
        verdicts=dict(Counter(node.verdict for node in tree.nodes[1:])),
        gain=_interval(outcome.gain),
        held_out="; ".join(str(figure.speedup) for figure in held),
        compiled=_interval(default.speedup) if default is not None and default.correct else None,
        origin=proposal.origin if proposal is not None else "",
        recipe=(proposal.recipe or proposal.synthesizer) if proposal is not None else "",
        seconds=run.seconds,
        ended=run.ended,
        checked=checked,
    )


def compiled_default(tree: Tree) -> Node | None:
    """The candidate that is torch.compile as it comes; None where the run did not try it."""
    for node in tree.nodes[1:]:
        proposal = node.proposal
        if proposal is None or proposal.origin != "config" or node.state == "duplicate":
            continue
        if dict(proposal.values) == DEFAULT:
            return node
    return None


def _interval(interval: Interval | None) -> tuple[float, float, float, int] | None:
    return (
        (interval.value, interval.low, interval.high, interval.n) if interval is not None else None
    )


def geomean(values: Iterable[float]) -> str:
    """With its 95 % interval over the problems."""
    logs = [math.log(value) for value in values]
    if not logs:
        return "none"
    mean = sum(logs) / len(logs)
    if len(logs) < 2:
        return f"{math.exp(mean):.3f} n=1"
    spread = math.sqrt(sum((x - mean) ** 2 for x in logs) / (len(logs) - 1) / len(logs))
    low, high = math.exp(mean - 1.96 * spread), math.exp(mean + 1.96 * spread)
    return f"{math.exp(mean):.3f} [{low:.3f}, {high:.3f}] n={len(logs)}"


def over_eager(row: Row) -> float:
    return row.gain[0] if row.gain else 1.0  # dispatch goes to the reference


def over_compiled(row: Row) -> float:
    assert row.compiled is not None
    return over_eager(row) / row.compiled[0]


def means(rows: Sequence[Row]) -> str:
    """The table of geometric means."""
    no_config = [replace(r, gain=None) if r.origin == "config" else r for r in rows]
    lines = {
        "all problems": rows,
        "winners of origin config counted as the reference": no_config,
        "without elementwise chains": [row for row in rows if row.op != "elementwise"],
    }
    header = ["", "geometric mean over eager", "over torch.compile default"]
    return table(header, [[name, *both(chosen)] for name, chosen in lines.items()])


def both(rows: Sequence[Row]) -> list[str]:
    """Geometric means over eager, and over torch.compile's default where the run has a figure."""
    return [
        geomean(over_eager(row) for row in rows),
        geomean(over_compiled(row) for row in rows if row.compiled),
    ]


def origins(rows: Sequence[Row]) -> str:
    counts = Counter(row.origin or "no gain" for row in rows)
    return "Winners by origin: " + ", ".join(f"{k} {v}" for k, v in counts.most_common())


def interval_text(interval: tuple[float, float, float, int] | None) -> str:
    return (
        ""
        if interval is None
        else f"{interval[0]:.3f} [{interval[1]:.3f}, {interval[2]:.3f}] n={interval[3]}"
    )
