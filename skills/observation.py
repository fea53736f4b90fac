"""Applies what the uses of a skill say about it: it is kept, narrowed to the part of its scope
where it wins, or retired. `observe` does so for skills with a new outcome, `retire_unused` for
those that nobody takes up. The test itself is `skills.uses.assess_uses`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills import SkillEvent, SkillHead, SkillRow, SkillScopes
from kb.problem_terms import op_family, problem_terms
from kb.scope import ALL_ACCESS, AccessScope
from skills.format.schema import advice
from skills.format.skillfile import content_sha256
from skills.uses import ScopePart, SkillUse, UseVerdict, assess_uses, outside, record_of

ACTOR = "observer"
UNUSED_RETRIEVALS = 5_000
WATCHED = ("candidate", "active", "suspect")
MAX_NAMED = 50  # retrievals named in an event


# -- narrowing


def lost_parts(scopes: SkillScopes, part: ScopePart, kept: Sequence[SkillUse]) -> list[ScopePart]:
    """What is left out with `part`. A skill about a family of chips that loses on one of them can
    only name those that it keeps, so the others that it does not win on go with it."""
    if part.key != "hardware" or part.value in scopes.hardware:
        return [part]
    return [part, *(ScopePart("hardware", chip) for chip, won in _chips(kept).items() if not won)]


def without(
    scopes: SkillScopes, predicate: str | None, part: ScopePart, kept: Sequence[SkillUse]
) -> tuple[SkillScopes, str | None]:
    """The scopes and the precondition that leave a part out. `kept` are the uses of what
    remains."""
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


def _chips(uses: Sequence[SkillUse]) -> dict[str, bool]:
    """Each chip, and whether the skill won at least half of its uses on it."""
    by_chip: dict[str, list[SkillUse]] = {}
    for use in uses:
        by_chip.setdefault(str(use.situation["hardware"]), []).append(use)
    return {chip: record_of(own).wins_half for chip, own in by_chip.items()}


def _belongs(value: str, part: ScopePart) -> bool:
    return (op_family(value) if part.key == "op_family" else value) == part.value


def _clause(part: ScopePart) -> str:
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
    access_scope: AccessScope = ALL_ACCESS,
) -> dict[str, UseVerdict]:
    """Judge these skills by their uses and act on it. Returns the findings by name; a skill that is
    not in use is left alone and has none."""
    findings = {}
    for name in sorted(set(names)):
        with catalog.read() as connection:
            finding = _judged(connection, name, access_scope)
        if finding is not None and finding.action != "keep":
            with catalog.write() as connection:  # again: it may have changed meanwhile
                finding = _judged(connection, name, access_scope)
                if finding is not None:
                    _apply(connection, name, finding, actor, access_scope)
        if finding is not None:
            findings[name] = finding
    return findings


def _judged(connection: Connection, name: str, access_scope: AccessScope) -> UseVerdict | None:
    skill = store.find(connection, name, access_scope)
    if skill is None or skill.state not in WATCHED:
        return None
    return assess_uses(known_uses(connection, skill, access_scope))


def known_uses(
    connection: Connection, skill: SkillHead, access_scope: AccessScope
) -> list[SkillUse]:
    """Uses with a known effect since the present text was written, or the skill was brought back,
    without the parts of its scope that it has lost since."""
    events = store.events(connection, skill.id, access_scope)
    back = [e.created_at for e in events if e.from_state in ("retired", "quarantined")]
    since = max([skill.written_at, *back])
    rows = store.uses_of(connection, skill.id, access_scope, role="used", since=since)
    uses = [
        SkillUse(bool(row.helped), row.situation, row.retrieval_id)
        for row in rows
        if row.helped is not None
    ]
    for part in removed_parts(events, skill.written_at):
        uses = outside(uses, part)
    return uses


def removed_parts(events: Sequence[SkillEvent], since: str) -> list[ScopePart]:
    """Parts that a skill lost by narrowing since a moment."""
    return [
        ScopePart(**part)
        for event in events
        if event.event == "narrowed" and event.created_at >= since
        for part in event.details["parts"]
    ]


def _apply(
    connection: Connection, name: str, finding: UseVerdict, actor: str, access_scope: AccessScope
) -> None:
    skill = store.get(connection, name, access_scope)
    uses = known_uses(connection, skill, access_scope)
    details = {
        "record": asdict(finding.record),
        "log_e": round(finding.log_e, 3),
        "tests": finding.tests,
        "retrievals": [use.retrieval_id for use in uses[-MAX_NAMED:]],
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
        kept = outside(uses, finding.part)
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
    kept: Sequence[SkillUse],
    details: Mapping[str, Any],
    *,
    actor: str,
    reason: str,
    access_scope: AccessScope,
) -> None:
    """Store a skill that claims less. `skill` has the scopes and the precondition that are left,
    `kept` are its uses there, and `details` names the `parts` that are lost. Its text and evidence
    stay."""
    record = record_of(kept)
    store.narrow(
        connection,
        skill.name,
        scopes=skill.scopes,
        predicate=skill.predicate,
        content_sha256=content_sha256(advice(skill)),
        counted=(record.uses, record.wins),
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
    access_scope: AccessScope = ALL_ACCESS,
) -> list[str]:
    """Retire learned skills in use that the last `retrievals` answers for their hardware made no
    use of; returns their names. Those that came into use meanwhile have their time still before
    them. What is to be avoided stays: nobody is seen to have used it, as its use is that nothing is
    done."""
    registry = HardwareRegistry(catalog)
    chips = {chip: registry.lineage(chip) for chip in registry.all()}
    gone = []
    with catalog.write() as connection:
        oldest = _oldest(connection, chips, retrievals, access_scope)
        skills = store.heads(
            connection, states=("active", "suspect"), tier="learned", access_scope=access_scope
        )
        for skill in (head for head in skills if head.polarity == "use"):
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
    access_scope: AccessScope,
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


def _in_use_since(connection: Connection, skill: SkillHead, access_scope: AccessScope) -> str:
    """The last time that something spoke for it: a use, its text, or becoming active."""
    moments = [skill.written_at, skill.last_used_at or ""]
    events = store.events(connection, skill.id, access_scope)
    moments += [event.created_at for event in events if event.to_state == "active"]
    return max(moments)
