"""Statistics over the uses of a skill: whether it wins, on which part of its scope it loses, and
its lift. `skills.lifecycle` acts on them.

A use counts if its effect is known from a paired figure: it helped if the child was correct and
gained more than the noise over its parent.

The test is sequential, because it is repeated after every use. Against "helps in half of its uses
or more" it sets an e-value, the likelihood of the uses under win rates q < 1/2, weighted by
Beta(1, 24) on (0, 1/2), over their likelihood at 1/2:

    E = 2^n  x  int_0^1/2 q^w (1-q)^(l+23) dq  /  int_0^1/2 (1-q)^23 dq

For a skill that wins half of its uses or more this is a supermartingale, so it ever reaches 1/a
with probability at most a (Ville's inequality; Ramdas, Grunwald, Vovk and Shafer, "Game-theoretic
statistics and safe anytime-valid inference", Statistical Science 38, 2023). Each part of the scope
that the uses tell apart is tested in the same way; with m parts, the whole among them, the bound is
m/a (Bonferroni).

The lift of a skill is the rate at which answers that showed it helped, minus the rate of those that
would have shown it and withheld it. Its interval is Newcombe's, from the two Wilson intervals
(method 10 of R. G. Newcombe, "Interval estimation for the difference between independent
proportions", Statistics in Medicine 17, 1998).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kb.catalog.skills.evidence import wilson
from kb.catalog.skills.reading import SkillLift, get_skill
from kb.catalog.skills.writing import lift_of
from kb.scope import ALL_ACCESS
from retrieval.knowledge_base import KnowledgeBase

MIN_USES = 8
ERROR = 0.1  # probability bound of ever judging against a skill that wins half of its uses
PRIOR = 24  # Beta(1, 24): a skill that a few uses can show to lose, loses nearly all of them
MIN_LOST = 4  # uses in an excluded part
MIN_KEPT = 3  # uses in the rest; it must have won at least half of them
# The order in which a part is preferred if two hold the same uses.
WORDS = ("op", "dtype", "language", "hardware", "op_family")
PLAIN = re.compile(r"[\w.+-]+")  # values that a predicate can contain; operators are free text

Action = Literal["keep", "narrow", "retire"]


@dataclass(frozen=True)
class SkillUse:
    """A use with a known effect. `situation` has the form that the log of requests stores."""

    helped: bool
    situation: Mapping[str, Any]
    retrieval_id: str = ""


@dataclass(frozen=True)
class ScopePart:
    """A part of a skill's scope: where `key` is `value`, or is below or at least a number."""

    key: str
    value: str | None = None
    below: float | None = None
    at_least: float | None = None

    def holds(self, situation: Mapping[str, Any]) -> bool:
        """Whether a situation is in the part; never without a value of the key."""
        value = situation.get(self.key)
        if self.value is not None:
            return bool(value == self.value)
        number = _number(value)
        if number is None:
            return False
        return number < self.below if self.below is not None else number >= (self.at_least or 0.0)

    def __str__(self) -> str:
        if self.value is not None:
            return f"{self.key} {self.value}"
        return f"{self.key} " + (
            f"below {self.below:g}" if self.below is not None else f"from {self.at_least:g}"
        )


@dataclass(frozen=True)
class UseRecord:
    """How often the use of a skill helped, and how often it did not."""

    wins: int
    losses: int

    @property
    def uses(self) -> int:
        return self.wins + self.losses

    @property
    def wins_half(self) -> bool:
        return self.wins >= self.losses

    def __str__(self) -> str:
        return f"helped in {self.wins} of {self.uses} uses"


@dataclass(frozen=True)
class UseVerdict:
    """The action that the uses call for. `part` is where the skill loses, for `narrow`. `log_e` is
    the logarithm of the e-value that decided; `tests` counts the compared parts and the whole."""

    action: Action
    reason: str
    record: UseRecord
    part: ScopePart | None = None
    log_e: float = 0.0
    tests: int = 1


# -- judging


def assess_uses(uses: Sequence[SkillUse]) -> UseVerdict:
    """Judge a skill by the uses of its present text within its present scope."""
    whole = record_of(uses)
    if whole.uses < MIN_USES:
        return UseVerdict("keep", f"{whole}: fewer than {MIN_USES}", whole)
    parts = parts_of(uses)
    tests = 1 + len(parts)
    bound = math.log(tests / ERROR)
    tested = sorted(
        ((log_e_value(record_of(inside(uses, part))), part) for part in parts),
        key=lambda entry: -entry[0],
    )
    for log_e, part in tested:
        rest = record_of(outside(uses, part))
        if log_e >= bound and rest.uses >= MIN_KEPT and rest.wins_half:
            lost = record_of(inside(uses, part))
            reason = f"{lost} with {part}, {rest} otherwise"
            return UseVerdict("narrow", reason, whole, part, log_e, tests)
    log_e = log_e_value(whole)
    if log_e >= bound:
        return UseVerdict("retire", f"{whole}", whole, log_e=log_e, tests=tests)
    return UseVerdict("keep", f"{whole}: nothing shown against it", whole, log_e=log_e, tests=tests)


