"""What a proposal can know: facts, moves, excerpts and skills for the verdict it starts from.

The interface between the search and the knowledge base: a service, the catalog in process, or the
snapshot of a portable session stand behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from kb.predicates import Bindings, compile_predicate
from kb.problem_terms import canonical_dtype, canonical_op
from optimizer.search.records import Node, ShownIds

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

    def shown(self) -> ShownIds:
        """The ids of everything in the answer, as a node records them."""
        return ShownIds(
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


# -- snapshot: Knowledge for a machine without the knowledge base: answers fetched ahead, one for

KEPT_EXCERPTS = 3
BEGINNING = ""  # stands for the signal of a query that has none
Ask = Callable[[Query], Knowledge]


@dataclass
class KnowledgeSnapshot:
    """The knowledge that a session takes along.

    `excerpts` holds rows by signal. `answers` holds rows by operator, then by signal, without
    excerpts and facts and with skills by name only; `texts` holds the text of each skill.
    """

    excerpts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    answers: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The JSON that `SnapshotKnowledge` reads."""
        return asdict(self)


def take_snapshot(
    consult: Ask, moves: Ask, signals: Sequence[str], operators: Sequence[str], template: Query
) -> KnowledgeSnapshot:
    """Fetch the answers for these signals and operators.

    `consult` answers with excerpts too, `moves` with moves and skills alone. `template` is the
    query without signal and operator.
    """
    snapshot = KnowledgeSnapshot()
    for signal in signals:
        excerpts = consult(replace(template, signals=(signal,), op="")).excerpts[:KEPT_EXCERPTS]
        if excerpts:
            snapshot.excerpts[signal] = [asdict(excerpt) for excerpt in excerpts]
    for op in dict.fromkeys(operators):
        verdicts: dict[str, tuple[str, ...]] = {signal: (signal,) for signal in signals}
        verdicts[BEGINNING] = ()
        snapshot.answers[op] = {
            key: _kept(moves(replace(template, signals=named, op=op)), snapshot.texts)
            for key, named in verdicts.items()
        }
    return snapshot


def _kept(answer: Knowledge, texts: dict[str, str]) -> dict[str, Any]:
    """The answer's row without the parts that are stored elsewhere in the session."""
    texts.update({skill.name: skill.text for skill in answer.skills})
    bare = tuple(replace(skill, text="") for skill in answer.skills)
    return replace(answer, excerpts=(), facts={}, skills=bare).as_json()


class SnapshotKnowledge:
    """A `KnowledgeSource` over the JSON of a snapshot; an empty one knows the facts alone."""

    def __init__(
        self, snapshot: Mapping[str, Any], op: str, facts: Mapping[str, float | str]
    ) -> None:
        self._facts = dict(facts)
        answers = snapshot.get("answers", {}).get(op, {})
        self._answers = {
            signal: self._whole(snapshot, signal, answers[signal]) for signal in answers
        }

    def _whole(self, snapshot: Mapping[str, Any], signal: str, row: Mapping[str, Any]) -> Knowledge:
        answer = knowledge_from_json({**row, "excerpts": snapshot["excerpts"].get(signal, [])})
        skills = tuple(replace(s, text=snapshot["texts"][s.name]) for s in answer.skills)
        return replace(answer, skills=skills, facts=self._facts)

    def consult(self, query: Query) -> Knowledge:
        """The answer for the leading signal that there is one for, its moves decided with the
        verdict's metrics."""
        signals = query.signals or (BEGINNING,)
        leading = next((signal for signal in signals if signal in self._answers), None)
        if leading is None:
            return Knowledge(facts=self._facts)
        answer = self._answers[leading]
        return replace(answer, moves=applicable_moves(answer.moves, query, self._facts))

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Node) -> None:
        """Do nothing: the nodes carry the result, and importing the session reports it."""
