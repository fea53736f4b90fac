"""The goal of a run, and the reasons to end one: a target is reached or a budget is spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from kb.errors import InvalidRequest
from optimizer.search.floor import reason_at_floor
from optimizer.search.records import Node, best_of

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

    def as_json(self) -> dict[str, Any]:
        """The stored row, which `goal_from_json` reads."""
        return asdict(self)


def goal_from_json(row: Mapping[str, Any]) -> Goal:
    """Inverse of `Goal.as_json`; ignores fields of newer versions."""
    fields = {name: row[name] for name in Goal.__dataclass_fields__ if name in row}
    return Goal(**{**fields, "synthesizers": tuple(fields.get("synthesizers", ()))})


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
    return f"{goal.minutes:g} minutes are over"


def _number(node: Node, name: str) -> float | None:
    value = node.evaluation.metrics.get(name) if node.evaluation is not None else None
    return float(value) if isinstance(value, int | float) else None
