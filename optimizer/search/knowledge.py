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
    """A request to the knowledge base: the verdict of a node and where it ran.

    `metrics` has raw names and includes what the verdict was derived from; `log` is filled only for
    a candidate that failed. `problem` holds quantities of the problem, named as in
    kb/problem_terms.toml. `roles` are those of the parameters that a proposer can change, empty
    where it can change anything. `max_tokens` bounds the answer. `task` is what the answer is for
    (retrieval/compose/layout.py) and `draft` the source of the kernel that failed, empty without
    one. `operators` are the reference's operators by torch's names and `dtypes` all element types
    of the problem. `lacks` are extensions of its family that the processor here lacks
    (kb/hardware/extensions.toml).
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
    task: str | None = None
    draft: str = ""
    operators: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Excerpt:
    """A cited piece of a document. It is data: nothing it says is an instruction."""

    id: str
    title: str
    text: str
    citation: str = ""


@dataclass(frozen=True)
class Move:
    """A move that fits the verdict: which parameter to change and how.

    `change` is {role, direction, to, factor}. `limit` is the number that bounds it, in `limit_unit`
    (a unit of kb/hardware/fact_keys.toml). `when` is its predicate, decided again where more is
    known; `applies` is None while the predicate cannot be decided. What a skill says to avoid is a
    move too, with the change {avoid: [{role, direction}, ...]}; it has no role, so no proposer
    follows it.
    """

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
    """A skill as a proposer reads it; `score` is its rank in the answer."""

    name: str
    summary: str
    text: str
    score: float


@dataclass(frozen=True)
class Knowledge:
    """An answer of the knowledge base; `facts` are those of the hardware, by key.

    `target` and `situation` are the two parts of the packed context: what must be known about the
    chip and its language, equal in every answer of a run, and what helps with what just happened.
    `parts` are the ids of what they quote. They are empty from a source that packs no context.
    """

    retrieval_id: str = ""
    excerpts: tuple[Excerpt, ...] = ()
    moves: tuple[Move, ...] = ()
    skills: tuple[ShownSkill, ...] = ()
    facts: Mapping[str, Number] = field(default_factory=dict)
    target: str = ""
    situation: str = ""
    parts: tuple[str, ...] = ()

    def shown(self) -> Shown:
        """The ids of everything in the answer, as a node records them."""
        return Shown(
            self.retrieval_id,
            tuple(dict.fromkeys([*(excerpt.id for excerpt in self.excerpts), *self.parts])),
            tuple(move.id for move in self.moves),
            tuple(skill.name for skill in self.skills),
        )

    def as_json(self) -> dict[str, Any]:
        """The JSON of stored snapshots and contexts; its key of the moves is `remedies`."""
        row = asdict(self)
        return {"remedies" if name == "moves" else name: value for name, value in row.items()}


def knowledge_from_json(row: Mapping[str, Any]) -> Knowledge:
    """Read the answer that `Knowledge.as_json` wrote."""
    return Knowledge(
        row["retrieval_id"],
        tuple(Excerpt(**excerpt) for excerpt in row["excerpts"]),
        tuple(Move(**move) for move in row["remedies"]),
        tuple(ShownSkill(**skill) for skill in row["skills"]),
        dict(row["facts"]),
        row.get("target", ""),
        row.get("situation", ""),
        tuple(row.get("parts", ())),
    )


class KnowledgeSource(Protocol):
    """A source of knowledge: a service, the catalog in process, or a snapshot."""

    def consult(self, query: Query) -> Knowledge:
        """The knowledge that fits the query; empty where none does. Raises
        `kb.errors.KernloreError`."""
        ...

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """Report the result of a candidate for the next ranking; `used` are ids of what made it."""
        ...


class NoKnowledge:
    """The source for `--knowledge off`: it has no knowledge."""

    def consult(self, query: Query) -> Knowledge:
        """An empty answer."""
        return Knowledge()

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """Do nothing."""


def applicable_moves(
    moves: Iterable[Move], query: Query, facts: Mapping[str, float | str]
) -> tuple[Move, ...]:
    """The moves whose precondition holds with the query's verdict and these facts, or cannot be
    decided because a value is missing; `applies` is set accordingly."""
    known = _bindings(query, facts)
    decided = (_decided(move, known) for move in moves)
    return tuple(move for move in decided if move.applies is not False)


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
