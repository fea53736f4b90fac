"""At most three skills for a request: scope and preconditions first, then the product of the
score's parts, then diversity.

    score = relevance x evidence x scope x freshness        (the parts are returned)

relevance: 1 / (1 + place) of the best of the skill's signals in the verdict; 0.4 where it names
none of them; less where a precondition lacks a value.
evidence, from n trials (uses with a known effect, and measurements with and without it) of which w
helped, or, measured of a skill to avoid, did harm:

    bound    = Wilson's lower bound at 95 %, and for as long as 0.5 lies above it, the smaller of
               0.5 and w / n
    evidence = 0.5 + n / (n + 8) x (bound - 0.5)

so 0.5 without trials, never above Wilson's bound once that is over 0.5, and a win never lowers it
(the bound alone would put one win in one trial, 0.21, far below a skill that nobody tried).
scope: exact hardware 1.0, its family 0.8, any 0.6. freshness: 0.5 for a suspect skill, 0.8 where
its newest evidence is of another toolchain than the one in use, else 1.

Diversity: maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998) over transformation,
operators and words; two skills that claim the same (`structured_key`) are never both shown.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.hardware import Fact
from kb.catalog.skills import EvidenceRow, SkillHead
from kb.predicates import Bindings, Value, compile_predicate
from kb.scope import ScopeFilter
from kb.tokens import tokenize
from retrieval.answer import SkillAnswer
from retrieval.context import count_tokens
from retrieval.request import RetrieveRequest

MAX_SKILLS = 3
DEFAULT_STATES = ("active",)
UNMEASURED = 0.5
SHRINKAGE = 8  # trials at which the record counts as much as not knowing
OPEN_PRECONDITION = 0.8  # a predicate that lacks a value
NO_SIGNAL = 0.4
SUSPECT, OTHER_TOOLCHAIN = 0.5, 0.8
POOL = 30  # best skills among which the diverse ones are sought
TRADE = 0.7  # score against difference
TOKEN_SHARE = 0.25  # of the request's budget for the skills' summaries
WITHHELD_SHARE = 0.1
MAX_ROWS = 5  # measurements shown of a skill, the newest
_SHOWN = (
    *("kind", "hardware_id", "device_id", "toolchain_id", "problem_id", "case_id"),
    *("n", "speedup", "speedup_low", "speedup_high", "created_at"),
)


@dataclass(frozen=True)
class Choice:
    """Best first. withheld: names of skills that would have been among them."""

    answers: tuple[SkillAnswer, ...] = ()
    withheld: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Scored:
    skill: SkillHead
    parts: Mapping[str, float]
    words: frozenset[str]

    @property
    def total(self) -> float:
        return self.parts["total"]


def choose_skills(
    connection: Connection,
    request: RetrieveRequest,
    signals: Sequence[str],
    scope: ScopeFilter,
    metrics: Mapping[str, float],
    facts: Mapping[str, Fact],
    withheld_share: float = WITHHELD_SHARE,
) -> Choice:
    """Only states that the request asks for, `active` unless it says otherwise.

    Without a signal there is nothing to remedy, and a search of an operator begins: then those of
    that operator that have a recipe.

    Of a request with a run_id a share of the skills is withheld, by hash of skill, run and node,
    so that what showing them is worth can be told; nothing takes their place. A request without
    one always gets the same answer.
    """
    if not signals and not request.op:
        return Choice()  # neither a condition to remedy nor an operator to begin with
    rows = store.candidate_skills(
        connection,
        signals,
        scope.hardware,
        request.op,
        request.language,
        request.dtype,
        request.skill_states or DEFAULT_STATES,
        scope.access_scope,
        begins=not signals,
    )
    values: dict[str, Value | None] = {key: fact.value for key, fact in facts.items()}
    bindings = Bindings(
        signals=set(signals), metrics=metrics, facts=values, problem=request.problem_values
    )
    tested = store.tested(connection, [row.id for row in rows])
    toolchains = _in_use(store.present_toolchains(connection), scope.hardware)
    scored = []
    for row in rows:
        relevance = _relevance(row, signals, bindings)
        if relevance is not None:
            parts = {
                "relevance": relevance,
                "evidence": evidence_part(row, tested.get(row.id, (0, 0))),
                "scope": _nearness(row.scopes.hardware, scope.hardware),
                "freshness": _freshness(row, toolchains),
            }
            scored.append((math.prod(parts.values()), row, parts))
    scored.sort(key=lambda entry: (-entry[0], entry[1].name))
    pool = [_scored(row, total, parts) for total, row, parts in scored[:POOL]]
    chosen = _diverse(pool, int(request.max_tokens * TOKEN_SHARE))
    shown = [one for one in chosen if not _is_withheld(one.skill.name, request, withheld_share)]
    return Choice(
        _answers(connection, shown, scope.access_scope),
        tuple(one.skill.name for one in chosen if one not in shown),
    )


# -- the parts of the score


def evidence_part(skill: SkillHead, tested: tuple[int, int] = (0, 0)) -> float:
    """See the module. tested: trials with and without it, and how many of them bore it out."""
    trials, wins = skill.trials + tested[0], skill.wins + tested[1]
    if trials == 0:
        return UNMEASURED
    bound = max(store.wilson(wins, trials).low, min(UNMEASURED, wins / trials))
    return round(UNMEASURED + trials / (trials + SHRINKAGE) * (bound - UNMEASURED), 4)


def _relevance(row: SkillHead, signals: Sequence[str], bindings: Bindings) -> float | None:
    """None when the skill's preconditions do not hold."""
    found = max(
        (1.0 / (1 + signals.index(s)) for s in row.scopes.signals if s in signals),
        default=NO_SIGNAL,
    )
    if row.predicate:
        holds = compile_predicate(row.predicate).evaluate(bindings).value
        if holds is False:
            return None
        if holds is None:
            found *= OPEN_PRECONDITION
    return round(found, 4)


