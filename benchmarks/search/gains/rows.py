"""What one run came to, as a row of a table and of rows.jsonl. Standard library only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Interval
from optimizer.search.confirm import Outcome
from optimizer.search.records import Node
from optimizer.search.store import RunRow
from optimizer.search.tree import Tree

DEFAULT = {"mode": "default"}  # values of torch.compile as it comes


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
