"""The goal of a run, and the reasons to end one: a target is reached or a budget is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kb.errors import InvalidRequest
from optimizer.search.records import Node, best_of

# -- the floor of a run on a chip with counters
#
# What an event costs, fitted from the run's own right kernels, and the cost of a kernel that has
# the fewest events of each kind. Knows simulated costs alone: times of real hardware are not sums
# of events.

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


# -- the goal

PolicyName = Literal["best-first", "mcts", "evolutionary"]
MemoryName = Literal["none", "parent", "siblings", "both", "ancestors"]
SYNTHESIZERS = ("recipe", "sample", "traced", "compiler", "llm", "external")
POLICIES: tuple[PolicyName, ...] = ("best-first", "mcts", "evolutionary")
MEMORIES: tuple[MemoryName, ...] = ("none", "parent", "siblings", "both", "ancestors")
UNKNOWN_ROOFLINE = (
    "the share of the roofline is not known here, so that target could not be reached"
)
LIMITS = ("candidates", "minutes", "usd", "target", "stall", "target_us", "target_roofline")


@dataclass(frozen=True)
class Goal:
    """Targets, budgets and settings of a run. Raises InvalidRequest for impossible values.

    `language` is that of the candidates, None for any that has a toolchain here. A run ends at the
    first target that it reaches: `target`, a speed-up, compared with the lower bound; `target_us`,
    microseconds a call, compared with the upper bound on each timed case; or `target_roofline`, a
    share (0..1) of the device's measured ceilings, compared with the lower bound. `candidates`,
    `minutes` and `usd` are budgets, None for no limit. `stall` ends the run after that many
    candidates without improvement. `synthesizers` names those that may propose, empty for all.
    """

    language: str | None = None
    target: float | None = None
    candidates: int = 30
    minutes: float | None = None
    usd: float | None = None
    knowledge: bool = True
    policy: PolicyName = "best-first"
    memory: MemoryName = "both"
    seed: int = 0
    stall: int | None = None
    target_us: float | None = None
    target_roofline: float | None = None
    synthesizers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.policy not in POLICIES or self.memory not in MEMORIES:
            raise InvalidRequest(
                f"unknown policy {self.policy!r} or memory {self.memory!r}",
                hint=f"Policies: {', '.join(POLICIES)}. Memories: {', '.join(MEMORIES)}.",
            )
        unknown = next((name for name in self.synthesizers if name not in SYNTHESIZERS), None)
        if unknown is not None:
            raise InvalidRequest(
                f"there is no synthesizer {unknown!r}", hint=f"There are {', '.join(SYNTHESIZERS)}."
            )
        for name in LIMITS:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidRequest(f"{name} is {value}", hint=f"Give a {name} above 0.")


RESERVED = 0.5  # largest share of the minutes that is reserved for the last measurement


def reason_to_stop(
    goal: Goal, nodes: list[Node], seconds: float, reserve: float = 0.0
) -> str | None:
    """Reason to propose no further candidate; None while the search goes on.

    The reference and inherited nodes count for no budget. `seconds` is the time since the run
    began; `reserve` is the expected time of the next candidate and the last measurement, which the
    minutes include.
    """
    own = [node for node in nodes if not node.inherited and node.parent is not None]
    best = best_of(nodes)
    reached = _reached(goal, best)
    if reached is None:
        reached = reason_at_floor([node for node in nodes if node.parent is not None])
    if reached is not None:
        return reached
    ended = _spent(goal, own, best, seconds, reserve)
    unknown = goal.target_roofline is not None and (best is None or roofline_of(best) is None)
    if ended is not None and unknown:
        return f"{ended}; {UNKNOWN_ROOFLINE}"
    return ended


def roofline_of(node: Node) -> float | None:
    """Lower bound of the share (0..1) of the measured ceilings that a kernel reaches; None if they
    are unknown. The share is inverse to the time, so its interval is that of the speed-up."""
    speedup, share = node.speedup, _number(node, "roofline_pct")
    if speedup is None or share is None or speedup.value <= 0:
        return None
    return share / 100 * speedup.low / speedup.value


def slowest_us(node: Node) -> float | None:
    """Upper bound of the microseconds a call on the slowest timed case; None if a case has no
    figure by the clock."""
    timings = node.evaluation.timings if node.evaluation is not None else ()
    bounds = [
        t.baseline_us / t.speedup.low
        for t in timings
        if t.state == "measured" and t.baseline_us and t.speedup is not None and t.speedup.low > 0
    ]
    return max(bounds) if bounds and len(bounds) == len(timings) else None


def _reached(goal: Goal, best: Node | None) -> str | None:
    if best is None:
        return None
    if goal.target is not None and best.merit >= goal.target:
        return f"the target of {goal.target:g} is reached"
    time = slowest_us(best) if goal.target_us is not None else None
    if time is not None and goal.target_us is not None and time <= goal.target_us:
        return f"the target of {goal.target_us:g} us is reached"
    share = roofline_of(best) if goal.target_roofline is not None else None
    if share is not None and goal.target_roofline is not None and share >= goal.target_roofline:
        return f"the target of {goal.target_roofline:g} of the roofline is reached"
    return None


def _spent(
    goal: Goal, own: list[Node], best: Node | None, seconds: float, reserve: float
) -> str | None:
    spent = sum(node.proposal.cost.usd or 0.0 for node in own if node.proposal is not None)
    if len(own) >= goal.candidates:
        return f"{goal.candidates} candidates were tried"
    if goal.minutes is not None:
        last = min(reserve, RESERVED * 60 * goal.minutes)
        if seconds + last >= 60 * goal.minutes:
            reserved = f", with {last:.0f} seconds for the last measurement" if last >= 1 else ""
            return f"{_over(goal)}{reserved}"
    if goal.usd is not None and spent >= goal.usd:
        return f"{spent:.2f} USD were spent"
    if goal.stall is not None and len(own) >= goal.stall:
        improved = max(
            (n.number for n in own if best is not None and n.number <= best.number), default=0
        )
        if own[-1].number - improved >= goal.stall:
            return f"nothing better in {goal.stall} candidates"
    return None


def minutes_are_over(goal: Goal, ended: str) -> bool:
    """Whether `ended`, a reason of `reason_to_stop`, is that the time is over."""
    return goal.minutes is not None and ended.startswith(_over(goal))


def _over(goal: Goal) -> str:
    return "1 minute is over" if goal.minutes == 1 else f"{goal.minutes:g} minutes are over"


def _number(node: Node, name: str) -> float | None:
    value = node.evaluation.metrics.get(name) if node.evaluation is not None else None
    return float(value) if isinstance(value, int | float) else None
