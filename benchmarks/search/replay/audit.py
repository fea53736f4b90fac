"""What moves lead to: every move that the knowledge base gives for a point, followed to
the point of the table that it asks for.

Beside it stands what any change of one value by one step leads to from the same points: a move is
worth something where its steps are better than those.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from benchmarks.search.replay.answers import Answers, query_of
from benchmarks.search.replay.arms import Facts, assuming
from benchmarks.search.replay.spaces import Space
from benchmarks.search.replay.table import Row, Table
from optimizer.evaluation.abi import ITEM_BYTES
from optimizer.search.knowledge import Knowledge, Move
from optimizer.search.synthesizers.recipe.recipe import Parameter, Value, allowed
from optimizer.search.synthesizers.recipe.synthesizer import Fitting, moved, stepped

CLEAR = 0.03  # log units: half-width of a usual interval; a smaller change is none


@dataclass(frozen=True)
class Step:
    """From one point to another. gain: log of the ratio of their merits, None where one of them has
    none. why: name of the move, empty for a plain step. holds: whether the move's predicate was
    decided."""

    problem: str
    parameter: str
    role: str
    why: str
    holds: bool
    gain: float | None


@dataclass(frozen=True)
class Coverage:
    """Points of one problem: with a signal, with any move, with a move whose role a parameter has,
    with a move that leads to another point."""

    problem: str
    signals: str
    points: int
    diagnosed: int
    advised: int
    matching: int
    leading: int
    steps: tuple[Step, ...]


def coverage(
    space: Space, table: Table, answers: Answers, facts: Facts, assumed: str = ""
) -> Coverage:
    """Over all measured points of a problem. assumed: signal of those that have none."""
    diagnosed = advised = matching = leading = 0
    steps: list[Step] = []
    signals: dict[str, int] = {}
    points = [row for row in table.points(space.problem.name) if row.evaluation.correct]
    for row in points:
        query = assuming(query_of(space, row), assumed)
        for signal in query.signals:
            signals[signal] = signals.get(signal, 0) + 1
        knowledge = answers.consult(query)
        roles = {p.role for p in _fitting(space, row).recipe.parameters}
        here = list(followed(space, table, row, knowledge, facts))
        diagnosed += bool(query.signals)
        advised += bool(knowledge.moves)
        matching += any(move.change.get("role") in roles for move in knowledge.moves)
        leading += bool(here)
        steps += here
    text = ", ".join(f"{name} {n}" for name, n in sorted(signals.items(), key=lambda x: -x[1]))
    return Coverage(
        space.problem.name,
        text or "none",
        len(points),
        diagnosed,
        advised,
        matching,
        leading,
        tuple(steps),
    )


def followed(
    space: Space, table: Table, row: Row, knowledge: Knowledge, facts: Facts
) -> Iterator[Step]:
    """Every change that a move asks for from this point."""
    fitting = _fitting(space, row)
    for move in knowledge.moves:
        for parameter in fitting.recipe.parameters:
            if parameter.role == move.change.get("role"):
                item = ITEM_BYTES.get(space.view.main.dtype or "")
                value = moved(parameter, row.values[parameter.name], move, item)
                yield from _step(space, table, row, parameter, value, facts, move)


def plain_steps(
    space: Space, table: Table, facts: Facts, directions: Sequence[int] = (1, -1)
) -> Iterator[Step]:
    """Every change of one value by one step, from every correct point."""
    for row in table.points(space.problem.name):
        if not row.evaluation.correct:
            continue
        for parameter in _fitting(space, row).recipe.parameters:
            for by in directions:
                value = stepped(parameter, row.values[parameter.name], by)
                yield from _step(space, table, row, parameter, value, facts, None)


def _fitting(space: Space, row: Row) -> Fitting:
    return next(f for f in space.fittings if f.recipe.name == row.recipe)


def _step(
    space: Space,
    table: Table,
    row: Row,
    parameter: Parameter,
    value: Value | None,
    facts: Facts,
    move: Move | None,
) -> Iterator[Step]:
    if value is None:
        return
    fitting = _fitting(space, row)
    values = {**row.values, parameter.name: value}
    there = table.find(row.problem, row.recipe, values)
    if there is None or not allowed(fitting.recipe, values, fitting.binding, facts):
        return
    gain = math.log(there.merit / row.merit) if there.merit > 0 and row.merit > 0 else None
    why = move.name if move is not None else ""
    holds = move is not None and move.applies is True
    yield Step(row.problem, parameter.name, parameter.role, why, holds, gain)


@dataclass(frozen=True)
class Effect:
    """Of steps whose gain is known. better, worse: shares of them that changed the merit by more
    than CLEAR. mean: geometric mean of the merit's change."""

    n: int
    better: float
    worse: float
    mean: float


def effect(steps: Sequence[Step]) -> Effect | None:
    """None where nothing is known of any."""
    gains = [step.gain for step in steps if step.gain is not None]
    if not gains:
        return None
    n = len(gains)
    better = sum(gain > CLEAR for gain in gains) / n
    worse = sum(gain < -CLEAR for gain in gains) / n
    return Effect(n, better, worse, math.exp(sum(gains) / n))


@dataclass(frozen=True)
class Repeat:
    """Pairs of rounds of the same point. typical: median factor between their speed-ups. apart:
    share of pairs whose 95 % intervals do not meet."""

    n: int
    typical: float
    apart: float


def repeat(table: Table, problems: Sequence[str]) -> Repeat | None:
    """None where no point was timed twice."""
    factors, apart = [], 0
    for row in (row for problem in problems for row in table.points(problem)):
        rounds = table.rounds(row.problem, row.recipe, row.values).values()
        timed = [r.evaluation.speedup for r in rounds if r.evaluation.speedup is not None]
        for first, second in combinations(timed, 2):
            factors.append(abs(math.log(first.value / second.value)))
            apart += first.low > second.high or second.low > first.high
    if not factors:
        return None
    return Repeat(len(factors), math.exp(median(factors)), apart / len(factors))
