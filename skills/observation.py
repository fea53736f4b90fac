"""What the uses of a skill say of it: kept, narrowed to the part of its scope where it wins, or
retired.

`judge` is a pure function over trials; `observe` applies it to the store, `retire_unused` retires
what nobody takes up. A trial is a use whose effect is known, from the paired figure: helped when
the child was correct and gained more than the noise over its parent.

The test is sequential, because it is repeated after every use. Against "helps in half of its uses
or more" stands an e-value, the likelihood of the trials under win rates q < 1/2, weighted by
Beta(1, 24) on (0, 1/2), over their likelihood at 1/2:

    E = 2^n  x  int_0^1/2 q^w (1-q)^(l+23) dq  /  int_0^1/2 (1-q)^23 dq

For a skill that wins half of its uses or more this is a supermartingale, so it ever reaches 1/a
with probability at most a (Ville's inequality; Ramdas, Grunwald, Vovk and Shafer, "Game-theoretic
statistics and safe anytime-valid inference", Statistical Science 38, 2023). The same is asked of
each part of the scope that the uses tell apart; with m parts, the whole among them, the bound is
m/a (Bonferroni).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills import SkillEvent, SkillHead, SkillRow, SkillScopes
from kb.problem_terms import op_family, problem_terms
from kb.scope import ALL_ACCESS
from skills.schema import advice
from skills.skillfile import content_sha256

ACTOR = "observer"
MIN_TRIALS = 8
ERROR = 0.1  # at most, of ever turning against a skill that wins just half of its uses
PRIOR = 24  # Beta(1, 24): what is to be found in a few uses loses nearly all of them
MIN_LOST = 4  # trials in a part that is to be left out
MIN_KEPT = 3  # trials that the part which keeps the skill must have won at least half of
UNUSED_RETRIEVALS = 5_000
WATCHED = ("candidate", "active", "suspect")
# In the order in which a part is preferred where two hold the same trials.
WORDS = ("op", "dtype", "language", "hardware", "op_family")
PLAIN = re.compile(r"[\w.+-]+")  # what a predicate can say; an operator is a caller's free text
MAX_NAMED = 50  # retrievals named in an event

Action = Literal["keep", "narrow", "retire"]


@dataclass(frozen=True)
class Trial:
    """A use with a known effect. situation: as `retrieval.journal` stores it."""

    helped: bool
    situation: Mapping[str, Any]
    retrieval_id: str = ""


@dataclass(frozen=True)
class Part:
    """Of a skill's scope: where `key` is `value`, or is below or at least a number."""

    key: str
    value: str | None = None
    below: float | None = None
    at_least: float | None = None

    def holds(self, situation: Mapping[str, Any]) -> bool:
        """A situation that says nothing of the key lies in no part of it."""
        found = situation.get(self.key)
        if self.value is not None:
            return bool(found == self.value)
        number = _number(found)
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
class Record:
    wins: int
    losses: int

    @property
    def trials(self) -> int:
        return self.wins + self.losses

    @property
    def wins_half(self) -> bool:
        return self.wins >= self.losses

    def __str__(self) -> str:
        return f"helped in {self.wins} of {self.trials} uses"


@dataclass(frozen=True)
class Finding:
    """part: where the skill loses, of `narrow`. kept: the record of what is left of it. log_e: of
    what was decided on; tests: parts compared, the whole among them."""

    action: Action
    reason: str
    record: Record
    part: Part | None = None
    kept: Record | None = None
    log_e: float = 0.0
    tests: int = 1


# -- judging


