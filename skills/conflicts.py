"""Skills that contradict each other: one advises a transformation, another warns of it, and there
are kernels for which both hold. Neither needs evidence for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog.skills import SkillDraft, SkillHead, SkillScopes
from kb.scope import ALL_ACCESS, AccessScope

# A retired or quarantined skill says nothing to anybody.
SPEAKING = ("candidate", "active", "suspect")
Lineages = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Contradiction:
    """`name` says the opposite of the skill that was asked about."""

    name: str
    state: str
    polarity: str

    def __str__(self) -> str:
        says = "warns of what this skill advises" if self.polarity == "avoid" else "advises it"
        return f"It conflicts with {self.name} ({self.state}), which {says}. Both are shown."


def contradictions(
    connection: Connection,
    skill: SkillDraft | SkillHead,
    lineages: Lineages,
    access_scope: AccessScope = ALL_ACCESS,
) -> tuple[Contradiction, ...]:
    """The skills of the other polarity about the same transformation, by name, where both can hold
    for one kernel. `lineages`: of every hardware, from the chip up to its vendor."""
    others = store.heads(
        connection,
        states=SPEAKING,
        transformation=skill.transformation,
        access_scope=access_scope,
    )
    return tuple(
        Contradiction(other.name, other.state, other.polarity)
        for other in others
        if other.polarity != skill.polarity and _overlap(skill.scopes, other.scopes, lineages)
    )


def _overlap(mine: SkillScopes, theirs: SkillScopes, lineages: Lineages) -> bool:
    pairs = [
        (getattr(mine, name), getattr(theirs, name))
        for name in ("languages", "ops", "dtypes", "signals")
    ]
    meet = all(not ours or not others or {*ours} & {*others} for ours, others in pairs)
    return meet and _share_a_chip(mine.hardware, theirs.hardware, lineages)


def _share_a_chip(mine: Sequence[str], theirs: Sequence[str], lineages: Lineages) -> bool:
    """Whether some hardware is below one of each: a chip and its family share the chip."""
    if not mine or not theirs:
        return True
    return any(
        ours in lineages.get(other, (other,)) or other in lineages.get(ours, (ours,))
        for ours in mine
        for other in theirs
    )
