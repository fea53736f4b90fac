"""Sets a skill's state directly in the store."""

from __future__ import annotations

from kb.catalog import skills as store
from kb.catalog.skills import SkillEvent, State
from skills.skill_library import SkillLibrary


def set_state(
    library: SkillLibrary, name: str, state: State, *, actor: str, reason: str
) -> SkillEvent:
    with library._catalog.write() as connection:
        return store.set_state(connection, name, state, actor=actor, reason=reason)
