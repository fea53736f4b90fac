"""Changes that cost time, as skills to avoid something name them: roles of a recipe's parameters
and the direction in which they were changed.

They come to a proposer as remedies whose change is `{avoid: [{role, direction}, ...]}`. It has no
role of its own, so nobody who follows moves follows one of these by mistake. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kb.moves_vocabulary import direction_of
from optimizer.search.knowledge import Remedy
from optimizer.search.synthesizers.recipe.recipe import Parameter, Recipe, Value

Values = Mapping[str, Value]
# Others name no side of a value, so nobody can say which step is meant.
DIRECTIONS = ("increase", "decrease", "add", "remove")
AVOID = "avoid"  # key of a remedy's change


@dataclass(frozen=True, order=True)
class Knob:
    """A change of one parameter of this role. direction: one of DIRECTIONS."""

    role: str
    direction: str


class NoStep(Exception):
    """Why a change cannot be made to an instance; the message says it in words."""


def avoiding(knobs: Sequence[Knob]) -> dict[str, Any]:
    """A remedy's change that says to avoid these, done together."""
    return {AVOID: [vars(knob).copy() for knob in knobs]}


def avoided(remedy: Remedy) -> tuple[Knob, ...]:
    """What a remedy says to avoid; nothing where it is a move."""
    told = remedy.change.get(AVOID) or ()
    return tuple(Knob(str(one["role"]), str(one["direction"])) for one in told)


def does(recipe: Recipe, before: Values, after: Values, knobs: Sequence[Knob]) -> bool:
    """Whether the change is this one and no other: one parameter for each knob, however far."""
    changed = [p for p in recipe.parameters if before.get(p.name) != after.get(p.name)]
    if not knobs or len(changed) != len(knobs):
        return False
    found = [Knob(p.role, direction_of(before.get(p.name), after[p.name])) for p in changed]
    return sorted(found) == sorted(knobs)


def turned(recipe: Recipe, values: Values, knobs: Sequence[Knob]) -> dict[str, Value]:
    """The values with one step of each knob. Raises NoStep."""
    found = dict(values)
    for knob in knobs:
        name, value = _step(recipe, found, knob)
        found[name] = value
    return found


def _step(recipe: Recipe, values: Values, knob: Knob) -> tuple[str, Value]:
    """The first parameter of the role that can go on, and the value beside its own."""
    own = [parameter for parameter in recipe.parameters if parameter.role == knob.role]
    if not own:
        raise NoStep(f"{recipe.name} has no parameter of the role {knob.role}")
    for parameter in own:
        value = beside(parameter, values[parameter.name], knob.direction)
        if value is not None:
            return parameter.name, value
    told = " and ".join(f"{p.name} is {values[p.name]}" for p in own)
    raise NoStep(f"{told} in {recipe.name}, which has no tested value to {knob.direction} it to")


def beside(parameter: Parameter, value: Value, way: str) -> Value | None:
    """The nearest value in that direction, of those that were tested where the recipe says which;
    None where there is none."""
    offered = parameter.tested or parameter.values
    reached = [v for v in offered if v != value and direction_of(value, v) == way]
    if way in ("add", "remove"):
        return next(iter(reached), None)
    numbers = [v for v in reached if isinstance(v, int | float)]
    return min(numbers, key=lambda v: abs(v - _number(value)), default=None)


def _number(value: Value) -> float:
    assert isinstance(value, int | float)
    return float(value)
