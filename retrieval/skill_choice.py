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
operators and words; two skills that claim the same (`structured_key`, polarity) are never both
shown. A skill and a warning of the same transformation contradict each other: the one comes right
after the other, and each names the other.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection

from kb.catalog.facts import Fact
from kb.catalog.skills.evidence import (
    evidence_for,
    evidence_line,
    present_toolchains,
    toolchain_name,
    trial_counts,
    wilson,
)
from kb.catalog.skills.reading import (
    EvidenceRow,
    SkillHead,
    as_warning,
    candidate_skills,
    error_words,
    shared_languages,
)
from kb.predicates import Bindings, Value, compile_predicate
from kb.problem_terms import canonical_op
from kb.prompt_tokens import count_tokens
from kb.scope import ANY, AccessScope, ScopeFilter
from kb.tokens import tokenize
from retrieval.answer import SkillAnswer
from retrieval.diagnose.error_words import saying
from retrieval.request import RetrieveRequest
from retrieval.request_scope import RUN_EVERYWHERE

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
# Words that a request and a skill without a scope must have in common; these are in most of them.
COMMON_WORDS = 2
_EVERYWHERE = frozenset(tokenize("use using kernel kernels skill faster slow time run avoid"))
_SHOWN = (
    *("kind", "hardware_id", "device_id", "toolchain_id", "problem_id", "case_id"),
    *("n", "speedup", "speedup_low", "speedup_high", "created_at"),
)


@dataclass(frozen=True)
class Choice:
    """Skills to show, best first. `withheld` are the names of skills that were chosen but are not
    shown.
    """

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
    """The skills to show for a request, best first, of the states it names (active by default).

    Without a signal there is nothing to remedy, and a search for a kernel of an operator begins:
    then only skills of that operator that have a recipe are considered. A request with neither gets
    none; without an operator, only skills for operators of any kind are considered. A debugging
    skill is shown where one message of the request's log has the fixed words of its error, whatever
    signals the log gave, and nowhere else. A skill that names neither signal, language nor hardware
    is shown where the request has its operator or its words. Where a request names no hardware and
    is about a run, a skill in a language of one vendor holds for no chip in general. `metrics` are
    canonical values, `facts` are of the hardware by key.

    For a request with a `run_id`, `withheld_share` (0 to 1) of the chosen skills is withheld, by
    hash of skill, run and node, so that the effect of showing them can be measured; nothing takes
    their place. A request without a `run_id` always gets the same answer.
    """
    rows, mending = _candidates(connection, request, signals, scope)
    if not rows:
        return Choice()
    values: dict[str, Value | None] = {key: fact.value for key, fact in facts.items()}
    bindings = Bindings(
        signals=set(signals), metrics=metrics, facts=values, problem=request.problem_values
    )
    tested = trial_counts(connection, [row.id for row in rows])
    toolchains = _in_use(present_toolchains(connection), scope.hardware)
    scored = []
    for row in rows:
        relevance = 1.0 if row.name in mending else _relevance(row, signals, bindings)
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
    shown = [
        scored for scored in chosen if not _is_withheld(scored.skill.name, request, withheld_share)
    ]
    withheld = tuple(skill.skill.name for skill in chosen if skill not in shown)
    return Choice(
        _answers(connection, shown, pool, withheld, scope.access_scope),
        withheld,
    )


def _candidates(
    connection: Connection, request: RetrieveRequest, signals: Sequence[str], scope: ScopeFilter
) -> tuple[list[SkillHead], frozenset[str]]:
    """Skills that may apply, and the names of those that are about an error of the log."""
    if not signals and not request.op and not request.log:
        return [], frozenset()  # no condition to remedy, no operator to begin with, no message
    states = request.skill_states or DEFAULT_STATES
    errors = error_words(connection, states, scope.access_scope)
    mending = saying(request.log or "", errors)
    languages = _admitted_languages(connection, scope)

    def fitting(given: Sequence[str], op: str | None, *, begins: bool) -> list[SkillHead]:
        return candidate_skills(
            connection,
            given,
            scope.hardware,
            op,
            languages,
            request.dtype,
            states,
            scope.access_scope,
            begins=begins,
        )

    rows: list[SkillHead] = []
    if signals or request.op:
        rows = [
            row
            for row in fitting(signals, request.op, begins=not signals)
            if row.name not in errors
            and (request.op or is_for_any(row))
            and (_says_when(row) or _is_named(row, request))
        ]
    if mending:
        rows += [row for row in fitting((), request.op, begins=False) if row.name in mending]
    return rows, mending


