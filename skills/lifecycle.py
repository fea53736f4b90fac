"""The states of skills: changed by a person, by another toolchain, and by the outcomes of uses.

Every change is an event with actor and reason, and nothing is deleted, so a retired skill can be
read and restored. A skill that loses is narrowed to the part of its scope where it wins, or
retired; the test is `skills.uses.assess_uses`. The queue of skills to measure again is the suspect
ones, with the reason of their last event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Connection

from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills.evidence import evidence_for, is_measured, toolchain_name
from kb.catalog.skills.reading import (
    EvidenceRow,
    SkillEvent,
    SkillHead,
    SkillRow,
    SkillScopes,
    SkillState,
    StoredSkill,
    events_of,
    find_skill,
    get_skill,
    skill_heads,
)
from kb.catalog.skills.writing import (
    merge_skill,
    narrow_skill,
    nth_last_retrieval,
    record_toolchain,
    set_state,
    uses_of,
)
from kb.errors import Conflict, InvalidRequest
from kb.problem_terms import op_family, problem_terms
from kb.scope import ALL_ACCESS, AccessScope
from retrieval.knowledge_base import KnowledgeBase
from skills.format.schema import advice
from skills.format.skillfile import content_sha256
from skills.importing import sync_shipped
from skills.uses import PLAIN, ScopePart, SkillUse, UseVerdict, assess_uses, outside, record_of

if TYPE_CHECKING:
    from optimizer.search.bench.local import TargetToolchain

ACTOR = "lifecycle"  # of changes by a toolchain
OBSERVER = "observer"  # actor of changes by uses
UNUSED_RETRIEVALS = 5_000
IN_USE = ("candidate", "active", "suspect")  # states of skills that are judged by their uses
MAX_NAMED = 50  # retrievals named in an event
NAMES = re.compile(r"[a-z][a-z0-9_]*")  # of quantities and properties
Wanted = Literal["active", "candidate", "quarantined", "retired", "restored"]
FROM: Mapping[Wanted, tuple[str, ...]] = {
    "active": ("candidate", "suspect"),
    "candidate": ("suspect",),
    "quarantined": ("candidate", "active", "suspect", "retired"),
    "retired": ("candidate", "active", "suspect", "quarantined"),
    "restored": ("retired", "quarantined"),
}
COMMANDS: Mapping[str, Wanted] = {
    "approve": "active",
    "restore": "restored",
    "quarantine": "quarantined",
    "retire": "retired",
}


# -- by a person


def change_state(
    catalog: Catalog,
    name: str,
    wanted: Wanted,
    *,
    actor: str,
    reason: str,
    force: bool = False,
    access_scope: AccessScope = ALL_ACCESS,
) -> SkillEvent:
    """Set the state of a skill on a person's behalf.

    A learned skill becomes active only if trials support its present text, or by `force`, which the
    event states. `restored` brings a skill back as active if it was that and needs no new
    measurement, else as a candidate; a learned skill that was quarantined needs one. Its uses are
    counted anew. Raises NotFound, Conflict for an impossible change, and InvalidRequest for `force`
    with another state than active.
    """
    if force and wanted != "active":
        raise InvalidRequest(
            f"`force` has no meaning for {wanted}", hint="It approves; leave it out here."
        )
    with catalog.write() as connection:
        skill = get_skill(connection, name, access_scope)
        if skill.state not in FROM[wanted]:
            raise _impossible(skill, wanted)
        state: SkillState
        if wanted == "restored":
            measured = skill.tier == "curated" or (
                skill.state == "retired" and is_measured(connection, skill)
            )
            was_active = _state_before(connection, skill, access_scope) == "active"
            state = "active" if was_active and measured else "candidate"
        else:
            state = wanted
        return set_state(
            connection,
            name,
            state,
            actor=actor,
            reason=reason,
            force=force,
            access_scope=access_scope,
        )


def narrow_by_hand(
    catalog: Catalog,
    name: str,
    part: ScopePart,
    *,
    actor: str,
    reason: str,
    access_scope: AccessScope = ALL_ACCESS,
) -> SkillEvent:
    """Leave a part out of a skill's scope or precondition. Raises NotFound, Conflict for a skill
    that is out of use, Forbidden, and InvalidRequest for a part that nothing can state."""
    below, at_least = (None if n is None else float(n) for n in (part.below, part.at_least))
    part = replace(part, below=below, at_least=at_least)
    given = [bound for bound in (part.value, part.below, part.at_least) if bound is not None]
    if len(given) != 1 or not NAMES.fullmatch(part.key):
        raise InvalidRequest(
            f"{part.key or 'nothing'} with {len(given)} limits is no part of a scope",
            hint="Name a quantity or property, and one of value, below and at_least.",
        )
    if part.value is not None and not PLAIN.fullmatch(part.value):
        raise InvalidRequest(
            f"{part.value!r} is no word of a predicate", hint="Use letters, digits, ., - and _."
        )
    with catalog.write() as connection:
        skill = get_skill(connection, name, access_scope)
        access_scope.check_change(skill.scopes.hardware, f"the skill {name}")
        if skill.state not in IN_USE:
            raise Conflict(f"{name} is {skill.state}", hint="Restore it first.")
        narrow(connection, skill, part, actor=actor, reason=reason)
        return events_of(connection, skill.id)[-1]


def merge(
    catalog: Catalog,
    name: str,
    into: str,
    *,
    actor: str,
    reason: str,
    access_scope: AccessScope = ALL_ACCESS,
) -> SkillEvent:
    """Retire a skill in favour of another one, which gets its measurements. Raises NotFound,
    Forbidden, and Conflict for the same skill, opposite advice, or a skill that is out of use."""
    with catalog.write() as connection:
        skill, other = (get_skill(connection, n, access_scope) for n in (name, into))
        for row in (skill, other):
            access_scope.check_change(row.scopes.hardware, f"the skill {row.name}")
            if row.state not in IN_USE:
                raise Conflict(f"{row.name} is {row.state}", hint="Restore it first.")
        if name == into or skill.polarity != other.polarity:
            why = "is the same skill" if name == into else "advises the opposite"
            raise Conflict(f"{into} {why}", hint="Name another skill that says the same.")
        return merge_skill(connection, skill, other, actor=actor, reason=reason)


def _state_before(
    connection: Connection, skill: SkillHead, access_scope: AccessScope
) -> str | None:
    events = events_of(connection, skill.id, access_scope)
    moves = [e for e in events if e.event == "state" and e.to_state == skill.state]
    return moves[-1].from_state if moves else None


def _impossible(skill: SkillHead, wanted: Wanted) -> Conflict:
    """The error for a change that the skill's state does not allow; it names the possible ones."""
    if wanted == "restored":
        already = " already" if skill.state == "active" else ""
        message = f"{skill.name} is {skill.state}{already}: there is nothing to restore"
    elif skill.state == wanted:
        message = f"{skill.name} is {wanted} already"
    else:
        message = f"{skill.name} is {skill.state} and cannot become {wanted} in one step"
    commands = [command for command, state in COMMANDS.items() if skill.state in FROM[state]]
    possible = [f"kernlore skills {command} {skill.name}" for command in commands]
    hint = f"Possible now: {', '.join(possible)}."
    if "restore" in commands:
        hint += " If it comes back as a candidate, approve it then."
    return Conflict(message, hint=hint, details={"skill": skill.name, "state": skill.state})


