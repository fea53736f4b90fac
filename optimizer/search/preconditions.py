"""Whether the preconditions of remedies hold, from what is known when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kb.predicates import Bindings, compile_predicate
from kb.problem_terms import canonical_dtype, canonical_op
from optimizer.search.knowledge import Query, Remedy


def decided(
    remedies: Iterable[Remedy], query: Query, facts: Mapping[str, float | str]
) -> tuple[Remedy, ...]:
    """Without those whose precondition does not hold; one that lacks a value stays undecided."""
    known = _bindings(query, facts)
    found = (_decided(remedy, known) for remedy in remedies)
    return tuple(remedy for remedy in found if remedy.applies is not False)


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


def _decided(remedy: Remedy, known: Bindings) -> Remedy:
    if not remedy.when:
        return remedy
    return replace(remedy, applies=compile_predicate(remedy.when).evaluate(known).value)
