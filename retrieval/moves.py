"""The moves that fit a verdict: predicates decided over its signals, the metrics, the chip's facts
and the problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kb.catalog.hardware import Fact
from kb.catalog.knowledge.moves import StoredMove
from kb.predicates import Bindings, Value, compile_predicate
from retrieval.answer import Move

MAX_MOVES = 8  # of any role, and again of the roles that the caller names


def fitting_moves(
    moves: Sequence[StoredMove],
    signals: Sequence[str],
    metrics: Mapping[str, float],
    facts: Mapping[str, Fact],
    problem: Mapping[str, Value | None],
    lineage: Sequence[str],
    roles: Sequence[str] = (),
) -> tuple[Move, ...]:
    """The moves for a verdict: those that hold, then those that only lack a value; within these the
    leading signal's first, and the chip's own before general ones.

    At most MAX_MOVES of any role, followed by at most MAX_MOVES further ones of `roles`, so that
    moves of other roles cannot crowd them out. A move that names no signal rests on values alone,
    so it is listed only when it holds. `signals` are ids, the leading one first, `metrics`
    canonical values, and `lineage` the hardware with its families, nearest first.
    """
    bindings = Bindings(
        signals=set(signals),
        metrics=metrics,
        facts={key: fact.value for key, fact in facts.items()},
        problem=problem,
    )
    decided: list[tuple[tuple[Any, ...], Move]] = []
    for order, move in enumerate(moves):
        outcome = compile_predicate(move.predicate).evaluate(bindings)
        if outcome.value is False or (not move.signals and outcome.value is not True):
            continue
        place = [lineage.index(h) for h in move.hardware if h in lineage]
        nearness = min(place, default=len(lineage))
        leading = min((signals.index(s) for s in move.signals if s in signals), default=99)
        key = (outcome.value is None, leading, nearness, order)
        decided.append((key, _answer(move, outcome.value, outcome.missing, facts)))
    ordered = [answer for _, answer in sorted(decided, key=lambda pair: pair[0])]
    further = [answer for answer in ordered[MAX_MOVES:] if answer.change.get("role") in roles]
    return tuple(ordered[:MAX_MOVES] + further[:MAX_MOVES])


def _answer(
    move: StoredMove, applies: bool | None, missing: tuple[str, ...], facts: Mapping[str, Fact]
) -> Move:
    limit = None
    if move.limit_fact is not None:
        fact = facts.get(move.limit_fact)
        limit = {
            "fact": move.limit_fact,
            "value": fact.value if fact else None,
            "unit": fact.unit if fact else None,
            "source": f"{fact.title}, {fact.locator}" if fact else None,
        }
    return Move(
        id=move.id,
        name=move.name,
        when=move.predicate,
        applies=applies,
        change=move.change,
        limit=limit,
        why=move.why,
        missing=missing,
        source={
            "document": move.document_title or "",
            "document_id": move.document_id,
            "section": move.section,
        },
    )