# -- by a change of the toolchain


def prepare_library(
    base: KnowledgeBase,
    hardware: str,
    language: str | None,
    log: Callable[[str], None],
    places: Mapping[str, TargetToolchain] | None = None,
) -> None:
    """Before a search, store this version's built-in skills and update the states of learned ones.

    Skills measured with another toolchain become suspect, and skills that many answers showed
    without a use are retired. `log` gets one sentence for each change. `places` are those of the
    search by language, if they are not this machine's. Raises UnknownHardware, and Unavailable if
    nothing can be run on `hardware` here.
    """
    from optimizer.search.runs.places import places_for  # seconds to import

    sync_shipped(base.catalog, base.registry, base.settings.skills_dir)
    chosen = places_for(base, hardware, language) if places is None else places
    for place in chosen.values():
        toolchain = f"{place.toolchain.name} {place.toolchain.version()}"
        for name in note_toolchain(base.catalog, place.target.hardware, toolchain):
            log(f"{name} was measured with another toolchain: `kernlore skills verify`")
    unused = base.settings.skills_unused_retrievals
    for name in retire_unused(base.catalog, unused):
        log(f"{name} is retired: {unused} answers made no use of it")


def note_toolchain(catalog: Catalog, hardware: str, toolchain: str) -> list[str]:
    """Record the toolchain in use for a hardware: its name, then its versions.

    If it changed, active learned skills whose newest measurement on this hardware was with other
    versions of it become suspect; returns their names.
    """
    with catalog.write() as connection:
        if record_toolchain(connection, hardware, toolchain) == toolchain:
            return []
        outdated = _outdated(connection, hardware, toolchain)
        for name, was in outdated.items():
            set_state(
                connection,
                name,
                "suspect",
                actor=ACTOR,
                reason=f"measured with {was}, in use is {toolchain}",
                details={"hardware": hardware, "was": was, "now": toolchain},
            )
    return list(outdated)


