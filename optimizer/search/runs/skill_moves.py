"""The moves and the recipe of a skill as a proposer has them, and what a skill warns of as data.

Imports nothing that runs kernels.
"""

from __future__ import annotations

from kb.catalog.skills import SkillHead, SkillRow
from kb.catalog.skills.evidence import AVOID
from kb.hardware.table_reader import Problems
from kb.moves_vocabulary import changes_named
from optimizer.search.knowledge import Move
from optimizer.search.synthesizers.recipe.recipe import Recipe, parse_recipe
from optimizer.search.synthesizers.recipe.steps import DIRECTIONS, Knob, avoiding

MARK = "#"  # between a skill's name and the number of its move


def remedies_of(skill: SkillRow) -> tuple[Move, ...]:
    """The moves of a skill; their ids name the skill, and `skill_of` reads it back.

    A skill that warns of a transformation becomes one move, which a proposer puts last.
    """
    if skill.polarity == AVOID:
        warning = warning_of(skill, f"{skill.name}{MARK}0")
        return () if warning is None else (warning,)
    return tuple(
        Move(
            id=f"{skill.name}{MARK}{number}",
            name=str(move.get("id") or skill.name),
            change=dict(move["change"]),
            limit=None,
            limit_name=None,
            why=str(move.get("why", "")),
            applies=None,
            when=str(move.get("when", "")),
        )
        for number, move in enumerate(skill.moves)
    )


def skill_of(identity: str) -> str:
    """The name of the skill that a remedy's id names; any other id as it is."""
    return identity.partition(MARK)[0]


def recipe_of(skill: SkillRow) -> Recipe | None:
    """The recipe of a skill, or None where it has none. Raises InvalidKnowledge for one that cannot
    be read.
    """
    if skill.recipe is None:
        return None
    problems = Problems(f"skill {skill.name}")
    recipe = parse_recipe(skill.name, skill.recipe, skill.metadata.get("files", {}), problems)
    problems.raise_if_any()
    return recipe


def knobs_of(skill: SkillHead) -> tuple[Knob, ...]:
    """The changes that a warning names, each with a direction. Empty where the skill does not warn,
    or names anything else.
    """
    changes = changes_named(skill.transformation) if skill.polarity == AVOID else ()
    if any(direction not in DIRECTIONS for _, direction in changes):
        return ()
    return tuple(Knob(role, direction) for role, direction in changes)


def warning_of(skill: SkillRow, identity: str) -> Move | None:
    """A warning for a proposer; its precondition is decided again where more is known. None where
    the skill names no knob.
    """
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
