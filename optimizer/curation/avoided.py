"""What a skill to avoid something says as data. Imports nothing that runs kernels."""

from __future__ import annotations

from kb.catalog.skills import SkillHead, SkillRow
from kb.catalog.skills.support import AVOID
from kb.moves_vocabulary import ROLES
from optimizer.search.knowledge import Remedy
from optimizer.synthesizers.recipe.knobs import DIRECTIONS, Knob, avoiding

TOGETHER = "-and-"  # between two knobs that were turned at once


def knobs_of(skill: SkillHead) -> tuple[Knob, ...]:
    """The changes that its transformation names, as `skills.curator.reading.contrast` writes it
    (`decrease-vector-and-add-fuse`); nothing where it names anything else, or does not warn."""
    parts = [part.partition("-") for part in skill.transformation.split(TOGETHER)]
    named = all(way in DIRECTIONS and role in ROLES for way, _, role in parts)
    if skill.polarity != AVOID or not named:
        return ()
    return tuple(Knob(role, way) for way, _, role in parts)


def warning_of(skill: SkillRow, identity: str) -> Remedy | None:
    """For a proposer, decided again by its precondition where more is known; None where the skill
    names no knob."""
    knobs = knobs_of(skill)
    if not knobs:
        return None
    return Remedy(
        id=identity,
        name=f"avoid-{skill.transformation}",
        change=avoiding(knobs),
        limit=None,
        limit_name=None,
        why=skill.description,
        applies=None,
        when=skill.predicate or "",
    )