def judge(trials: Sequence[Trial]) -> Finding:
    """What follows from the trials of the present text within the present scope."""
    whole = record_of(trials)
    if whole.trials < MIN_TRIALS:
        return Finding("keep", f"{whole}: fewer than {MIN_TRIALS}", whole)
    parts = parts_of(trials)
    tests = 1 + len(parts)
    bound = math.log(tests / ERROR)
    found = sorted(
        ((log_e_value(record_of(inside(trials, part))), part) for part in parts),
        key=lambda entry: -entry[0],
    )
    for log_e, part in found:
        rest = record_of(outside(trials, part))
        if log_e >= bound and rest.trials >= MIN_KEPT and rest.wins_half:
            lost = record_of(inside(trials, part))
            reason = f"{lost} with {part}, {rest} otherwise"
            return Finding("narrow", reason, whole, part, rest, log_e, tests)
    log_e = log_e_value(whole)
    if log_e >= bound:
        return Finding("retire", f"{whole}", whole, log_e=log_e, tests=tests)
    return Finding("keep", f"{whole}: nothing shown against it", whole, log_e=log_e, tests=tests)


def log_e_value(record: Record) -> float:
    """Natural logarithm of E; integers inside, so that no number of uses is too many."""
    first, second = record.wins + 1, record.losses + PRIOR
    return record.trials * math.log(2) + _log_half_beta(first, second) - _log_half_beta(1, PRIOR)


def _log_half_beta(a: int, b: int) -> float:
    """log of int_0^1/2 q^(a-1) (1-q)^(b-1) dq, by the binomial sum for whole numbers."""
    n = a + b - 1
    tail = sum(math.comb(n, j) for j in range(a, n + 1))
    return math.log(tail) - n * math.log(2) - math.log(a * math.comb(n, a))


def record_of(trials: Iterable[Trial]) -> Record:
    told = [trial.helped for trial in trials]
    return Record(sum(told), len(told) - sum(told))


def inside(trials: Iterable[Trial], part: Part) -> list[Trial]:
    return [trial for trial in trials if part.holds(trial.situation)]


def outside(trials: Iterable[Trial], part: Part) -> list[Trial]:
    return [trial for trial in trials if not part.holds(trial.situation)]


def parts_of(trials: Sequence[Trial]) -> list[Part]:
    """Parts that the trials tell apart, each set of trials once. Which ones depends on the
    situations alone, never on how the trials came out."""
    quantities = sorted(
        {key for trial in trials for key, value in trial.situation.items() if _is_number(value)}
    )
    offered = [part for key in WORDS for part in _by_word(trials, key)]
    offered += [part for key in quantities for part in _by_size(trials, key)]
    found: dict[frozenset[int], Part] = {}
    for part in offered:
        held = frozenset(n for n, trial in enumerate(trials) if part.holds(trial.situation))
        if len(held) >= MIN_LOST and len(trials) - len(held) >= MIN_KEPT:
            found.setdefault(held, part)
    return list(found.values())


def _by_word(trials: Sequence[Trial], key: str) -> list[Part]:
    told = [trial.situation.get(key) for trial in trials]
    if key == "hardware" and None in told:
        return []  # a scope names the chips that it keeps, so each must be known
    values = sorted({value for value in told if isinstance(value, str) and PLAIN.fullmatch(value)})
    return [Part(key, value) for value in values] if len(values) > 1 else []


def _by_size(trials: Sequence[Trial], key: str) -> list[Part]:
    """Cut at powers of two, which is how sizes spread."""
    numbers = (_number(trial.situation.get(key)) for trial in trials)
    powers = sorted({math.floor(math.log2(n)) for n in numbers if n is not None and n > 0})
    cuts = [2.0**power for power in powers[1:]]
    return [part for cut in cuts for part in (Part(key, below=cut), Part(key, at_least=cut))]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


# -- narrowing


def lost_parts(scopes: SkillScopes, part: Part, kept: Sequence[Trial]) -> list[Part]:
    """What is left out with `part`. A skill about a family of chips that loses on one of them can
    only name those that it keeps, so the others that it does not win on go with it."""
    if part.key != "hardware" or part.value in scopes.hardware:
        return [part]
    return [part, *(Part("hardware", chip) for chip, won in _chips(kept).items() if not won)]


