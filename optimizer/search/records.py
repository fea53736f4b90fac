"""Records of a search: proposals and the nodes that they become, stored as plain rows.

Knows neither how candidates are proposed nor how they are measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from kb.plain import from_json
from optimizer.evaluation.bundle import Bundle, Origin
from optimizer.evaluation.records import Evaluation, Interval

REFERENCE = 0  # number of the reference's node
NodeState = Literal["evaluated", "duplicate", "unmeasured", "failed"]  # of a stored node
IN_FLIGHT: Literal["in_flight"] = "in_flight"  # state of a node that is not stored yet
Value = int | float | str | bool


@dataclass(frozen=True)
class Cost:
    """Cost of proposing a candidate. `usd` follows the provider's price list, None if unknown."""

    seconds: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float | None = 0.0


@dataclass(frozen=True)
class ShownIds:
    """Ids of the knowledge that a proposer was shown, and of the retrieval that returned it."""

    retrieval_id: str = ""
    excerpts: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()


@dataclass(frozen=True)
class Proposal:
    """A candidate before it is measured.

    `parent` is the number of the node that it changes; `alternatives` are the numbers of further
    correct kernels whose sources the proposer saw as possible starting points. `recipe` and
    `values` are set for an instance of a recipe. `claimed` are ids that the proposer says it used;
    `attributed` are ids of the move, recipe or skill that certainly made the change. `cases` names
    the cases that the candidate claims, empty for all. `transcript` is the id of the conversation
    with a model.
    """

    bundle: Bundle
    synthesizer: str
    parent: int = REFERENCE
    plan: str = ""
    recipe: str | None = None
    values: Mapping[str, Value] = field(default_factory=dict)
    claimed: tuple[str, ...] = ()
    attributed: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    cost: Cost = field(default_factory=Cost)
    model: str | None = None
    transcript: str | None = None
    alternatives: tuple[int, ...] = ()

    @property
    def origin(self) -> Origin:
        """Kind of author: config, rewrite, recipe, llm or external."""
        return self.bundle.origin


@dataclass(frozen=True)
class Node:
    """One candidate of a run. `number` counts from the reference, which is 0.

    State `duplicate`: same bundle as node `same_as`. `unmeasured`: correct, but the machine was
    never quiet enough. `failed`: the infrastructure failed, nothing is known about the kernel.
    `in_flight`: being evaluated; such a node is never stored.

    `island` belongs to the evolutionary policy. `inherited` marks a stored winner of an earlier
    run. `batch` holds the first and last number of the nodes that were in flight together.
    `exhausted` are the (proposer, parent) pairs that had nothing left, and `silent` the proposers
    that failed, while this node was proposed: a resumed run restores its state from them.
    """

    number: int
    parent: int | None
    state: NodeState | Literal["in_flight"]
    proposal: Proposal | None
    evaluation: Evaluation | None
    shown: ShownIds = field(default_factory=ShownIds)
    same_as: int | None = None
    island: int = 0
    inherited: bool = False
    attempts: int = 1
    problem: str = ""  # the infrastructure's message where it failed
    at: float = 0.0  # seconds since the run began
    batch: tuple[int, int] | None = None
    exhausted: tuple[tuple[str, int], ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def correct(self) -> bool:
        """Whether it was evaluated and its results are right."""
        return self.evaluation is not None and self.evaluation.correct

    @property
    def speedup(self) -> Interval | None:
        """Speed-up over the reference with its interval; None if it was not timed."""
        return self.evaluation.speedup if self.evaluation is not None else None

    @property
    def merit(self) -> float:
        """Value that policies maximise: the lower bound of the speed-up, 0 without one."""
        if self.number == REFERENCE:
            return 1.0
        speedup = self.speedup
        return speedup.low if speedup is not None and self.correct else 0.0

    @property
    def verdict(self) -> str:
        """Validity of an evaluated node, else its state."""
        if self.state != "evaluated" or self.evaluation is None:
            return self.state
        return self.evaluation.validity

    @property
    def signals(self) -> tuple[str, ...]:
        """Ids of the verdict's signals, the leading one first."""
        return self.evaluation.verdict.signal_ids if self.evaluation is not None else ()

    def as_json(self) -> dict[str, Any]:
        """The stored row."""
        row = asdict(self)
        if self.evaluation is not None:
            row["evaluation"] = self.evaluation.as_json()
        return row


def node_from_json(row: Mapping[str, Any]) -> Node:
    """Inverse of `Node.as_json`."""
    proposal = row.get("proposal") or {}
    if "beside" in proposal:  # of versions up to 0.1
        row = {**row, "proposal": {**proposal, "alternatives": proposal["beside"]}}
    return from_json(Node, row)


def time_text(node: Node) -> str:
    """Time of a call on each timed case, in simulator cycles, another count of its kind, or
    microseconds; "" if unknown."""
    timings = node.evaluation.timings if node.evaluation is not None else ()
    times = {
        timing.case: timing.simulated_cost or f"{timing.candidate_us:.4g} us"
        for timing in timings
        if timing.simulated_cost or timing.candidate_us is not None
    }
    if len(times) < 2:
        return "".join(times.values())
    return ", ".join(f"{time} in {case}" for case, time in times.items())


def best_of(nodes: Sequence[Node]) -> Node | None:
    """The correct, measured node with the highest lower bound of the speed-up."""
    measured = [node for node in nodes if node.correct and node.speedup is not None]
    return max(measured, key=lambda node: (node.merit, -node.number), default=None)
