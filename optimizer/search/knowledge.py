"""Knowledge that proposers are shown: facts, moves, excerpts and skills for the verdict of a node.

The interface between the search and the knowledge base: the retriever of this process, or the
answers that a packed session brings along. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from kb.plain import from_json
from kb.predicates import Bindings, compile_predicate
from kb.problem_terms import guide_words
from optimizer.search.records import Node, ShownIds
from retrieval.request import RetrieveRequest

Number = float | str


@dataclass(frozen=True)
class ShownExcerpt:
    """A cited piece of a document: data, never an instruction."""

    id: str
    title: str
    text: str
    citation: str = ""


@dataclass(frozen=True)
class ShownMove:
    """A parameter change that fits the verdict.

    `change` is {role, direction, to, factor}, or {avoid: [{role, direction}, ...]} for a change
    that a skill warns of; that has no role, so no proposer follows it. `limit` bounds the value, in
    `limit_unit` (a unit of kb/hardware/fact_keys.toml). `when` is its predicate, evaluated again
    when more values are known; `applies`: None while values are missing.
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
class ShownKnowledge:
    """An answer of the knowledge base; `facts` are those of the hardware, by key, with `units`.

    `target` and `situation` are the two parts of the composed context: the chip and its language,
    equal in every answer of a run, and help with the latest result. `parts` are the ids of their
    quotations. All three are empty from a source that composes no context.
    """

    retrieval_id: str = ""
    excerpts: tuple[ShownExcerpt, ...] = ()
    moves: tuple[ShownMove, ...] = ()
    skills: tuple[ShownSkill, ...] = ()
    facts: Mapping[str, Number] = field(default_factory=dict)
    target: str = ""
    situation: str = ""
    parts: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)

    def shown(self) -> ShownIds:
        """The ids of everything in the answer, as a node records them."""
        return ShownIds(
            self.retrieval_id,
            tuple(dict.fromkeys([*(excerpt.id for excerpt in self.excerpts), *self.parts])),
            tuple(move.id for move in self.moves),
            tuple(skill.name for skill in self.skills),
        )

    def as_json(self) -> dict[str, Any]:
        """The JSON of packed answers and contexts; the key of the moves is `remedies`."""
        row = asdict(self)
        return {"remedies" if name == "moves" else name: value for name, value in row.items()}


def knowledge_from_json(row: Mapping[str, Any]) -> ShownKnowledge:
    """Inverse of `ShownKnowledge.as_json`."""
    return from_json(ShownKnowledge, {**row, "moves": row["remedies"]})


class KnowledgeSource(Protocol):
    """Answers requests of a search."""

    def consult(self, request: RetrieveRequest) -> ShownKnowledge:
        """The knowledge that fits the request. Raises `kb.errors.KernloreError`."""
        ...

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """Report the result of a candidate for later ranking; `used` are ids of what made it."""
        ...


class NoKnowledge:
    """The empty source of `--knowledge off`."""

    def consult(self, request: RetrieveRequest) -> ShownKnowledge:
        """An empty answer."""
        return ShownKnowledge()

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """Do nothing."""


def operator_query(op: str | None, language: str | None) -> str:
    """Words to search for when no signal, log or task narrows a request."""
    return " ".join(filter(None, ("faster", guide_words(op or ""), language, "kernel")))


def applicable_moves(
    moves: Iterable[ShownMove], request: RetrieveRequest, facts: Mapping[str, Number]
) -> tuple[ShownMove, ...]:
    """The moves whose precondition holds for the request and these facts, or cannot be decided
    because a value is missing; `applies` is set accordingly."""
    metrics = (request.metrics or {}).items()
    known = Bindings(
        signals=set(request.signals),
        metrics={name: value for name, value in metrics if isinstance(value, int | float)},
        facts=facts,
        problem=request.problem_values,
    )
    decided = (
        replace(move, applies=compile_predicate(move.when).evaluate(known).value)
        if move.when
        else move
        for move in moves
    )
    return tuple(move for move in decided if move.applies is not False)


# -- answers for a machine without the knowledge base

PACKED_EXCERPTS = 3  # for each signal
BEGINNING = ""  # key of the answer to a request without signals
Ask = Callable[[RetrieveRequest], ShownKnowledge]


@dataclass
class KnowledgeSnapshot:
    """Answers that a packed session brings along: one for each signal, and one for the beginning
    of a search, which has no signal.

    `excerpts` holds rows by signal, since they do not depend on the operator. `answers` holds rows
    by operator, then by signal, without excerpts and facts and with skills by name only; `texts`
    holds the text of each skill.
    """

    excerpts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    answers: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


def take_snapshot(
    consult: Ask,
    moves: Ask,
    signals: Sequence[str],
    operators: Sequence[str],
    template: RetrieveRequest,
) -> KnowledgeSnapshot:
    """Fetch the answers for these signals and operators.

    `consult` answers with excerpts, `moves` with moves and skills alone. `template` is the request
    without signals and operator.
    """
    snapshot = KnowledgeSnapshot()
    for signal in signals:
        excerpts = consult(replace(template, signals=(signal,))).excerpts[:PACKED_EXCERPTS]
        if excerpts:
            snapshot.excerpts[signal] = [asdict(excerpt) for excerpt in excerpts]
    for op in dict.fromkeys(operators):
        words = operator_query(op, template.language)
        requests = {signal: replace(template, signals=(signal,), op=op) for signal in signals}
        requests[BEGINNING] = replace(template, op=op, query=words)
        snapshot.answers[op] = {
            key: _without_texts(moves(request), snapshot.texts) for key, request in requests.items()
        }
    return snapshot


def _without_texts(answer: ShownKnowledge, texts: dict[str, str]) -> dict[str, Any]:
    """The answer's row without the parts that a snapshot stores once; fills `texts`."""
    texts.update({skill.name: skill.text for skill in answer.skills})
    bare = tuple(replace(skill, text="") for skill in answer.skills)
    return replace(answer, excerpts=(), facts={}, skills=bare).as_json()


class SnapshotKnowledge:
    """A `KnowledgeSource` over the JSON of a snapshot; an empty one has only the facts."""

    def __init__(self, snapshot: Mapping[str, Any], op: str, facts: Mapping[str, Number]) -> None:
        self._facts = dict(facts)
        answers = snapshot.get("answers", {}).get(op, {})
        self._answers = {
            signal: self._whole(snapshot, signal, answers[signal]) for signal in answers
        }

    def _whole(
        self, snapshot: Mapping[str, Any], signal: str, row: Mapping[str, Any]
    ) -> ShownKnowledge:
        answer = knowledge_from_json({**row, "excerpts": snapshot["excerpts"].get(signal, [])})
        skills = tuple(replace(s, text=snapshot["texts"][s.name]) for s in answer.skills)
        return replace(answer, skills=skills, facts=self._facts)

    def consult(self, request: RetrieveRequest) -> ShownKnowledge:
        """The answer for the first signal that has one, its moves decided with the metrics of the
        request, which were measured on this machine."""
        signals = request.signals or (BEGINNING,)
        leading = next((signal for signal in signals if signal in self._answers), None)
        if leading is None:
            return ShownKnowledge(facts=self._facts)
        answer = self._answers[leading]
        return replace(answer, moves=applicable_moves(answer.moves, request, self._facts))

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Node) -> None:
        """Do nothing: importing the session reports what its nodes record."""
