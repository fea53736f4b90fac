"""The moves and the recipe of a skill as a proposer has them. Imports nothing that runs kernels."""

from __future__ import annotations

from kb.catalog.skills import SkillRow
from kb.catalog.skills.support import AVOID
from kb.hardware.checks import Problems
from optimizer.search.knowledge import Move
from optimizer.search.runs.avoided import warning_of
from optimizer.search.synthesizers.recipe.recipe import Recipe, parse_recipe

MARK = "#"  # between a skill's name and the number of its move


def remedies_of(skill: SkillRow) -> tuple[Move, ...]:
    """Their ids name the skill; `skill_of` reads it back. Of one to avoid something: what a
    proposer puts last."""
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
    """The skill that a remedy's id names; any other id as it is."""
    return identity.partition(MARK)[0]


def recipe_of(skill: SkillRow) -> Recipe | None:
    """Raises InvalidKnowledge for one that cannot be read."""
    if skill.recipe is None:
        return None
    problems = Problems(f"skill {skill.name}")
    found = parse_recipe(skill.name, skill.recipe, skill.metadata.get("files", {}), problems)
    problems.raise_if_any()
    return found
