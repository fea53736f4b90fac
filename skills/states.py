"""A person's word about a skill, by the name of the state that it is to be in."""

from __future__ import annotations

from typing import Literal

from kb.catalog.skills import SkillEvent
from kb.errors import Conflict, InvalidRequest
from kb.scope import ALL_ACCESS
from retrieval.knowledge_base import KnowledgeBase
from skills import lifecycle
from skills.skill_library import SkillLibrary

Wanted = Literal["active", "candidate", "quarantined", "retired", "restored"]


def change_state(
    base: KnowledgeBase,
    name: str,
    wanted: Wanted,
    *,
    actor: str,
    reason: str,
    force: bool = False,
    access_scope: str = ALL_ACCESS,
) -> SkillEvent:
    """restored: back from retired or quarantined, in the state that its measurements allow. force:
    active although no trial bears it out, which its history keeps. Raises NotFound, Conflict for
    a step that there is not, and InvalidRequest for `force` where nothing is approved."""
    if wanted == "active":
        return lifecycle.approve(
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
        "quarantined": lifecycle.quarantine,
        "retired": lifecycle.retire,
        "restored": lifecycle.restore,
    }
    if wanted in step:
        return step[wanted](
            base.catalog, name, actor=actor, reason=reason, access_scope=access_scope
        )
    known = SkillLibrary(base.catalog).show(name, access_scope=access_scope).summary.state
    if known in ("retired", "quarantined"):
        raise Conflict(
            f"{name} is {known}: what it comes back as follows from its measurements",
            hint="Restore it: state `restored`, or `kernlore skills restore`.",
        )
    return SkillLibrary(base.catalog).set_state(
        name, "candidate", actor=actor, reason=reason, access_scope=access_scope
    )
