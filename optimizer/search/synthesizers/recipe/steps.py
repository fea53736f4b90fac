"""Steps from one instance of a recipe to another: which to try first, and which to avoid.

The order comes from the tree alone. A step that has just won is repeated in its direction before
anything else, as in the pattern moves of Hooke and Jeeves (Direct search solution of numerical and
statistical problems, JACM 8, 1961); what has just lost waits until the rest was tried.

A skill that warns names changes that cost time: roles of a recipe's parameters and the direction in
which they were changed. They reach a proposer as moves whose change is `{avoid: [{role,
direction}, ...]}`. Such a move has no role of its own, so a proposer that follows moves does not
follow it by mistake. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kb.moves_vocabulary import direction_of
from optimizer.search.knowledge import Move
from optimizer.search.records import Node
from optimizer.search.synthesizers.recipe.recipe import Parameter, Recipe, Value

Values = Mapping[str, Value]
# Other directions name no side of a value, so the step that is meant would be unknown.
DIRECTIONS = ("increase", "decrease", "add", "remove")
AVOID = "avoid"  # key of a move's change


@dataclass(frozen=True, order=True)
class Knob:
    """A change of one parameter of this role, in one of DIRECTIONS."""

    role: str
    direction: str


class NoStep(Exception):
    """A change cannot be made to an instance; the message says why."""


def avoiding(knobs: Sequence[Knob]) -> dict[str, Any]:
    """The `change` of a move that says to avoid these knobs done together."""
    return {AVOID: [vars(knob).copy() for knob in knobs]}


def avoided(move: Move) -> tuple[Knob, ...]:
    """The knobs that a move says to avoid; empty for a move to be followed."""
    rows = move.change.get(AVOID) or ()
    return tuple(Knob(str(row["role"]), str(row["direction"])) for row in rows)


def does(recipe: Recipe, before: Values, after: Values, knobs: Sequence[Knob]) -> bool:
    """Whether the change is exactly this: one parameter for each knob, however far."""
    changed = [p for p in recipe.parameters if before.get(p.name) != after.get(p.name)]
    if not knobs or len(changed) != len(knobs):
        return False
    changes = [Knob(p.role, direction_of(before.get(p.name), after[p.name])) for p in changed]
    return sorted(changes) == sorted(knobs)


def turned(recipe: Recipe, values: Values, knobs: Sequence[Knob]) -> dict[str, Value]:
    """The values after one step of each knob. Raises NoStep where a step is impossible."""
    changed = dict(values)
    for knob in knobs:
        name, value = _step(recipe, changed, knob)
        changed[name] = value
    return changed


def _step(recipe: Recipe, values: Values, knob: Knob) -> tuple[str, Value]:
    """The first parameter of the role that can go on, and its next value."""
    own = [parameter for parameter in recipe.parameters if parameter.role == knob.role]
    if not own:
        raise NoStep(f"{recipe.name} has no parameter of the role {knob.role}")
    for parameter in own:
        value = beside(parameter, values[parameter.name], knob.direction)
        if value is not None:
            return parameter.name, value
    state = " and ".join(f"{p.name} is {values[p.name]}" for p in own)
    raise NoStep(f"{state} in {recipe.name}, which has no tested value to {knob.direction} it to")


def beside(parameter: Parameter, value: Value, way: str) -> Value | None:
    """The nearest value in this direction, among the tested values where the recipe names them;
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


@dataclass(frozen=True)
class ValueStep:
    """One parameter's change along its domain; `up` is towards its later values."""

    parameter: str
    up: bool


@dataclass(frozen=True)
class StepRecord:
    """Whether the last use of a step, and of a move (by id), made a node better than its parent.
    Unused steps and moves are absent."""

    steps: Mapping[ValueStep, bool] = field(default_factory=dict)
    moves: Mapping[str, bool] = field(default_factory=dict)

    def has_won(self, step: ValueStep | None) -> bool:
        """Whether the last use of the step made a node better than its parent."""
        return step is not None and self.steps.get(step, False)

    def rank(self, step: ValueStep | None, moves: Sequence[str], applies: bool | None) -> int:
        """The place in the order, 0 first: a step that won last, moves that hold, moves that could
        not be decided, plain changes, a step or move that lost last. `moves` are the ids behind the
        change, empty for a plain change."""
        if self.has_won(step):
            return 0
        lost = step is not None and self.steps.get(step) is False
        if lost or any(self.moves.get(move) is False for move in moves):
            return 4
        if not moves:
            return 3
        return 1 if applies else 2


def step_between(recipe: Recipe, before: Values, after: Values) -> ValueStep | None:
    """The step between two sets of values; None where not exactly one value differs or a value is
    outside the domain."""
    changed = [p for p in recipe.parameters if before.get(p.name) != after.get(p.name)]
    if len(changed) != 1:
        return None
    values = changed[0].values
    old, new = before.get(changed[0].name), after.get(changed[0].name)
    if old not in values or new not in values:
        return None
    return ValueStep(changed[0].name, values.index(new) > values.index(old))


def record_of(recipe: Recipe, tried: Sequence[Node]) -> StepRecord:
    """The record of every measured change of one value from one instance of the recipe to another.
    A step that won makes the way back a step that lost; a step that lost says nothing of the way
    back."""
    known = {node.number: node for node in tried}
    steps: dict[ValueStep, bool] = {}
    moves: dict[str, bool] = {}
    for node in tried:
        parent = known.get(node.parent) if node.parent is not None else None
        if node.state != "evaluated" or node.proposal is None or parent is None:
            continue
        before = parent.proposal
        if before is None or not before.recipe == node.proposal.recipe == recipe.name:
            continue
        won = node.merit > parent.merit
        moves.update(dict.fromkeys(node.proposal.attributed, won))
        step = step_between(recipe, before.values, node.proposal.values)
        if step is not None:
            steps[step] = won
            if won:
                steps[ValueStep(step.parameter, not step.up)] = False
    return StepRecord(steps, moves)
