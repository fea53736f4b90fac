"""The points that a problem's recipes span, thinned to what can be measured.

A space is thinned by leaving out values of parameters, never a default: so neighbours of a point
stay in it, and the search's own steps (one value up or down) stay what they are.

A ground says where points are measured, and in which language their kernels are.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from optimizer.evaluation.problem.spec import Problem
from optimizer.search.bench.local import problem_view
from optimizer.search.records import Proposal
from optimizer.search.synthesizers.base import ProblemView
from optimizer.search.synthesizers.recipe.recipe import Binding, Recipe, Value, instantiate, space
from optimizer.search.synthesizers.recipe.synthesizer import NAME, Fitting, fit

Kind = Literal["cpu", "cuda"]
FEWEST = 2  # values that a thinned parameter keeps


@dataclass(frozen=True)
class Ground:
    """device: as torch calls it. language: of every recipe that takes part."""

    device: Kind
    language: str


CPP = Ground("cpu", "cpp")
TRITON = Ground("cuda", "triton")
GROUNDS = (CPP, TRITON)


@dataclass(frozen=True)
class Space:
    """One problem with the recipes that fit it, thinned. whole: points before thinning. view: with
    the main case alone, which is what is measured."""

    problem: Problem
    view: ProblemView
    fittings: tuple[Fitting, ...]
    whole: int
    ground: Ground = CPP

    @property
    def recipes(self) -> list[Recipe]:
        return [fitting.recipe for fitting in self.fittings]

    def points(self) -> list[tuple[Fitting, dict[str, Value]]]:
        """Everything that is allowed where no fact is known: the most that any arm can reach. The
        defaults come first."""
        points = [(f, values) for f in self.fittings for values in space(f.recipe, f.binding, {})]
        return sorted(points, key=lambda point: point[1] != point[0].recipe.defaults)


def space_of(
    problem: Problem,
    recipes: Sequence[Recipe],
    most: int,
    seed: int,
    ground: Ground = CPP,
    seen: ProblemView | None = None,
) -> Space:
    """most: points of a recipe that are kept. Which values go is drawn from the seed. seen: the
    problem as it was looked at on the device; without it this looks, which needs the device."""
    view = seen or problem_view(problem, ground.device)
    view = replace(view, cases=(view.main,))
    whole, fittings = 0, []
    for recipe in recipes:
        fitting = fit(recipe, view, {})
        if fitting is not None:
            whole += sum(1 for _ in space(recipe, fitting.binding, {}))
            kept = thinned(recipe, fitting.binding, most, seed)
            fittings.append(replace(fitting, recipe=kept))
    return Space(problem, view, tuple(fittings), whole, ground)


def thinned(recipe: Recipe, binding: Binding, most: int, seed: int) -> Recipe:
    """The recipe with at most that many points, as far as every parameter keeps FEWEST values."""
    chance = random.Random(f"{seed}:{recipe.name}")
    while sum(1 for _ in space(recipe, binding, {})) > most:
        longest = max(len(parameter.values) for parameter in recipe.parameters)
        if longest <= FEWEST:
            break
        chosen = chance.choice([p for p in recipe.parameters if len(p.values) == longest])
        gone = chance.choice([value for value in chosen.values if value != chosen.default])
        left = replace(chosen, values=tuple(value for value in chosen.values if value != gone))
        parameters = tuple(left if p is chosen else p for p in recipe.parameters)
        recipe = replace(recipe, parameters=parameters)
    return recipe


def proposal_of(space: Space, fitting: Fitting, values: dict[str, Value], plan: str) -> Proposal:
    """The point as the recipe synthesizer would propose it, from the reference."""
    return Proposal(
        bundle=instantiate(fitting.recipe, values, fitting.binding, space.problem.source),
        synthesizer=NAME,
        plan=plan,
        recipe=fitting.recipe.name,
        values=values,
        cases=fitting.cases,
    )
