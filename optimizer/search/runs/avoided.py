"""What a skill to avoid something says as data. Imports nothing that runs kernels."""

from __future__ import annotations

from kb.catalog.skills import SkillHead, SkillRow
from kb.catalog.skills.support import AVOID
from kb.moves_vocabulary import changes_named
from optimizer.search.knowledge import Move
from optimizer.search.synthesizers.recipe.steps import DIRECTIONS, Knob, avoiding


def knobs_of(skill: SkillHead) -> tuple[Knob, ...]:
    """The changes that its transformation names, all of them with a side; nothing where it
    names anything else, or does not warn."""
    changes = changes_named(skill.transformation) if skill.polarity == AVOID else ()
    if any(direction not in DIRECTIONS for _, direction in changes):
        return ()
    return tuple(Knob(role, direction) for role, direction in changes)


def warning_of(skill: SkillRow, identity: str) -> Move | None:
    """For a proposer, decided again by its precondition where more is known; None where the skill
    names no knob."""
    knobs = knobs_of(skill)
    if not knobs:
        return None
    return Move(
        id=identity,
        name=f"avoid-{skill.transformation}",
        change=avoiding(knobs),
        limit=None,
        limit_name=None,
        why=skill.description,
        applies=None,
        when=skill.predicate or "",
    )
