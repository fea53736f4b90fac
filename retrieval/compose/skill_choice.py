"""At most three skills for a request: scope and preconditions first, then the product of the
score's parts, then diversity.

    score = relevance x evidence x scope x freshness        (the parts are returned)

relevance: 1 / (1 + rank) of the best of the skill's signals in the verdict; 0.4 if it names none of
them; less if a precondition lacks a value.
evidence, from n trials (uses with a known effect, and measurements with and without the skill) with
w successes (for a skill to avoid: measured harm):

    bound    = Wilson's lower bound at 95 %; while that is below 0.5, min(0.5, w / n)
    evidence = 0.5 + n / (n + 8) x (bound - 0.5)

so 0.5 without trials, never above Wilson's bound once that is over 0.5, and a win never lowers it
(by the bound alone, one win in one trial, 0.21, would rank far below an untried skill).
scope: exact hardware 1.0, its family 0.8, any 0.6. freshness: 0.5 for a suspect skill, 0.8 if its
newest evidence is of another toolchain than the one in use, else 1.

Trials that ship with a skill are trials of its evidence too. Of the chosen skills, those that were
never tested come after the others, and those that were slower or did harm come last; a skill and a
warning against it stay next to each other.

Diversity: maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998) over transformation,
operators and words; two skills with the same claim (`structured_key`, polarity) are never both
shown. A skill and a warning against the same transformation contradict each other: they are listed
consecutively, and each names the other.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from kb.answers import SkillAnswer
from kb.catalog.facts import Fact
from kb.catalog.skills.evidence import MeasuredSkill, evidence_line, toolchain_name, wilson
from kb.catalog.skills.reading import EvidenceRow, SkillHead, as_warning
from kb.catalog.skills.shipped import SkillEffect
from kb.predicates import Bindings, Value, compile_predicate
from kb.problem_terms import canonical_op
from kb.prompt_tokens import count_tokens
from kb.scope import ANY, AccessScope, ScopeFilter
from kb.tokens import tokenize
from retrieval.diagnose.log_digest import matching_keys
from retrieval.operators import load_operators
from retrieval.request import RetrieveRequest
from retrieval.scope import RUN_EVERYWHERE
from retrieval.snapshot.knowledge import Knowledge

MAX_SKILLS = 3
DEFAULT_STATES = ("active",)
UNMEASURED = 0.5
SHRINKAGE = 8  # trials at which the record weighs as much as the prior
OPEN_PRECONDITION = 0.8  # for a predicate with a missing value
NO_SIGNAL = 0.4
SUSPECT, OTHER_TOOLCHAIN = 0.5, 0.8
POOL = 30  # best skills from which the diverse ones are chosen
OTHER_VERSIONS = 0.8  # weight of a skill that was seen with other versions only
TRADE = 0.7  # weight of the score against diversity
TOKEN_SHARE = 0.25  # of the request's budget for the skills' summaries
WITHHELD_SHARE = 0.1
MAX_ROWS = 5  # newest measurements listed of a skill
# Words that a request and a skill without a scope must share; these words occur in most of them.
COMMON_WORDS = 2
_EVERYWHERE = frozenset(tokenize("use using kernel kernels skill faster slow time run avoid"))
_SHOWN = (
    *("kind", "hardware_id", "device_id", "toolchain_id", "problem_id", "case_id"),
    *("n", "speedup", "speedup_low", "speedup_high", "created_at"),
)


@dataclass(frozen=True)
class SkillSelection:
    """Skills to show, best first. `withheld` are the names of chosen skills that are not shown."""

    answers: tuple[SkillAnswer, ...] = ()
    withheld: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Scored:
    known: MeasuredSkill
    parts: Mapping[str, float]
    words: frozenset[str]

    @property
    def skill(self) -> SkillHead:
        return self.known.head

    @property
    def total(self) -> float:
        return self.parts["total"]


def choose_skills(
    knowledge: Knowledge,
    request: RetrieveRequest,
    signals: Sequence[str],
    scope: ScopeFilter,
    metrics: Mapping[str, float],
    facts: Mapping[str, Fact],
    withheld_share: float = WITHHELD_SHARE,
    marks: Callable[[SkillHead], Sequence[str]] = lambda skill: (),
    kinds: Sequence[str] = (),
) -> SkillSelection:
    """The skills to show for a request, best first, of the states it names (active by default).

    Without a signal, a search for a kernel of an operator begins: then only skills of that operator
    that have a recipe are considered. A request with neither gets none; without an operator, only
    skills for operators of any kind are considered. A debugging skill is shown only if a message of
    the request's log contains the fixed words of its error, independent of the signals. A skill
    that names neither signal, language nor hardware is shown if the request has its operator or its
    words. If a request of a run names no hardware, skills in a language of one vendor do not apply.

    `metrics` are canonical values, `facts` are of the hardware by key. For a request with a
    `run_id`, `withheld_share` (0 to 1) of the chosen skills is withheld, by hash of skill, run and
    node, so that the effect of showing them can be measured; they are not replaced. The built-in
    search gives a `draw` in place of the run, so that a run with the same problem and seed gets the
    same answers. A request without a `run_id` always gets the same answer. A skill with `marks`,
    which was seen with other versions of tools only, counts less; one whose recipe computes another
    operator than that of the `kinds` is not shown.
    """
    skills, mending = _candidates(knowledge, request, signals, scope)
    skills = [skill for skill in skills if not _is_for_another(skill, kinds)]
    if not skills:
        return SkillSelection()
    values: dict[str, Value | None] = {key: fact.value for key, fact in facts.items()}
    bindings = Bindings(
        signals=set(signals), metrics=metrics, facts=values, problem=request.problem_values
    )
    toolchains = _in_use(knowledge.toolchains, scope.hardware)
    scored = []
    for known in skills:
        head = known.head
        relevance = 1.0 if head.name in mending else _relevance(head, signals, bindings)
        if relevance is not None:
            parts = {
                "relevance": relevance,
                "evidence": evidence_part(head, _trials(known)),
                "scope": _nearness(head.scopes.hardware, scope.hardware),
                "freshness": _freshness(head, toolchains),
            }
            if marks(head):
                parts["versions"] = OTHER_VERSIONS
            scored.append((math.prod(parts.values()), known, parts))
    scored.sort(key=lambda entry: (-entry[0], entry[1].head.name))
    pool = [_scored(known, total, parts) for total, known, parts in scored[:POOL]]
    chosen = _tested_first(_diverse(pool, int(request.max_tokens * TOKEN_SHARE)))
    shown = [
        scored for scored in chosen if not _is_withheld(scored.skill.name, request, withheld_share)
    ]
    withheld = tuple(skill.skill.name for skill in chosen if skill not in shown)
    return SkillSelection(_answers(shown, pool, withheld, scope.access_scope), withheld)


def _candidates(
    knowledge: Knowledge, request: RetrieveRequest, signals: Sequence[str], scope: ScopeFilter
) -> tuple[list[MeasuredSkill], frozenset[str]]:
    """Skills that may apply, and the names of those that are about an error of the log."""
    if not signals and not request.op and not request.log:
        return [], frozenset()  # nothing to fix, no operator to start with, no message
    states = request.skill_states or DEFAULT_STATES
    seen = knowledge.seen_skills(states, scope.access_scope)
    errors = {skill.head.name: skill.error for skill in seen if skill.error is not None}
    mending = matching_keys(request.log or "", errors)
    languages = _admitted_languages(knowledge, scope)

    def fitting(given: Sequence[str], *, begins: bool) -> list[MeasuredSkill]:
        return knowledge.fitting_skills(
            given,
            scope.hardware,
            request.op,
            languages,
            request.dtype,
            states,
            scope.access_scope,
            begins=begins,
        )

    skills: list[MeasuredSkill] = []
    if signals or request.op:
        skills = [
            skill
            for skill in fitting(signals, begins=not signals)
            if skill.head.name not in errors
            and (request.op or is_for_any(skill.head))
            and (_has_condition(skill.head) or _is_named(skill.head, request))
        ]
    if mending:
        skills += [skill for skill in fitting((), begins=False) if skill.head.name in mending]
    return skills, mending


def _is_for_another(known: MeasuredSkill, kinds: Sequence[str]) -> bool:
    """Whether the recipe of a skill computes another operator than that of the request, of the
    given kinds: attention over whole sequences, where a step over a paged cache is asked for. One
    for a special case of the operator may fit: the request need not say its sizes."""
    if known.recipe is None or not kinds:
        return False
    own = _kinds_of_recipe(known.head.name, known.head.scopes.ops)
    return bool(own) and kinds[0] not in own


@lru_cache(maxsize=4096)  # 0.1 ms an operator, for every skill that fits a request
def _kinds_of_recipe(skill: str, ops: tuple[str, ...]) -> frozenset[str]:
    """The kinds of a recipe, with those of which they are special cases."""
    operators, title = load_operators(), skill.partition("-")[2].replace("-", " ")
    own = {kind for op in ops for kind in operators.of_title(op, title).kinds}
    return frozenset(own.union(*(operators.kinds[kind].refines for kind in own)))


def _admitted_languages(knowledge: Knowledge, scope: ScopeFilter) -> Sequence[str] | None:
    """The languages of the request; those of any chip if the request is about no chip in
    particular."""
    if scope.languages is not None or scope.hardware is None or {*scope.hardware} - {ANY}:
        return scope.languages
    return (*knowledge.shared_languages, *RUN_EVERYWHERE)


def _has_condition(row: SkillHead) -> bool:
    """Whether the skill states any condition."""
    return bool(row.scopes.signals or row.scopes.languages or row.scopes.hardware)


def _is_named(row: SkillHead, request: RetrieveRequest) -> bool:
    """Whether the request has the skill's operator or some of its words."""
    if request.op and canonical_op(request.op) in row.scopes.ops:
        return True
    words = {*tokenize(f"{request.query or ''} {request.log or ''}")} - _EVERYWHERE
    return len(words & {*tokenize(f"{row.name} {row.description}")}) >= COMMON_WORDS