def _nearness(hardware: Sequence[str], asked: Sequence[str] | None) -> float:
    if not hardware:
        return 0.6
    if asked and asked[0] in hardware:
        return 1.0
    return 0.8


def _in_use(
    present: Mapping[str, Mapping[str, str]], asked: Sequence[str] | None
) -> dict[str, frozenset[str]]:
    """Toolchains in use by name: on the hardware that is asked about where they are known there,
    else on any."""
    found: dict[str, set[str]] = {}
    for chains in present.values():
        for name, toolchain in chains.items():
            found.setdefault(name, set()).add(toolchain)
    exact = {name: {text} for name, text in present.get(asked[0] if asked else "", {}).items()}
    return {name: frozenset(texts) for name, texts in {**found, **exact}.items()}


def _freshness(row: SkillHead, in_use: Mapping[str, frozenset[str]]) -> float:
    if row.state == "suspect":
        return SUSPECT
    if row.toolchain_id:
        known = in_use.get(store.toolchain_name(row.toolchain_id))
        if known and row.toolchain_id not in known:
            return OTHER_TOOLCHAIN
    return 1.0


# -- which of them


def _scored(row: SkillHead, total: float, parts: Mapping[str, float]) -> _Scored:
    words = frozenset(tokenize(f"{row.name} {row.description}"))
    return _Scored(row, {**parts, "total": round(total, 4)}, words)


def _diverse(pool: Sequence[_Scored], max_tokens: int) -> list[_Scored]:
    """The best first; then, again and again, the one whose score least repeats what is chosen."""
    left, chosen, spent = list(pool), list[_Scored](), 0
    best = max((one.total for one in pool), default=0.0) or 1.0
    while left and len(chosen) < MAX_SKILLS:
        found = max(left, key=lambda one: _worth(one, best, chosen))
        left.remove(found)
        cost = count_tokens(f"- {found.skill.name}: {found.skill.description}")
        if spent + cost > max_tokens:
            continue
        spent += cost
        chosen.append(found)
        left = [one for one in left if one.skill.structured_key != found.skill.structured_key]
    return chosen


def _worth(one: _Scored, best: float, chosen: Sequence[_Scored]) -> float:
    repeats = max((_alike(one, other) for other in chosen), default=0.0)
    return TRADE * one.total / best - (1 - TRADE) * repeats


def _alike(one: _Scored, other: _Scored) -> float:
    """0 to 1: a third each for the transformation, the operators and the words in common."""
    mine, theirs = one.skill, other.skill
    same = float(mine.transformation == theirs.transformation)
    ops = _overlap(frozenset(mine.scopes.ops), frozenset(theirs.scopes.ops))
    return (same + ops + _overlap(one.words, other.words)) / 3


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    union = one | other
    return len(one & other) / len(union) if union else 1.0


def _is_withheld(skill: str, request: RetrieveRequest, share: float) -> bool:
    if not request.run_id:
        return False
    text = "\x1f".join((skill, request.run_id, request.node_id or ""))
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) < share * 2**32


# -- the answer


def _answers(
    connection: Connection, chosen: Sequence[_Scored], access_scope: str
) -> tuple[SkillAnswer, ...]:
    ids = [one.skill.id for one in chosen]
    evidence = store.evidence_for(connection, ids, access_scope, details=False)
    return tuple(
        SkillAnswer(
            name=one.skill.name,
            summary=_summary(one.skill),
            tier=one.skill.tier,
            state=one.skill.state,
            score=one.parts,
            evidence=_evidence(one.skill, evidence.get(one.skill.id, [])),
        )
        for one in chosen
    )


def _summary(skill: SkillHead) -> str:
    return f"Avoid: {skill.description}" if skill.polarity == "avoid" else skill.description


def _evidence(skill: SkillHead, rows: Sequence[EvidenceRow]) -> dict[str, Any] | None:
    """None where nothing was measured here; a simulator measures no time."""
    if all(row.kind == "simulator" for row in rows):
        return None
    newest = [asdict(row) for row in reversed(rows[-MAX_ROWS:])]
    return {
        "line": store.evidence_line(rows),
        "trials": skill.trials,
        "wins": skill.wins,
        "rows": [{name: row[name] for name in _SHOWN} for row in newest],
    }
