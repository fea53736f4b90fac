"""What a search that tuned a recipe teaches beyond its single steps: the same template with the
winner's values as its defaults.

No step of the tree may say so, where several values changed one after the other on the way. So the
first instance of the recipe is compared with the winner, as one composed step that passes the gate
like any other: its two sides were measured, the gain follows from their figures.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from optimizer.search.runs.knowledge import RecipeSource
from skills.curator.distillation import Lifted, Lifter
from skills.curator.records import Change, Kernel, Measured, Side, Step, Trajectory, Value

COMPOSED = "composed"  # synthesizer of the composed step


@dataclass(frozen=True)
class Tuned:
    """trajectory: of the composed step alone. lifted: the recipe that it teaches."""

    trajectory: Trajectory
    lifted: Lifted


@dataclass(frozen=True)
class Instance:
    """A candidate that is an instance of a recipe, and its figures."""

    step: Step
    kernel: Kernel
    measured: Measured

    @property
    def merit(self) -> float:
        return self.measured.speedup.low if self.measured.speedup is not None else 0.0


def tuned_instance(trajectory: Trajectory, recipes: Mapping[str, RecipeSource]) -> Tuned | str:
    """Of the candidate that is certainly fastest; a text says why there is none."""
    best = _best(trajectory)
    if best is None:
        return "no candidate is correct and measured"
    recipe = best.kernel.recipe
    if recipe is None:
        return f"the winner, node {best.step.child.number}, is no instance of a recipe"
    if recipe not in recipes:
        return f"no skill in use has the recipe {recipe}"
    source = recipes[recipe]
    changed = {
        name: value
        for name, value in best.kernel.values.items()
        if name in source.defaults and source.defaults[name] != value
    }
    if not changed:
        return f"the winner, node {best.step.child.number}, has the values of {recipe} itself"
    instances = _instances(trajectory, recipe)
    if instances[0].step.child.number == best.step.child.number:
        return f"{recipe} was begun with the winner's values: nothing to compare them with"
    name = _name(recipe, changed)
    body, signals = _body(source, best.kernel, instances), _signals(trajectory, source)
    lifted = Lifted(name, body, _template(source), signals)
    child = replace(best.step.child, kernel=replace(best.kernel, recipe=name))
    step = Step(
        parent=instances[0].step.child,
        child=child,
        synthesizer=COMPOSED,
        origin=best.step.origin,
        plan=f"The values that {recipe} was tuned to.",
        shown={"excerpts": (), "moves": (), "skills": ()},
    )
    return Tuned(replace(trajectory, steps=(step,)), lifted)


@dataclass(frozen=True)
class Lifting:
    """Implements `skills.curator.distillation.Lifter` for both kinds: tuned instances by the name
    of their recipe, whole kernels by `whole`. absent: why whole kernels cannot be lifted here."""

    tuned: Mapping[str, Lifted]
    whole: Lifter | None = None
    absent: str = "there is no device here to try instances of it on"

    def lift(self, trajectory: Trajectory, change: Change) -> Lifted | str:
        kernel = change.step.child.kernel
        assert kernel is not None
        if kernel.recipe is not None:
            return self.tuned.get(kernel.recipe) or f"no skill has the recipe {kernel.recipe}"
        return self.absent if self.whole is None else self.whole.lift(trajectory, change)


def _best(trajectory: Trajectory) -> Instance | None:
    found = [one for one in map(_correct, trajectory.steps) if one is not None and one.merit > 0]
    return max(found, key=lambda one: (one.merit, -one.step.child.number), default=None)


def _instances(trajectory: Trajectory, recipe: str) -> list[Instance]:
    """Correct ones, in their order."""
    found = [one for one in map(_correct, trajectory.steps) if one is not None]
    return [one for one in found if one.kernel.recipe == recipe]


def _correct(step: Step) -> Instance | None:
    side: Side = step.child
    if side.kernel is None or side.measured is None or side.measured.rejected:
        return None
    passed, of = side.measured.checks
    if side.measured.validity != "correct" or passed != of:
        return None
    return Instance(step, side.kernel, side.measured)


def _body(source: RecipeSource, winner: Kernel, instances: Sequence[Instance]) -> dict[str, Any]:
    """The recipe's JSON with the winner's values as defaults. tested: values of correct candidates,
    in the order of the domain."""
    parameters = []
    for parameter in source.body["parameters"]:
        name = parameter["name"]
        tried = [*parameter.get("tested", ()), *(one.kernel.values.get(name) for one in instances)]
        default = winner.values.get(name, source.defaults[name])
        tested = [value for value in parameter["values"] if value in tried]
        parameters.append({**parameter, "default": default, "tested": tested})
    return {**source.body, "parameters": parameters}


def _signals(trajectory: Trajectory, source: RecipeSource) -> tuple[str, ...]:
    """What a search sees that has nothing but the reference, then what the recipe is said to be
    for: the verdict of an instance is what one sees after having used it."""
    references = (s.parent.measured for s in trajectory.steps if s.parent.kernel is None)
    seen = next((found.signals for found in references if found is not None), ())
    return tuple(dict.fromkeys((*seen, *source.signals)))


def _template(source: RecipeSource) -> dict[str, str]:
    path = source.body["template"]
    return {path: source.files[path]}


def _name(recipe: str, changed: Mapping[str, Value]) -> str:
    """The recipe with what differs, as `cpp-fused-row-softmax-rows4`."""
    parts = [f"{name}{value}" for name, value in sorted(changed.items())]
    return re.sub(r"[^a-z0-9]+", "-", "-".join([recipe, *parts]).lower()).strip("-")