def without(
    scopes: SkillScopes, predicate: str | None, part: Part, kept: Sequence[Trial]
) -> tuple[SkillScopes, str | None]:
    """The scopes and the precondition that leave the part out. kept: trials of what remains."""
    if part.key == "hardware":
        listed = tuple(chip for chip in scopes.hardware if chip != part.value)
        named = listed if listed and part.value in scopes.hardware else tuple(sorted(_chips(kept)))
        return replace(scopes, hardware=named), predicate
    lists = {"op": "ops", "op_family": "ops", "dtype": "dtypes", "language": "languages"}
    if part.key in lists:
        before: tuple[str, ...] = getattr(scopes, lists[part.key])
        left = tuple(value for value in before if not _belongs(value, part))
        if left and left != before:
            return SkillScopes(**{**vars(scopes), lists[part.key]: left}), predicate
    clause = _clause(part)
    return scopes, f"({predicate}) and {clause}" if predicate else clause


def _chips(trials: Sequence[Trial]) -> dict[str, bool]:
    """Each chip, and whether the skill won at least half of its uses on it."""
    by_chip: dict[str, list[Trial]] = {}
    for trial in trials:
        by_chip.setdefault(str(trial.situation["hardware"]), []).append(trial)
    return {chip: record_of(own).wins_half for chip, own in by_chip.items()}


def _belongs(value: str, part: Part) -> bool:
    return (op_family(value) if part.key == "op_family" else value) == part.value


def _clause(part: Part) -> str:
    name = "problem.op" if part.key == "op_family" else f"problem.{part.key}"
    if part.key == "op_family":
        ops = sorted(op for op, family in problem_terms().ops.items() if family == part.value)
        listed = ", ".join(f'"{op}"' for op in ops or [str(part.value)])
        return f"{name} not in [{listed}]"
    if part.value is not None:
        return f'{name} != "{part.value}"'
    if part.below is not None:
        return f"{name} >= {_literal(part.below)}"
    return f"{name} < {_literal(part.at_least or 0.0)}"


def _literal(number: float) -> str:
    return str(int(number)) if number.is_integer() else repr(number)


# -- applying


def observe(
    catalog: Catalog,
    names: Iterable[str],
    *,
    actor: str = ACTOR,
    access_scope: str = ALL_ACCESS,
) -> dict[str, Finding]:
    """Judge these skills by their uses and act on it; a skill that is not in use is left alone."""
    found = {}
    for name in sorted(set(names)):
        with catalog.read() as connection:
            finding = _judged(connection, name, access_scope)
        if finding is not None and finding.action != "keep":
            with catalog.write() as connection:  # again: it may have changed meanwhile
                finding = _judged(connection, name, access_scope)
                if finding is not None:
                    _apply(connection, name, finding, actor, access_scope)
        if finding is not None:
            found[name] = finding
    return found


def _judged(connection: Connection, name: str, access_scope: str) -> Finding | None:
    skill = store.find(connection, name, access_scope)
    if skill is None or skill.state not in WATCHED:
        return None
    return judge(trials_of(connection, skill, access_scope))


def trials_of(connection: Connection, skill: SkillHead, access_scope: str) -> list[Trial]:
    """Uses with a known effect since the present text was written, or the skill was brought back,
    without the parts of its scope that it has lost since."""
    events = store.events(connection, skill.id, access_scope)
    back = [e.created_at for e in events if e.from_state in ("retired", "quarantined")]
    since = max([skill.written_at, *back])
    uses = store.uses_of(connection, skill.id, access_scope, role="used", since=since)
    trials = [
        Trial(bool(use.helped), use.situation, use.retrieval_id)
        for use in uses
        if use.helped is not None
    ]
    for part in removed_parts(events, skill.written_at):
        trials = outside(trials, part)
    return trials


def removed_parts(events: Sequence[SkillEvent], since: str) -> list[Part]:
    return [
        Part(**part)
        for event in events
        if event.event == "narrowed" and event.created_at >= since
        for part in event.details["parts"]
    ]