def _admitted_languages(connection: Connection, scope: ScopeFilter) -> Sequence[str] | None:
    """The languages of the request; where it wants what is true of any chip, those of any."""
    if scope.languages is not None or scope.hardware is None or {*scope.hardware} - {ANY}:
        return scope.languages
    return (*shared_languages(connection), *RUN_EVERYWHERE)


def _says_when(row: SkillHead) -> bool:
    """Whether the skill says at all when it holds."""
    return bool(row.scopes.signals or row.scopes.languages or row.scopes.hardware)


def _is_named(row: SkillHead, request: RetrieveRequest) -> bool:
    """Whether the request has the skill's operator or some of its words."""
    if request.op and canonical_op(request.op) in row.scopes.ops:
        return True
    asked = {*tokenize(f"{request.query or ''} {request.log or ''}")} - _EVERYWHERE
    return len(asked & {*tokenize(f"{row.name} {row.description}")}) >= COMMON_WORDS


def is_for_any(row: SkillHead) -> bool:
    """Whether a skill is for operators of any kind. Where none is named, one for embedding bags
    beside one for convolutions is no advice.
    """
    return not row.scopes.ops


# -- the parts of the score


def evidence_part(skill: SkillHead, tested: tuple[int, int] = (0, 0)) -> float:
    """The evidence part of the score, 0 to 1 (the module says how). `tested` is the number of
    trials with and without the skill, and how many of them were in its favour.
    """
    trials, wins = skill.trials + tested[0], skill.wins + tested[1]
    if trials == 0:
        return UNMEASURED
    bound = max(wilson(wins, trials).low, min(UNMEASURED, wins / trials))
    return round(UNMEASURED + trials / (trials + SHRINKAGE) * (bound - UNMEASURED), 4)


def _relevance(row: SkillHead, signals: Sequence[str], bindings: Bindings) -> float | None:
    """None when the skill's preconditions do not hold."""
    relevance = max(
        (1.0 / (1 + signals.index(s)) for s in row.scopes.signals if s in signals),
        default=NO_SIGNAL,
    )
    if row.predicate:
        holds = compile_predicate(row.predicate).evaluate(bindings).value
        if holds is False:
            return None
        if holds is None:
            relevance *= OPEN_PRECONDITION
    return round(relevance, 4)


def _nearness(hardware: Sequence[str], wanted: Sequence[str] | None) -> float:
    if not hardware:
        return 0.6
    if wanted and wanted[0] in hardware:
        return 1.0
    return 0.8


def _in_use(
    present: Mapping[str, Mapping[str, str]], wanted: Sequence[str] | None
) -> dict[str, frozenset[str]]:
    """Toolchains in use, by name: on the hardware of the request if known there, else on any."""
    by_name: dict[str, set[str]] = {}
    for chains in present.values():
        for name, toolchain in chains.items():
            by_name.setdefault(name, set()).add(toolchain)
    exact = {name: {text} for name, text in present.get(wanted[0] if wanted else "", {}).items()}
    return {name: frozenset(texts) for name, texts in {**by_name, **exact}.items()}


def _freshness(row: SkillHead, in_use: Mapping[str, frozenset[str]]) -> float:
    if row.state == "suspect":
        return SUSPECT
    if row.toolchain_id:
        known = in_use.get(toolchain_name(row.toolchain_id))
        if known and row.toolchain_id not in known:
            return OTHER_TOOLCHAIN
    return 1.0


# -- which of them


def _scored(row: SkillHead, total: float, parts: Mapping[str, float]) -> _Scored:
    words = frozenset(tokenize(f"{row.name} {row.description}"))
    return _Scored(row, {**parts, "total": round(total, 4)}, words)