def _outdated(connection: Connection, hardware: str, toolchain: str) -> dict[str, str]:
    """Skill -> the toolchain of its newest measurement, if that is another version."""
    skills = skill_heads(connection, states=("active",), tier="learned", access_scope=ALL_ACCESS)
    evidence = evidence_for(connection, [skill.id for skill in skills], ALL_ACCESS, details=False)
    outdated = {}
    for skill in skills:
        was = _newest(evidence.get(skill.id, []), hardware, toolchain_name(toolchain))
        if was is not None and was != toolchain:
            outdated[skill.name] = was
    return outdated


def _newest(rows: list[EvidenceRow], hardware: str, name: str) -> str | None:
    for row in reversed(rows):
        known = row.toolchain_id
        if known and row.hardware_id == hardware and toolchain_name(known) == name:
            return known
    return None


def queue(catalog: Catalog) -> list[str]:
    """Names of the suspect skills, which are to be measured again, the longest waiting first."""
    waiting = []
    with catalog.read() as connection:
        for skill in skill_heads(connection, states=("suspect",), access_scope=ALL_ACCESS):
            events = events_of(connection, skill.id)
            since = [e.created_at for e in events if e.to_state == "suspect"][-1]
            waiting.append((since, skill.name))
    return [name for _, name in sorted(waiting)]


# -- by the outcomes of uses


def observe(catalog: Catalog, names: Iterable[str]) -> dict[str, UseVerdict]:
    """Judge these skills by their uses, and narrow or retire those that lose. Returns the verdicts
    by name; a skill that is not in use has none."""
    verdicts = {}
    for name in sorted(set(names)):
        with catalog.read() as connection:
            verdict = _judged(connection, name)
        if verdict is not None and verdict.action != "keep":
            with catalog.write() as connection:  # again: it may have changed meanwhile
                verdict = _judged(connection, name)
                if verdict is not None:
                    _apply(connection, name, verdict)
        if verdict is not None:
            verdicts[name] = verdict
    return verdicts


def _judged(connection: Connection, name: str) -> UseVerdict | None:
    skill = find_skill(connection, name)
    if skill is None or skill.state not in IN_USE:
        return None
    return assess_uses(known_uses(connection, skill))


def _apply(connection: Connection, name: str, verdict: UseVerdict) -> None:
    skill = get_skill(connection, name)
    uses = known_uses(connection, skill)
    details = {
        "record": asdict(verdict.record),
        "log_e": round(verdict.log_e, 3),
        "tests": verdict.tests,
        "retrievals": [use.retrieval_id for use in uses[-MAX_NAMED:]],
    }
    signed: dict[str, Any] = {"actor": OBSERVER, "reason": verdict.reason, "details": details}
    if verdict.action == "retire":
        set_state(connection, skill.name, "retired", **signed)
    elif verdict.action == "narrow" and verdict.part is not None:
        narrow(connection, skill, verdict.part, **signed)


def known_uses(connection: Connection, skill: SkillHead) -> list[SkillUse]:
    """Uses with a known effect since the present text was written or the skill was restored,
    without the parts of its scope that it has lost since."""
    events = events_of(connection, skill.id)
    restored = [e.created_at for e in events if e.from_state in ("retired", "quarantined")]
    since = max([skill.written_at, *restored])
    uses = [
        SkillUse(bool(row.helped), row.situation, row.retrieval_id)
        for row in uses_of(connection, skill.id, role="used", since=since)
        if row.helped is not None
    ]
    for event in events:
        if event.event == "narrowed" and event.created_at >= skill.written_at:
            for part in event.details["parts"]:
                uses = outside(uses, ScopePart(**part))
    return uses


def retire_unused(catalog: Catalog, retrievals: int = UNUSED_RETRIEVALS) -> list[str]:
    """Retire learned skills in use that the last `retrievals` answers for their hardware made no
    use of; returns their names. Skills that came into use since then are left. So are warnings: a
    proposer follows them by omitting a change, which is not recorded as a use."""
    registry = HardwareRegistry(catalog)
    chips = {chip: registry.lineage(chip) for chip in registry.all()}
    retired = []
    with catalog.write() as connection:
        oldest = _oldest(connection, chips, retrievals)
        skills = skill_heads(
            connection, states=("active", "suspect"), tier="learned", access_scope=ALL_ACCESS
        )
        for skill in (head for head in skills if head.polarity == "use"):
            since = oldest(skill.scopes.hardware)
            if since is None or _last_support(connection, skill) >= since:
                continue
            set_state(
                connection,
                skill.name,
                "retired",
                actor=OBSERVER,
                reason=f"not used in {retrievals} retrievals",
                details={"retrievals_since": since, "last_used_at": skill.last_used_at},
            )
            retired.append(skill.name)
    return retired