def _apply(
    connection: Connection, name: str, finding: Finding, actor: str, access_scope: str
) -> None:
    skill = store.get(connection, name, access_scope)
    trials = trials_of(connection, skill, access_scope)
    details = {
        "record": asdict(finding.record),
        "log_e": round(finding.log_e, 3),
        "tests": finding.tests,
        "retrievals": [trial.retrieval_id for trial in trials[-MAX_NAMED:]],
    }
    if finding.action == "retire":
        store.set_state(
            connection,
            skill.name,
            "retired",
            actor=actor,
            reason=finding.reason,
            details=details,
            access_scope=access_scope,
        )
    elif finding.action == "narrow" and finding.part is not None:
        kept = outside(trials, finding.part)
        lost = lost_parts(skill.scopes, finding.part, kept)
        for part in lost:
            kept = outside(kept, part)
        scopes, predicate = without(skill.scopes, skill.predicate, finding.part, kept)
        store_narrowed(
            connection,
            replace(skill, scopes=scopes, predicate=predicate),
            kept,
            {**details, "parts": [asdict(part) for part in lost]},
            actor=actor,
            reason=finding.reason,
            access_scope=access_scope,
        )


def store_narrowed(
    connection: Connection,
    skill: SkillRow,
    kept: Sequence[Trial],
    details: Mapping[str, Any],
    *,
    actor: str,
    reason: str,
    access_scope: str,
) -> None:
    """skill: with the scopes and the precondition that are left. kept: its uses there; details has
    the `parts` that are lost. Its text and evidence stay."""
    record = record_of(kept)
    store.narrow(
        connection,
        skill.name,
        scopes=skill.scopes,
        predicate=skill.predicate,
        content_sha256=content_sha256(advice(skill)),
        counted=(record.trials, record.wins),
        actor=actor,
        reason=reason,
        details=details,
        access_scope=access_scope,
    )


def retire_unused(
    catalog: Catalog,
    *,
    retrievals: int = UNUSED_RETRIEVALS,
    actor: str = ACTOR,
    access_scope: str = ALL_ACCESS,
) -> list[str]:
    """Retire learned skills in use that the last `retrievals` answers for their hardware made no
    use of; names. Those that came into use meanwhile have their time still before them. What is to
    be avoided stays: nobody is seen to have used it, as what it does is that nothing is done."""
    registry = HardwareRegistry(catalog)
    chips = {chip: registry.lineage(chip) for chip in registry.all()}
    gone = []
    with catalog.write() as connection:
        oldest = _oldest(connection, chips, retrievals, access_scope)
        skills = store.heads(
            connection, states=("active", "suspect"), tier="learned", access_scope=access_scope
        )
        for skill in (one for one in skills if one.polarity == "use"):
            since = oldest(skill.scopes.hardware)
            if since is None or _in_use_since(connection, skill, access_scope) >= since:
                continue
            store.set_state(
                connection,
                skill.name,
                "retired",
                actor=actor,
                reason=f"not used in {retrievals} retrievals",
                details={"retrievals_since": since, "last_used_at": skill.last_used_at},
                access_scope=access_scope,
            )
            gone.append(skill.name)
    return gone


def _oldest(
    connection: Connection,
    chips: Mapping[str, Sequence[str]],
    retrievals: int,
    access_scope: str,
) -> Callable[[tuple[str, ...]], str | None]:
    """When the n-th last retrieval was that a skill of some hardware could have been part of."""
    known: dict[tuple[str, ...], str | None] = {}

    def find(hardware: tuple[str, ...]) -> str | None:
        if hardware not in known:
            own = [chip for chip, line in chips.items() if set(line) & set(hardware)]
            known[hardware] = store.nth_last_retrieval(
                connection, retrievals, own if hardware else None, access_scope
            )
        return known[hardware]

    return find


def _in_use_since(connection: Connection, skill: SkillHead, access_scope: str) -> str:
    """The last time that something spoke for it: a use, its text, or becoming active."""
    moments = [skill.written_at, skill.last_used_at or ""]
    events = store.events(connection, skill.id, access_scope)
    moments += [event.created_at for event in events if event.to_state == "active"]
    return max(moments)
