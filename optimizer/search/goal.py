"""What a run is asked for, and when it has had enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from kb.errors import InvalidRequest
from optimizer.search.records import Node, best_of

PolicyName = Literal["best-first", "mcts", "evolutionary"]
MemoryName = Literal["none", "parent", "siblings", "both", "ancestors"]
POLICIES: tuple[PolicyName, ...] = ("best-first", "mcts", "evolutionary")
MEMORIES: tuple[MemoryName, ...] = ("none", "parent", "siblings", "both", "ancestors")


@dataclass(frozen=True)
class Goal:
    """language: of the candidates, None for any that has a toolchain here. target: speed-up whose
    lower bound ends the run. candidates, minutes, usd: budgets; None for no limit. stall:
    candidates without a better one after which the run ends."""

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

    def __post_init__(self) -> None:
        if self.policy not in POLICIES or self.memory not in MEMORIES:
            raise InvalidRequest(
                f"unknown policy {self.policy!r} or memory {self.memory!r}",
                hint=f"Policies: {', '.join(POLICIES)}. Memories: {', '.join(MEMORIES)}.",
            )
        for name in ("candidates", "minutes", "usd", "target", "stall"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidRequest(f"{name} is {value}", hint=f"Give a {name} above 0.")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def goal_from_json(told: Mapping[str, Any]) -> Goal:
    return Goal(**{name: told[name] for name in Goal.__dataclass_fields__ if name in told})


def reason_to_stop(goal: Goal, nodes: list[Node], seconds: float) -> str | None:
    """Why no further candidate is to be proposed; None while the search goes on.

    nodes: without the reference and without inherited ones. seconds: since the run began.
    """
    own = [node for node in nodes if not node.inherited and node.parent is not None]
    best = best_of(nodes)
    spent = sum(node.proposal.cost.usd or 0.0 for node in own if node.proposal is not None)
    if goal.target is not None and best is not None and best.merit >= goal.target:
        return f"the target of {goal.target:g} is reached"
    if len(own) >= goal.candidates:
        return f"{goal.candidates} candidates were tried"
    if goal.minutes is not None and seconds >= 60 * goal.minutes:
        return f"{goal.minutes:g} minutes are over"
    if goal.usd is not None and spent >= goal.usd:
        return f"{spent:.2f} USD were spent"
    if goal.stall is not None and len(own) >= goal.stall:
        last = max(
            (n.number for n in own if best is not None and n.number <= best.number), default=0
        )
        if own[-1].number - last >= goal.stall:
            return f"nothing better in {goal.stall} candidates"
    return None