def _oldest(
    connection: Connection, chips: Mapping[str, Sequence[str]], retrievals: int
) -> Callable[[tuple[str, ...]], str | None]:
    """The time of the n-th last retrieval that a skill of some hardware could have been part of."""
    known: dict[tuple[str, ...], str | None] = {}

    def find(hardware: tuple[str, ...]) -> str | None:
        if hardware not in known:
            own = [chip for chip, line in chips.items() if set(line) & set(hardware)]
            known[hardware] = nth_last_retrieval(
                connection, retrievals, own if hardware else None, ALL_ACCESS
            )
        return known[hardware]

    return find


def _last_support(connection: Connection, skill: SkillHead) -> str:
    """The last time that the skill was used, written or activated."""
    moments = [skill.written_at, skill.last_used_at or ""]
    events = events_of(connection, skill.id)
    moments += [event.created_at for event in events if event.to_state == "active"]
    return max(moments)


# -- narrowing


def narrow(
    connection: Connection,
    skill: SkillRow,
    part: ScopePart,
    *,
    actor: str,
    reason: str,
    details: Mapping[str, Any] | None = None,
) -> None:
    left = outside(known_uses(connection, skill), part)
    lost = [part]
    if part.key == "hardware" and part.value not in skill.scopes.hardware:
        # A skill about a family of chips that loses on one of them can only name those that it
        # keeps, so the others that it does not win on are lost too.
        lost += (ScopePart("hardware", chip) for chip, won in _chips(left).items() if not won)
    for other in lost:
        left = outside(left, other)
    scopes, predicate = without(skill.scopes, skill.predicate, part, left)
    narrowed = replace(skill, scopes=scopes, predicate=predicate)
    signed: dict[str, Any] = {"actor": actor, "reason": reason, "details": details or {}}
    store_narrowed(connection, narrowed, lost, **signed)


def store_narrowed(
    connection: Connection,
    skill: SkillRow,
    lost: Sequence[ScopePart],
    *,
    actor: str,
    reason: str,
    details: Mapping[str, Any],
) -> StoredSkill:
    """Store a skill with narrower scopes or precondition, which left out the `lost` parts. Its
    text, state and evidence stay, and its uses in the rest."""
    uses = known_uses(connection, skill)
    for part in lost:
        uses = outside(uses, part)
    record = record_of(uses)
    return narrow_skill(
        connection,
        skill.name,
        scopes=skill.scopes,
        predicate=skill.predicate,
        content_sha256=content_sha256(advice(skill)),
        counted=(record.uses, record.wins),
        actor=actor,
        reason=reason,
        details={**details, "parts": [asdict(part) for part in lost]},
    )


def without(
    scopes: SkillScopes, predicate: str | None, part: ScopePart, left: Sequence[SkillUse]
) -> tuple[SkillScopes, str | None]:
    """The scopes and the precondition without a part. `left` are the uses in the rest."""
    if part.key == "hardware":
        listed = tuple(chip for chip in scopes.hardware if chip != part.value)
        named = listed if listed and part.value in scopes.hardware else tuple(sorted(_chips(left)))
        return replace(scopes, hardware=named), predicate
    lists = {"op": "ops", "op_family": "ops", "dtype": "dtypes", "language": "languages"}
    if part.key in lists:
        before: tuple[str, ...] = getattr(scopes, lists[part.key])
        family = part.key == "op_family"
        rest = tuple(v for v in before if (op_family(v) if family else v) != part.value)
        if rest and rest != before:
            return SkillScopes(**{**vars(scopes), lists[part.key]: rest}), predicate
    clause = _clause(part)
    return scopes, f"({predicate}) and {clause}" if predicate else clause


def _chips(uses: Sequence[SkillUse]) -> dict[str, bool]:
    """Each chip, and whether the skill won at least half of its uses on it."""
    by_chip: dict[str, list[SkillUse]] = {}
    for use in uses:
        by_chip.setdefault(str(use.situation["hardware"]), []).append(use)
    return {chip: record_of(own).wins_half for chip, own in by_chip.items()}


def _clause(part: ScopePart) -> str:
    """The condition of a predicate that leaves a part out."""
    if part.key == "op_family":
        ops = sorted(op for op, family in problem_terms().ops.items() if family == part.value)
        listed = ", ".join(f'"{op}"' for op in ops or [str(part.value)])
        return f"problem.op not in [{listed}]"
    if part.value is not None:
        return f'problem.{part.key} != "{part.value}"'
    if part.below is not None:
        return f"problem.{part.key} >= {_literal(part.below)}"
    return f"problem.{part.key} < {_literal(part.at_least or 0.0)}"


def _literal(number: float) -> str:
    return str(int(number)) if number.is_integer() else repr(number)