def is_for_any(row: SkillHead) -> bool:
    """Whether a skill is for operators of any kind. Without an operator in the request, skills for
    particular operators are no useful advice."""
    return not row.scopes.ops


# -- the parts of the score


def evidence_part(skill: SkillHead, tested: tuple[int, int] = (0, 0)) -> float:
    """The evidence part of the score, 0 to 1 (formula in the module docstring). `tested` is the
    number of trials with and without the skill, and the number of them in its favour."""
    trials, wins = skill.trials + tested[0], skill.wins + tested[1]
    if trials == 0:
        return UNMEASURED
    bound = max(wilson(wins, trials).low, min(UNMEASURED, wins / trials))
    return round(UNMEASURED + trials / (trials + SHRINKAGE) * (bound - UNMEASURED), 4)


def _trials(known: MeasuredSkill) -> tuple[int, int]:
    """The number of its trials here and of those that ship with it, and of those in its favour."""
    shipped = [t for t in known.shipped if t.gain is not None and t.made]
    trials, wins = known.tested
    return trials + len(shipped), wins + sum(t.helps for t in shipped)


def _relevance(row: SkillHead, signals: Sequence[str], bindings: Bindings) -> float | None:
    """None if the skill's preconditions do not hold."""
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


def _nearness(hardware: Sequence[str], lineage: Sequence[str] | None) -> float:
    if not hardware:
        return 0.6
    if lineage and lineage[0] in hardware:
        return 1.0
    return 0.8


