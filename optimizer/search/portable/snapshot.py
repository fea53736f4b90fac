"""Knowledge for a machine without the knowledge base: answers fetched ahead, one for each signal,
and one for the beginning of a search, which has no signal.

Excerpts answer the signal on that hardware, whatever the operator, so they are fetched once; moves
and skills are fetched for each operator. The predicates of moves are decided again with the metrics
measured on that machine. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from optimizer.search.knowledge import Knowledge, Query, applicable_moves, knowledge_from_json
from optimizer.search.records import Node

KEPT_EXCERPTS = 3
BEGINNING = ""  # stands for the signal of a query that has none
Ask = Callable[[Query], Knowledge]


@dataclass
class Snapshot:
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
) -> Snapshot:
    """Fetch the answers for these signals and operators.

    `consult` answers with excerpts too, `moves` with moves and skills alone. `template` is the
    query without signal and operator.
    """
    snapshot = Snapshot()
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
