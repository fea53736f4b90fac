"""What moves skills from state to state beside their uses: a person's decision, and a toolchain
that is no longer the one that they were measured with.

Every step has an actor and a reason and is an event; nothing is ever deleted, so a retired skill
can still be read and brought back. The queue of what is to be measured again is the skills that
are suspect, with the reason that their last event gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.skills import (
    EvidenceRow,
    SkillEvent,
    SkillHead,
    SkillRow,
    SkillScopes,
    State,
    Stored,
)
from kb.errors import Conflict, InvalidRequest
from kb.problem_terms import op_family, problem_terms
from kb.scope import ALL_ACCESS, AccessScope
from retrieval.knowledge_base import KnowledgeBase
from skills.format.schema import advice
from skills.format.skillfile import content_sha256
from skills.importing import sync_shipped
from skills.uses import ScopePart, SkillUse, UseVerdict, assess_uses, outside, record_of

if TYPE_CHECKING:
    from optimizer.search.bench.local import Place


ACTOR = "lifecycle"
Wanted = Literal["active", "candidate", "quarantined", "retired", "restored"]
# What a person can do with a skill in each state: the commands, which are the steps of the routes.
STEPS: Mapping[str, tuple[str, ...]] = {
    "candidate": ("approve", "quarantine", "retire"),
    "active": ("quarantine", "retire"),
    "suspect": ("approve", "quarantine", "retire"),
    "retired": ("restore", "quarantine"),
    "quarantined": ("restore", "retire"),
}


@dataclass(frozen=True)
class Queued:
    """A skill to be measured again. `hardware`, `was` and `now` are those of the toolchain that
    changed; None where something else made it suspect."""

    name: str
    since: str
    reason: str
    hardware: str | None
    was: str | None
    now: str | None


# -- by a person


def approve(
    catalog: Catalog,
    name: str,
    *,
    actor: str,
    reason: str,
    force: bool = False,
    access_scope: AccessScope = ALL_ACCESS,
) -> SkillEvent:
    """Make a candidate or suspect skill active. A learned one must have trials that support its
    present text, or `force`, which its history keeps. Raises NotFound and Conflict."""
    states = ("candidate", "suspect")
    return _move(catalog, name, "active", states, actor, reason, access_scope, force=force)


def quarantine(
    catalog: Catalog, name: str, *, actor: str, reason: str, access_scope: AccessScope = ALL_ACCESS
) -> SkillEvent:
    """Take a skill out of every answer until a person restores it. Raises NotFound and Conflict."""
    states = tuple(state for state in store.STATES if state != "quarantined")
    return _move(catalog, name, "quarantined", states, actor, reason, access_scope)


def retire(
    catalog: Catalog, name: str, *, actor: str, reason: str, access_scope: AccessScope = ALL_ACCESS
) -> SkillEvent:
    """Take a skill out of use; it stays addressable. Raises NotFound and Conflict."""
    states = tuple(state for state in store.STATES if state != "retired")
    return _move(catalog, name, "retired", states, actor, reason, access_scope)


def restore(
    catalog: Catalog, name: str, *, actor: str, reason: str, access_scope: AccessScope = ALL_ACCESS
) -> SkillEvent:
    """Bring back what was retired or quarantined: as active where it was that and needs no new
    measurement, else as a candidate. What was learned and then quarantined needs one. Its uses are
    counted anew. Raises NotFound and Conflict."""
    with catalog.write() as connection:
        skill = store.get(connection, name, access_scope)
        if skill.state not in ("retired", "quarantined"):
            already = " already" if skill.state == "active" else ""
            raise _refused(skill, f"{name} is {skill.state}{already}: there is nothing to restore")
        curated = skill.tier == "curated"
        proven = curated or (skill.state == "retired" and store.measured(connection, skill))
        was_active = _before(connection, skill, access_scope) == "active"
        state: State = "active" if was_active and proven else "candidate"
        return store.set_state(
            connection, name, state, actor=actor, reason=reason, access_scope=access_scope
        )


def _before(connection: Connection, skill: SkillHead, access_scope: AccessScope) -> str | None:
    """The state from which it came into its present one."""
    events = store.events(connection, skill.id, access_scope)
    moves = [e for e in events if e.event == "state" and e.to_state == skill.state]
    return moves[-1].from_state if moves else None


def _why_not(skill: SkillHead, state: str) -> str:
    if skill.state == state:
        return f"{skill.name} is {state} already"
    return f"{skill.name} is {skill.state} and cannot become {state} in one step"


def _refused(skill: SkillHead, message: str) -> Conflict:
    """The error for a step that the skill's state does not allow; it says which are possible."""
    possible = [f"kernlore skills {step} {skill.name}" for step in STEPS[skill.state]]
    hint = f"Possible now: {', '.join(possible)}."
    if "restore" in STEPS[skill.state]:
        hint += " Where it comes back as a candidate, approve it then."
    return Conflict(message, hint=hint, details={"skill": skill.name, "state": skill.state})


def _move(
    catalog: Catalog,
    name: str,
    state: State,
    from_states: tuple[str, ...],
    actor: str,
    reason: str,
    access_scope: AccessScope,
    *,
    force: bool = False,
) -> SkillEvent:
    with catalog.write() as connection:
        skill = store.get(connection, name, access_scope)
        if skill.state not in from_states:
            raise _refused(skill, _why_not(skill, state))
        return store.set_state(
            connection,
            name,
            state,
            actor=actor,
            reason=reason,
            force=force,
            access_scope=access_scope,
        )