def _in_use(
    present: Mapping[str, Mapping[str, str]], lineage: Sequence[str] | None
) -> dict[str, frozenset[str]]:
    """Toolchains in use, by name: on the hardware of the request if known there, else on any."""
    by_name: dict[str, set[str]] = {}
    for chains in present.values():
        for name, toolchain in chains.items():
            by_name.setdefault(name, set()).add(toolchain)
    exact = {name: {text} for name, text in present.get(lineage[0] if lineage else "", {}).items()}
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


def _scored(known: MeasuredSkill, total: float, parts: Mapping[str, float]) -> _Scored:
    words = frozenset(tokenize(f"{known.head.name} {known.head.description}"))
    return _Scored(known, {**parts, "total": round(total, 4)}, words)


def _diverse(pool: Sequence[_Scored], max_tokens: int) -> list[_Scored]:
    """The best skill, then repeatedly the skill with the best score after its similarity to the
    chosen ones is deducted. A skill that contradicts the last chosen one comes next."""
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


def _tested_first(chosen: Sequence[_Scored]) -> list[_Scored]:
    """Measured skills before untested ones, and slower ones last, in groups of skills that
    contradict each other."""
    groups: list[list[_Scored]] = []
    for entry in chosen:
        if groups and _contradict(entry, groups[-1][-1]):
            groups[-1].append(entry)
        else:
            groups.append([entry])
    groups.sort(key=lambda group: min(_turn(e.known.effect) for e in group))
    return [entry for group in groups for entry in group]


