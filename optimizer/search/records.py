"""What a search leaves behind: nodes of a tree, as plain rows. Inserting one is the checkpoint.

Knows neither how candidates are made nor how they are measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from optimizer.evaluation.bundle import Bundle, Origin
from optimizer.evaluation.records import Evaluation, Interval, evaluation_from_json

REFERENCE = 0  # number of the node that stands for the problem's own reference
NodeState = Literal["evaluated", "duplicate", "unmeasured", "failed"]  # of a row
IN_FLIGHT: Literal["in_flight"] = "in_flight"  # of a node that is no row yet
Value = int | float | str | bool


@dataclass(frozen=True)
class Cost:
    """What proposing took. usd: as the provider's price list says; None where it is not known."""

    seconds: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float | None = 0.0


@dataclass(frozen=True)
class Shown:
    """What a proposal was made from: ids of excerpts, moves and skills, and the retrieval they came
    with."""

    retrieval_id: str = ""
    excerpts: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()


@dataclass(frozen=True)
class Proposal:
    """A candidate before it is measured.

    parent: number of the node that it changes. recipe and values: where it is an instance of one.
    claimed: ids that the proposer says it used. attributed: ids of the move, recipe or skill that
    made the change, as far as that is certain. cases: names of those it claims, empty for all.
    transcript: reference to the stored conversation with a model.
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

    @property
    def origin(self) -> Origin:
        return self.bundle.origin


@dataclass(frozen=True)
class Node:
    """One candidate of a run. number: place in the run, the reference is 0. island: of the
    evolutionary policy. inherited: it was a stored winner of an earlier run.

    state `duplicate`: the same bundle is node `same_as`; `unmeasured`: correct, and the machine
    never quiet enough; `failed`: the infrastructure's fault, nothing is known about the kernel;
    `in_flight`: being evaluated, never stored.

    batch: first and last number of the nodes that were in flight together. exhausted: (proposer,
    parent) pairs that turned out to have nothing left while this node was proposed; silent:
    proposers of which an attempt failed then. With these a continued run knows what it knew.
    """

    number: int
    parent: int | None
    state: NodeState | Literal["in_flight"]
    proposal: Proposal | None
    evaluation: Evaluation | None
    shown: Shown = field(default_factory=Shown)
    same_as: int | None = None
    island: int = 0
    inherited: bool = False
    attempts: int = 1
    problem: str = ""  # what the infrastructure said where it failed
    at: float = 0.0  # seconds since the run began
    batch: tuple[int, int] | None = None
    exhausted: tuple[tuple[str, int], ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def correct(self) -> bool:
        return self.evaluation is not None and self.evaluation.correct

    @property
    def speedup(self) -> Interval | None:
        return self.evaluation.speedup if self.evaluation is not None else None

    @property
    def merit(self) -> float:
        """What policies climb: the lower bound of the speed-up; 0 for what has none."""
        if self.number == REFERENCE:
            return 1.0
        speedup = self.speedup
        return speedup.low if speedup is not None and self.correct else 0.0

    @property
    def verdict(self) -> str:
        """What became of it in one word: the validity of what was evaluated, else its state."""
        if self.state != "evaluated" or self.evaluation is None:
            return self.state
        return self.evaluation.validity

    @property
    def signals(self) -> tuple[str, ...]:
        """Of its verdict, the leading one first."""
        verdict = self.evaluation.verdict if self.evaluation is not None else {}
        return tuple(signal["id"] for signal in verdict.get("signals", ()))

    def as_json(self) -> dict[str, Any]:
        row = asdict(self)
        if self.evaluation is not None:
            row["evaluation"] = self.evaluation.as_json()
        return row


def node_from_json(row: Mapping[str, Any]) -> Node:
    """The inverse of `Node.as_json`; fields of a newer version are ignored."""
    fields = {name: row[name] for name in Node.__dataclass_fields__ if name in row}
    if fields.get("proposal") is not None:
        fields["proposal"] = proposal_from_json(fields["proposal"])
    if fields.get("evaluation") is not None:
        fields["evaluation"] = evaluation_from_json(fields["evaluation"])
    shown = fields.get("shown") or {}
    fields["shown"] = Shown(
        **_tuples({n: shown[n] for n in Shown.__dataclass_fields__ if n in shown})
    )
    fields["exhausted"] = tuple((name, number) for name, number in fields.get("exhausted") or ())
    fields["silent"] = tuple(fields.get("silent") or ())
    fields["batch"] = tuple(fields["batch"]) if fields.get("batch") else None
    return Node(**fields)


def proposal_from_json(row: Mapping[str, Any]) -> Proposal:
    """The inverse of `asdict`."""
    fields = {**row, "bundle": Bundle(**row["bundle"]), "cost": Cost(**row["cost"])}
    return Proposal(**_tuples(fields))


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}


def best_of(nodes: Sequence[Node]) -> Node | None:
    """The correct and measured node whose speed-up is certain to be highest."""
    measured = [node for node in nodes if node.correct and node.speedup is not None]
    return max(measured, key=lambda node: (node.merit, -node.number), default=None)
