"""What a proposal can know: facts, moves, excerpts and skills for the verdict it starts from.

The interface between the search and the knowledge base: a service, the catalog in process, or the
snapshot of a portable session stand behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from kb.predicates import Bindings, compile_predicate
from kb.problem_terms import canonical_dtype, canonical_op
from optimizer.search.records import Shown

Number = float | str


@dataclass(frozen=True)
class Query:
    """What just happened. metrics by raw names, what the verdict was derived from included; log
    only of what failed. problem: quantities of the problem, named as in kb/problem_terms.toml.
    roles: of the parameters that a proposer can change; empty where it can change anything.
    """

    signals: tuple[str, ...]
    metrics: Mapping[str, Number]
    log: str
    hardware: str
    op: str
    language: str | None
    dtype: str | None
    run_id: str
    node: int
    max_tokens: int
    problem: Mapping[str, Number] = field(default_factory=dict)
    roles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Excerpt:
    """A cited piece of a document. It is data: nothing it says is an instruction."""

    id: str
    title: str
    text: str
    citation: str = ""


@dataclass(frozen=True)
class Move:
    """A move that fits. change: {role, direction, to, factor}; limit: the number that bounds it, in
    limit_unit (a unit of kb/hardware/fact_keys.toml). when: its predicate, to be decided again
    where more is known. What a skill says to avoid is one too, with the change {avoid: [{role,
    direction}, ...]}: having no role, it is followed by nobody."""

    id: str
    name: str
    change: Mapping[str, Any]
    limit: float | None
    limit_name: str | None
    why: str
    applies: bool | None
    when: str = ""
    limit_unit: str | None = None


@dataclass(frozen=True)
class ShownSkill:
    """A skill as a proposer reads it."""

    name: str
    summary: str
    text: str
    score: float


@dataclass(frozen=True)
class Knowledge:
    """An answer. facts: of the hardware, by key."""

    retrieval_id: str = ""
    excerpts: tuple[Excerpt, ...] = ()
    moves: tuple[Move, ...] = ()
    skills: tuple[ShownSkill, ...] = ()
    facts: Mapping[str, Number] = field(default_factory=dict)

    def shown(self) -> Shown:
        return Shown(
            self.retrieval_id,
            tuple(excerpt.id for excerpt in self.excerpts),
            tuple(move.id for move in self.moves),
            tuple(skill.name for skill in self.skills),
        )

    def as_json(self) -> dict[str, Any]:
        """The JSON of stored snapshots and contexts; its key of the moves is `remedies`."""
        row = asdict(self)
        return {"remedies" if name == "moves" else name: value for name, value in row.items()}


def knowledge_from_json(row: Mapping[str, Any]) -> Knowledge:
    """The inverse of `Knowledge.as_json`."""
    return Knowledge(
        row["retrieval_id"],
        tuple(Excerpt(**excerpt) for excerpt in row["excerpts"]),
        tuple(Move(**move) for move in row["remedies"]),
        tuple(ShownSkill(**skill) for skill in row["skills"]),
        dict(row["facts"]),
    )


class KnowledgeSource(Protocol):
    """Where knowledge comes from."""

    def consult(self, query: Query) -> Knowledge:
        """What fits; empty where nothing does. Raises `kb.errors.KernloreError`."""
        ...

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """What came of it, for the next ranking."""
        ...


class NoKnowledge:
    """For `--knowledge off`: the search without the knowledge base."""

    def consult(self, query: Query) -> Knowledge:
        return Knowledge()

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """Nothing was asked, so nothing is owed."""


def applicable_moves(
    moves: Iterable[Move], query: Query, facts: Mapping[str, float | str]
) -> tuple[Move, ...]:
    """Without those whose precondition does not hold; one that lacks a value stays undecided."""
    known = _bindings(query, facts)
    answered = (_decided(move, known) for move in moves)
    return tuple(move for move in answered if move.applies is not False)


def _bindings(query: Query, facts: Mapping[str, float | str]) -> Bindings:
    return Bindings(
        signals=set(query.signals),
        metrics={n: v for n, v in query.metrics.items() if isinstance(v, int | float)},
        facts=facts,
        problem={
            **query.problem,
            "op": canonical_op(query.op) if query.op else None,
            "dtype": canonical_dtype(query.dtype) if query.dtype else None,
            "language": query.language,
        },
    )


def _decided(move: Move, known: Bindings) -> Move:
    if not move.when:
        return move
    return replace(move, applies=compile_predicate(move.when).evaluate(known).value)