def log_e_value(record: UseRecord) -> float:
    """Natural logarithm of E, computed in integers for any number of uses."""
    first, second = record.wins + 1, record.losses + PRIOR
    return record.uses * math.log(2) + _log_half_beta(first, second) - _log_half_beta(1, PRIOR)


def _log_half_beta(a: int, b: int) -> float:
    """log of int_0^1/2 q^(a-1) (1-q)^(b-1) dq, by the binomial sum for whole numbers."""
    n = a + b - 1
    tail = sum(math.comb(n, j) for j in range(a, n + 1))
    return math.log(tail) - n * math.log(2) - math.log(a * math.comb(n, a))


def record_of(uses: Iterable[SkillUse]) -> UseRecord:
    outcomes = [use.helped for use in uses]
    return UseRecord(sum(outcomes), len(outcomes) - sum(outcomes))


def inside(uses: Iterable[SkillUse], part: ScopePart) -> list[SkillUse]:
    return [use for use in uses if part.holds(use.situation)]


def outside(uses: Iterable[SkillUse], part: ScopePart) -> list[SkillUse]:
    return [use for use in uses if not part.holds(use.situation)]


def parts_of(uses: Sequence[SkillUse]) -> list[ScopePart]:
    """Parts that the uses tell apart, each set of uses once. They depend on the situations alone,
    never on the outcomes."""
    quantities = sorted(
        {key for use in uses for key, value in use.situation.items() if _is_number(value)}
    )
    offered = [part for key in WORDS for part in _by_word(uses, key)]
    offered += [part for key in quantities for part in _by_size(uses, key)]
    by_uses: dict[frozenset[int], ScopePart] = {}
    for part in offered:
        held = frozenset(n for n, use in enumerate(uses) if part.holds(use.situation))
        if len(held) >= MIN_LOST and len(uses) - len(held) >= MIN_KEPT:
            by_uses.setdefault(held, part)
    return list(by_uses.values())


def _by_word(uses: Sequence[SkillUse], key: str) -> list[ScopePart]:
    words = [use.situation.get(key) for use in uses]
    if key == "hardware" and None in words:
        return []  # a narrowed scope names the chips that are left, so all must be known
    values = sorted({value for value in words if isinstance(value, str) and PLAIN.fullmatch(value)})
    return [ScopePart(key, value) for value in values] if len(values) > 1 else []


def _by_size(uses: Sequence[SkillUse], key: str) -> list[ScopePart]:
    """Parts cut at powers of two, as sizes are spread."""
    numbers = (_number(use.situation.get(key)) for use in uses)
    powers = sorted({math.floor(math.log2(n)) for n in numbers if n is not None and n > 0})
    cuts = [2.0**power for power in powers[1:]]
    return [
        part for cut in cuts for part in (ScopePart(key, below=cut), ScopePart(key, at_least=cut))
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


# -- lift


def lift_report(base: KnowledgeBase, name: str) -> dict[str, Any]:
    """The lift of a skill as JSON; `lift` is None without outcomes of answers that showed it, or
    that withheld it. Raises NotFound."""
    with base.catalog.read() as connection:
        skill = get_skill(connection, name, ALL_ACCESS)
        counts = lift_of(connection, skill.id)
    report: dict[str, Any] = {
        "skill": name,
        "shown": f"helped in {counts.shown_wins} of {counts.shown} with a known effect",
        "withheld": f"helped in {counts.withheld_wins} of {counts.withheld} with a known effect",
        "lift": None,
        "low": None,
        "high": None,
    }
    if not counts.shown or not counts.withheld:
        missing = "shown" if not counts.shown else "withheld"
        return {**report, "reason": f"no outcome of an answer that had it {missing}: no lift"}
    lift, low, high = lift_interval(counts)
    certain = low > 0 or high < 0
    return {
        **report,
        "lift": round(lift, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "reason": "certain at 95 %" if certain else "the interval holds 0: nothing certain",
    }


def lift_interval(counts: SkillLift) -> tuple[float, float, float]:
    """Rate shown minus rate withheld, and its 95 % interval, for counts above 0."""
    shown, withheld = counts.shown_wins / counts.shown, counts.withheld_wins / counts.withheld
    with_it = wilson(counts.shown_wins, counts.shown)
    without_it = wilson(counts.withheld_wins, counts.withheld)
    below = math.hypot(shown - with_it.low, without_it.high - withheld)
    above = math.hypot(with_it.high - shown, withheld - without_it.low)
    return shown - withheld, shown - withheld - below, shown - withheld + above
