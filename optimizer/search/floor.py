"""The floor of a run on a chip with counters: what an event costs, fitted from the run's own right
kernels, and the cost of a kernel that has the fewest events of each kind.

Standard library only. Knows simulated costs alone: times of real hardware are not sums of events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimizer.search.records import Node

LEAST_KERNELS = 4  # right kernels of different costs that a fit needs
MOST_EVENTS = 4  # kinds of events in a fit
TOLERANCE = 0.02  # largest relative error of a fit that counts
AT_FLOOR = 1.01  # of the floor: a kernel that is at it
NEUTRAL = 3  # right kernels since the best one, at its cost, before a run stops
ROUNDS = 500


@dataclass(frozen=True)
class Floor:
    """`cost` in `kind` (cycles, packets, ...); `events` are (counter, cost of one, fewest seen);
    `best` is the least cost so far, `kernels` how many the fit rests on."""

    cost: float
    kind: str
    events: tuple[tuple[str, float, float], ...]
    best: float
    kernels: int

    @property
    def reached(self) -> bool:
        """Whether the best kernel is at the floor."""
        return self.best <= AT_FLOOR * self.cost

    def sentence(self) -> str:
        """The floor in words, for a proposer."""
        listed = "; ".join(
            f"{name}: {each:.3g} {self.kind} each, at least {fewest:g} seen"
            for name, each, fewest in self.events
        )
        where = (
            "the best kernel is at it: only a kernel with fewer events is cheaper"
            if self.reached
            else f"the best kernel costs {self.best / self.cost:.2f} times that"
        )
        return (
            f"Floor, fitted from {self.kernels} right kernels: {self.cost:.0f} {self.kind}"
            f" ({listed}); {where}."
        )


def floor_of(nodes: Sequence[Node]) -> Floor | None:
    """The floor of a run with one timed case, None while its right kernels do not determine it."""
    samples = [sample for node in nodes if (sample := _sample(node)) is not None]
    kinds = {kind for kind, _, _ in samples}
    costs = [cost for _, cost, _ in samples]
    if len(kinds) != 1 or len({*costs}) < LEAST_KERNELS:
        return None
    rows = [events for _, _, events in samples]
    fit = _fitted(costs, rows)
    if fit is None:
        return None
    events = tuple((name, each, min(row[name] for row in rows)) for name, each in fit.items())
    cost = sum(each * fewest for _, each, fewest in events)
    return Floor(cost, kinds.pop(), events, min(costs), len(samples)) if cost > 0 else None


def reason_at_floor(nodes: Sequence[Node]) -> str | None:
    """Why a run stops at its floor: the best kernel is at it, and the right kernels since then cost
    the same."""
    floor = floor_of(nodes)
    if floor is None or not floor.reached:
        return None
    costs = [sample[1] for node in nodes if (sample := _sample(node)) is not None]
    since = costs[costs.index(floor.best) + 1 :]
    same = [cost for cost in since if cost <= AT_FLOOR * floor.best]
    if len(same) < NEUTRAL:
        return None
    return f"the best kernel is at the floor of {floor.cost:.0f} {floor.kind}"


def _sample(node: Node) -> tuple[str, float, Mapping[str, float]] | None:
    """Kind, cost and events of a right kernel with one simulated case."""
    evaluation = node.evaluation
    if evaluation is None or not node.correct or node.proposal is None:
        return None
    timed = [t for t in evaluation.timings if t.state == "simulator" and t.simulated_cost]
    if len(timed) != 1 or len(evaluation.timings) != 1:
        return None
    number, _, kind = timed[0].simulated_cost.partition(" ")
    cost = float(number)
    events = {
        name: float(value)
        for name, value in (evaluation.metrics or {}).items()
        if isinstance(value, int | float) and value >= 0 and float(value) != cost
    }
    return kind, cost, events


def _fitted(costs: Sequence[float], rows: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    """Non-negative costs of few kinds of events that explain all costs; None if none do."""
    names = [n for n in rows[0] if all(n in row for row in rows) and any(row[n] for row in rows)]
    chosen: list[str] = []
    while len(chosen) < min(MOST_EVENTS, len({*costs}) - 2):
        tried = [(_error(costs, rows, [*chosen, name]), name) for name in names]
        tried = [(error, name) for error, name in tried if name not in chosen]
        if not tried:
            return None
        error, name = min(tried)
        chosen.append(name)
        if error <= TOLERANCE:
            weights = _weights(costs, rows, chosen)
            return {name: w for name, w in zip(chosen, weights, strict=True) if w > 0}
    return None


def _error(
    costs: Sequence[float], rows: Sequence[Mapping[str, float]], names: Sequence[str]
) -> float:
    weights = _weights(costs, rows, names)
    sums = [sum(w * row[n] for w, n in zip(weights, names, strict=True)) for row in rows]
    return max(abs(s - cost) / cost for s, cost in zip(sums, costs, strict=True))


def _weights(
    costs: Sequence[float], rows: Sequence[Mapping[str, float]], names: Sequence[str]
) -> list[float]:
    """Non-negative least squares of relative errors, by coordinates."""
    columns = [[row[n] / cost for row, cost in zip(rows, costs, strict=True)] for n in names]
    weights = [0.0] * len(names)
    rest = [1.0] * len(costs)
    for _ in range(ROUNDS):
        for at, column in enumerate(columns):
            square = sum(x * x for x in column)
            if not square:
                continue
            step = sum(x * r for x, r in zip(column, rest, strict=True)) / square
            new = max(0.0, weights[at] + step)
            moved = new - weights[at]
            weights[at] = new
            rest = [r - moved * x for r, x in zip(rest, column, strict=True)]
    return weights
