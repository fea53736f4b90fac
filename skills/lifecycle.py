"""What moves skills from state to state beside their uses: a person's decision, and a toolchain
that is no longer the one that they were measured with.

Every step has an actor and a reason and is an event; nothing is ever deleted, so a retired skill
can still be read and brought back. The queue of what is to be measured again is the skills that
are suspect, with the reason that their last event gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.engine import Catalog
from kb.catalog.skills import EvidenceRow, SkillEvent, SkillHead, State
from kb.errors import Conflict, InvalidRequest
from kb.scope import ALL_ACCESS, AccessScope
from retrieval.knowledge_base import KnowledgeBase
from skills.observation import retire_unused
from skills.skill_library import SkillLibrary

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

    SkillLibrary(base.catalog).sync_builtin(base.settings.skills_dir)
    chosen = places_for(base, hardware, language) if places is None else places
    for place in chosen.values():
        toolchain = f"{place.toolchain.name} {place.toolchain.version()}"
        for name in note_toolchain(base.catalog, place.target.hardware, toolchain):
            log(f"{name} was measured with another toolchain: `kernlore skills verify`")
    unused = base.settings.skills_unused_retrievals
    for name in retire_unused(base.catalog, retrievals=unused):
        log(f"{name} is retired: {unused} answers made no use of it")
