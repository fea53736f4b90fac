"""Knowledge for a machine without the knowledge base: answers fetched ahead, one for each signal.

Moves are decided anew with what is measured there. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kb.predicates import Bindings, compile_predicate
from optimizer.search.knowledge import Knowledge, Query, Remedy, knowledge_from_json
from optimizer.search.records import Node

KEPT_EXCERPTS = 3
ANY = ""  # key of the answer for a verdict without signals


def take_snapshot(
    consult: Callable[[Query], Knowledge], signals: Sequence[str], template: Query
) -> dict[str, Any]:
    """Answers as JSON by signal. template: the query without its signal."""
    found = {}
    for signal in signals:
        answer = consult(replace(template, signals=(signal,)))
        kept = replace(answer, excerpts=answer.excerpts[:KEPT_EXCERPTS])
        if kept.remedies or kept.excerpts or kept.skills:
            found[signal] = kept.as_json()
    return found


class SnapshotKnowledge:
    """A `KnowledgeSource` over a snapshot."""

    def __init__(self, snapshot: Mapping[str, Any], facts: Mapping[str, float | str]) -> None:
        self._answers = {signal: knowledge_from_json(row) for signal, row in snapshot.items()}
        self._facts = dict(facts)

    def consult(self, query: Query) -> Knowledge:
        """The answer for the leading signal that there is one for, its moves decided with the
        verdict's metrics."""
        leading = next((signal for signal in query.signals if signal in self._answers), None)
        if leading is None:
            return Knowledge(facts=self._facts)
        found = self._answers[leading]
        bindings = Bindings(
            signals=set(query.signals),
            metrics={n: v for n, v in query.metrics.items() if isinstance(v, int | float)},
            facts=self._facts,
            problem={"op": query.op, "dtype": query.dtype, "language": query.language},
        )
        decided = (_decided(remedy, bindings) for remedy in found.remedies)
        return replace(found, remedies=tuple(r for r in decided if r.applies is not False))

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Node) -> None:
        """The nodes carry it home; the knowledge base is told when they are imported."""


def _decided(remedy: Remedy, bindings: Bindings) -> Remedy:
    if not remedy.when:
        return remedy
    return replace(remedy, applies=compile_predicate(remedy.when).evaluate(bindings).value)
