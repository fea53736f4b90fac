"""Sets a skill's state directly in the store."""

from __future__ import annotations

from kb.catalog.skills import writing
from kb.catalog.skills.reading import SkillEvent, SkillState
from skills.skill_library import SkillLibrary


def set_state(
    library: SkillLibrary, name: str, state: SkillState, *, actor: str, reason: str
) -> SkillEvent:
    with library._catalog.write() as connection:
        return writing.set_state(connection, name, state, actor=actor, reason=reason)
