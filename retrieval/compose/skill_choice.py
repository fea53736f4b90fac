"""At most three skills for a request: scope and preconditions first, then the product of the
score's parts.

    score = relevance x evidence x scope x freshness        (parts are returned)

relevance: how near the skill's signals are to the leading signal of the verdict. evidence: 0.5
where nothing was measured here. scope: exact hardware 1.0, its family 0.8, any 0.6. freshness: 0.5
for a suspect skill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from kb.catalog.hardware import Fact
from kb.catalog.skills import SkillRow, candidate_skills
from kb.predicates import Bindings, Value, compile_predicate
from kb.scope import ScopeFilter
from retrieval.answer import RetrieveRequest, SkillAnswer

MAX_SKILLS = 3
DEFAULT_STATES = ("active",)
UNMEASURED = 0.5
OPEN_PRECONDITION = 0.8  # a predicate that lacks a value


def choose_skills(
    connection: Connection,
    request: RetrieveRequest,
    signals: Sequence[str],
    scope: ScopeFilter,
    metrics: Mapping[str, float],
    facts: Mapping[str, Fact],
) -> tuple[SkillAnswer, ...]:
    """Best first; only states that the request asks for, `active` unless it says otherwise."""
    if not signals:
        return ()  # skills are remedies: without a condition there is nothing to remedy
    values: dict[str, Value | None] = {key: fact.value for key, fact in facts.items()}
    bindings = Bindings(
        signals=set(signals), metrics=metrics, facts=values, problem=request.problem_values
    )
    rows = candidate_skills(
        connection,
        signals,
        scope.hardware,
        request.op,
        request.language,
        request.dtype,
        request.skill_states or DEFAULT_STATES,
        scope.access_scope,
    )
    scored = []
    for row in rows:
        parts = _parts(row, signals, scope, bindings)
        if parts is not None:
            total = 1.0
            for part in parts.values():
                total *= part
            scored.append((total, row, {**parts, "total": round(total, 4)}))
    scored.sort(key=lambda entry: (-entry[0], entry[1].name))
    return tuple(
        SkillAnswer(
            name=row.name,
            summary=row.description,
            tier=row.tier,
            state=row.state,
            score=parts,
            evidence=None,
        )
        for _, row, parts in scored[:MAX_SKILLS]
    )


def _parts(
    row: SkillRow, signals: Sequence[str], scope: ScopeFilter, bindings: Bindings
) -> dict[str, float] | None:
    """None when the skill's preconditions do not hold."""
    relevance = max(
        (1.0 / (1 + signals.index(s)) for s in row.scopes.signals if s in signals), default=0.4
    )
    if row.predicate:
        holds = compile_predicate(row.predicate).evaluate(bindings).value
        if holds is False:
            return None
        if holds is None:
            relevance *= OPEN_PRECONDITION
    return {
        "relevance": round(relevance, 4),
        "evidence": UNMEASURED,
        "scope": _nearness(row.scopes.hardware, scope.hardware),
        "freshness": 0.5 if row.state == "suspect" else 1.0,
    }


def _nearness(hardware: Sequence[str], asked: Sequence[str] | None) -> float:
    if not hardware:
        return 0.6
    if asked and asked[0] in hardware:
        return 1.0
    return 0.8