# -- by a change of the toolchain


def note_toolchain(
    catalog: Catalog,
    hardware: str,
    toolchain: str,
    *,
    actor: str = ACTOR,
    access_scope: AccessScope = ALL_ACCESS,
) -> list[str]:
    """`toolchain` (its name, then its versions, as the harness says it) is in use for `hardware`.

    Where that is a change, active learned skills whose newest measurement on this hardware was
    with other versions of it become suspect, and are so queued; returns their names.
    """
    with catalog.write() as connection:
        if store.note_toolchain(connection, hardware, toolchain) == toolchain:
            return []
        outdated = _outdated(connection, hardware, toolchain, access_scope)
        for name, was in outdated.items():
            store.set_state(
                connection,
                name,
                "suspect",
                actor=actor,
                reason=f"measured with {was}, in use is {toolchain}",
                details={"hardware": hardware, "was": was, "now": toolchain},
                access_scope=access_scope,
            )
    return list(outdated)


def _outdated(
    connection: Connection, hardware: str, toolchain: str, access_scope: AccessScope
) -> dict[str, str]:
    """Skill -> the versions it was last measured with."""
    skills = store.heads(connection, states=("active",), tier="learned", access_scope=access_scope)
    evidence = store.evidence_for(
        connection, [skill.id for skill in skills], access_scope, details=False
    )
    outdated = {}
    for skill in skills:
        was = _newest(evidence.get(skill.id, []), hardware, store.toolchain_name(toolchain))
        if was is not None and was != toolchain:
            outdated[skill.name] = was
    return outdated


def _newest(rows: list[EvidenceRow], hardware: str, name: str) -> str | None:
    for row in reversed(rows):
        known = row.toolchain_id
        if known and row.hardware_id == hardware and store.toolchain_name(known) == name:
            return known
    return None


def queue(catalog: Catalog, *, access_scope: AccessScope = ALL_ACCESS) -> list[Queued]:
    """Skills to be measured again, the longest waiting first."""
    waiting = []
    with catalog.read() as connection:
        for skill in store.heads(connection, states=("suspect",), access_scope=access_scope):
            events = store.events(connection, skill.id, access_scope)
            last = [event for event in events if event.to_state == "suspect"][-1]
            details = last.details
            waiting.append(
                Queued(
                    skill.name,
                    last.created_at,
                    last.reason,
                    details.get("hardware"),
                    details.get("was"),
                    details.get("now"),
                )
            )
    return sorted(waiting, key=lambda queued: (queued.since, queued.name))


def change_state(
    base: KnowledgeBase,
    name: str,
    wanted: Wanted,
    *,
    actor: str,
    reason: str,
    force: bool = False,
    access_scope: AccessScope = ALL_ACCESS,
) -> SkillEvent:
    """Bring a skill into the state that a person wants.

    `restored` brings it back from retired or quarantined, in the state that its measurements allow.
    `force` makes it active although no trial supports it, which its history keeps. Raises NotFound,
    Conflict for a step that does not exist, and InvalidRequest for `force` where nothing is
    approved.
    """
    if wanted == "active":
        return approve(
            base.catalog,
            name,
            actor=actor,
            reason=reason,
            force=force,
            access_scope=access_scope,
        )
    if force:
        raise InvalidRequest(
            f"`force` has no meaning for {wanted}", hint="It approves; leave it out here."
        )
    step = {
        "quarantined": quarantine,
        "retired": retire,
        "restored": restore,
    }
    if wanted in step:
        return step[wanted](
            base.catalog, name, actor=actor, reason=reason, access_scope=access_scope
        )
    return _move(base.catalog, name, "candidate", ("suspect",), actor, reason, access_scope)


# -- before a search


def prepare_library(
    base: KnowledgeBase,
    hardware: str,
    language: str | None,
    log: Callable[[str], None],
    places: Mapping[str, Place] | None = None,
) -> None:
    """Store this version's built-in skills and update the states of learned ones.

    Skills measured with another toolchain become suspect; skills that many answers showed and
    nobody used are retired. `log` gets one sentence for each change. `places` are those of the
    search, by language, where they are not this machine's. Raises UnknownHardware, and Unavailable
    where nothing can be run on `hardware` here.
    """
    from optimizer.search.runs.places import places_for  # seconds to import

    sync_shipped(base.catalog, base.registry, base.settings.skills_dir)
    chosen = places_for(base, hardware, language) if places is None else places
    for place in chosen.values():
        toolchain = f"{place.toolchain.name} {place.toolchain.version()}"
        for name in note_toolchain(base.catalog, place.target.hardware, toolchain):
            log(f"{name} was measured with another toolchain: `kernlore skills verify`")
    unused = base.settings.skills_unused_retrievals
    for name in retire_unused(base.catalog, retrievals=unused):
        log(f"{name} is retired: {unused} answers made no use of it")


# -- observation: Applies what the uses of a skill say about it: it is kept, narrowed to the part

OBSERVER = "observer"
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
    actor: str = OBSERVER,
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
) -> Stored:
    """Store a skill that claims less. `skill` has the scopes and the precondition that are left,
    `kept` are its uses there, and `details` names the `parts` that are lost. Its text and evidence
    stay."""
    record = record_of(kept)
    return store.narrow(
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
    actor: str = OBSERVER,
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