def _diverse(pool: Sequence[_Scored], max_tokens: int) -> list[_Scored]:
    """The best first, then repeatedly the skill of highest score that repeats the chosen ones
    least. What contradicts the last one comes next.
    """
    left, chosen, spent = list(pool), list[_Scored](), 0
    best = max((entry.total for entry in pool), default=0.0) or 1.0
    while left and len(chosen) < MAX_SKILLS:
        opposed = [entry for entry in left if chosen and _contradict(entry, chosen[-1])]
        best_next = max(opposed or left, key=lambda entry: _worth(entry, best, chosen))
        left.remove(best_next)
        cost = count_tokens(f"- {best_next.skill.name}: {best_next.skill.description}")
        if spent + cost > max_tokens:
            continue
        spent += cost
        chosen.append(best_next)
        left = [entry for entry in left if _claim(entry) != _claim(best_next)]
    return chosen


def _claim(entry: _Scored) -> tuple[str, str]:
    return entry.skill.structured_key, entry.skill.polarity


def _contradict(entry: _Scored, other: _Scored) -> bool:
    """Whether one warns of what the other advises; both hold for the request."""
    mine, theirs = entry.skill, other.skill
    return mine.transformation == theirs.transformation and mine.polarity != theirs.polarity


def _worth(entry: _Scored, best: float, chosen: Sequence[_Scored]) -> float:
    repeats = max((_alike(entry, other) for other in chosen), default=0.0)
    return TRADE * entry.total / best - (1 - TRADE) * repeats


def _alike(entry: _Scored, other: _Scored) -> float:
    """0 to 1: a third each for the transformation, the operators and the words in common."""
    mine, theirs = entry.skill, other.skill
    same = float(mine.transformation == theirs.transformation)
    ops = _overlap(frozenset(mine.scopes.ops), frozenset(theirs.scopes.ops))
    return (same + ops + _overlap(entry.words, other.words)) / 3


def _overlap(words: frozenset[str], other: frozenset[str]) -> float:
    union = words | other
    return len(words & other) / len(union) if union else 1.0


def _is_withheld(skill: str, request: RetrieveRequest, share: float) -> bool:
    if not request.run_id:
        return False
    text = "\x1f".join((skill, request.run_id, request.node_id or ""))
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) < share * 2**32


# -- the answer


def _answers(
    connection: Connection,
    chosen: Sequence[_Scored],
    pool: Sequence[_Scored],
    withheld: Sequence[str],
    access_scope: AccessScope,
) -> tuple[SkillAnswer, ...]:
    ids = [entry.skill.id for entry in chosen]
    evidence = evidence_for(connection, ids, access_scope, details=False)
    return tuple(
        SkillAnswer(
            name=entry.skill.name,
            summary=_summary(
                entry.skill,
                [
                    other.skill.name
                    for other in pool
                    if _contradict(entry, other) and other.skill.name not in withheld
                ],
            ),
            tier=entry.skill.tier,
            state=entry.skill.state,
            score=entry.parts,
            evidence=_evidence(entry.skill, evidence.get(entry.skill.id, [])),
        )
        for entry in chosen
    )


def _summary(skill: SkillHead, opposed: Sequence[str]) -> str:
    """What it says, and the names of the skills that say the opposite."""
    names = ", ".join(opposed)
    if skill.polarity == "avoid":
        return as_warning(skill.description) + (f" (Advised by {names}.)" if names else "")
    return skill.description + (f" (Warned of by {names}.)" if names else "")


def _evidence(skill: SkillHead, rows: Sequence[EvidenceRow]) -> dict[str, Any] | None:
    """None where nothing was measured here; a simulator measures no time."""
    if all(row.kind == "simulator" for row in rows):
        return None
    newest = [asdict(row) for row in reversed(rows[-MAX_ROWS:])]
    return {
        "line": evidence_line(rows),
        "trials": skill.trials,
        "wins": skill.wins,
        "rows": [{name: row[name] for name in _SHOWN} for row in newest],
    }