def _turn(effect: SkillEffect) -> int:
    """0 for a skill that was measured, 1 for an untested one, 2 for one that was rather slower."""
    if effect.state == "untested":
        return 1
    slower = effect.gain is not None and effect.gain.value < 1.0
    return 2 if effect.state == "harms" or slower else 0


def _claim(entry: _Scored) -> tuple[str, str]:
    return entry.skill.structured_key, entry.skill.polarity


def _contradict(entry: _Scored, other: _Scored) -> bool:
    """Whether one warns against the transformation that the other advises; both apply to the
    request."""
    mine, theirs = entry.skill, other.skill
    return mine.transformation == theirs.transformation and mine.polarity != theirs.polarity


def _worth(entry: _Scored, best: float, chosen: Sequence[_Scored]) -> float:
    repeats = max((_alike(entry, other) for other in chosen), default=0.0)
    return TRADE * entry.total / best - (1 - TRADE) * repeats


def _alike(entry: _Scored, other: _Scored) -> float:
    """Similarity from 0 to 1: a third each for the transformation, the operators and the words in
    common."""
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
    text = "\x1f".join((skill, request.draw or request.run_id, request.node_id or ""))
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) < share * 2**32


# -- the answer


def _answers(
    chosen: Sequence[_Scored],
    pool: Sequence[_Scored],
    withheld: Sequence[str],
    access_scope: AccessScope,
) -> tuple[SkillAnswer, ...]:
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
            evidence=_evidence(entry.skill, _seen(entry.known.evidence, access_scope)),
            effect=str(entry.known.effect),
        )
        for entry in chosen
    )


def _summary(skill: SkillHead, opposed: Sequence[str]) -> str:
    """The skill's summary, with the names of the skills that contradict it."""
    names = ", ".join(opposed)
    if skill.polarity == "avoid":
        return as_warning(skill.description) + (f" (Advised by {names}.)" if names else "")
    return skill.description + (f" (Warned of by {names}.)" if names else "")


def _seen(rows: Sequence[EvidenceRow], access: AccessScope) -> Sequence[EvidenceRow]:
    """The measurements that a caller may see."""
    if access.hardware is None:
        return rows
    return [row for row in rows if row.hardware_id in access.hardware]


def _evidence(skill: SkillHead, rows: Sequence[EvidenceRow]) -> dict[str, Any] | None:
    """None without measurements of this installation; a simulator measures no time."""
    if all(row.kind == "simulator" for row in rows):
        return None
    newest = [asdict(row) for row in reversed(rows[-MAX_ROWS:])]
    return {
        "line": evidence_line(rows),
        "trials": skill.trials,
        "wins": skill.wins,
        "rows": [{name: row[name] for name in _SHOWN} for row in newest],
    }
