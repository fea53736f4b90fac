"""In which order changes of one value are tried: by what changes like them brought in this run.

Decided from the tree alone. A step that has just won is repeated in its direction before anything
else, as in the pattern moves of Hooke and Jeeves (Direct search solution of numerical and
statistical problems, JACM 8, 1961); what has just lost waits until the rest was tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from optimizer.search.records import Node
from optimizer.search.synthesizers.recipe.recipe import Recipe, Value

Values = Mapping[str, Value]


@dataclass(frozen=True)
class Step:
    """One parameter's change along its domain. up: towards its later values."""

    parameter: str
    up: bool


@dataclass(frozen=True)
class Record:
    """Whether the last use of a step, and of a move (by id), made a node better than its parent.
    What was not used yet is in neither."""

    steps: Mapping[Step, bool] = field(default_factory=dict)
    moves: Mapping[str, bool] = field(default_factory=dict)

    def has_won(self, step: Step | None) -> bool:
        return step is not None and self.steps.get(step, False)

    def rank(self, step: Step | None, moves: Sequence[str], applies: bool | None) -> int:
        """Lower comes first: what won last, moves that hold, moves that nobody could decide, plain
        changes, what lost last. moves: behind the change, none of a plain one."""
        if self.has_won(step):
            return 0
        lost = step is not None and self.steps.get(step) is False
        if lost or any(self.moves.get(move) is False for move in moves):
            return 4
        if not moves:
            return 3
        return 1 if applies else 2


def step_between(recipe: Recipe, before: Values, after: Values) -> Step | None:
    """None where not exactly one value differs, or one is outside the domain."""
    changed = [p for p in recipe.parameters if before.get(p.name) != after.get(p.name)]
    if len(changed) != 1:
        return None
    values = changed[0].values
    old, new = before.get(changed[0].name), after.get(changed[0].name)
    if old not in values or new not in values:
        return None
    return Step(changed[0].name, values.index(new) > values.index(old))


def record_of(recipe: Recipe, tried: Sequence[Node]) -> Record:
    """Of every measured change of one value from one instance of the recipe to another. A step
    that won makes the way back one that lost; one that lost says nothing of the way back."""
    known = {node.number: node for node in tried}
    steps: dict[Step, bool] = {}
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
                steps[Step(step.parameter, not step.up)] = False
    return Record(steps, moves)
