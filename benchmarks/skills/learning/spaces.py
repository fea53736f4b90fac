"""The small spaces on which arms are compared: cases that nobody learned from, and problems that
nobody learned from."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.search.replay.spaces import CPP, Ground, Space, space_of
from benchmarks.skills.learning.views import Views
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.synthesizers.base import ProblemView
from optimizer.search.synthesizers.recipe.recipe import Binding, Parameter, Recipe, Value, space

MANY = 10_000  # points: more than any recipe here spans


def unseen_space(
    problem: Problem,
    recipes: Sequence[Recipe],
    most: int,
    seed: int,
    kept: Mapping[str, Value],
    views: Views,
) -> Space | None:
    """Over a case that nobody learned from; None where the problem has none. kept: values that stay
    in the space beside the defaults."""
    unseen = views.unseen(problem, seed)
    if unseen is None:
        return None
    return small_space(unseen, recipes, most, seed, kept, views.ground, views.view(unseen))


def small_space(
    problem: Problem,
    recipes: Sequence[Recipe],
    most: int,
    seed: int,
    kept: Mapping[str, Value] | None = None,
    ground: Ground = CPP,
    seen: ProblemView | None = None,
) -> Space:
    """At most that many points of each recipe, as far as kept values allow."""
    whole = space_of(problem, recipes, MANY, seed, ground, seen)
    fittings = tuple(
        replace(f, recipe=thinned(f.recipe, f.binding, most, seed, kept or {}))
        for f in whole.fittings
    )
    return replace(whole, fittings=fittings)


def thinned(
    recipe: Recipe, binding: Binding, most: int, seed: int, kept: Mapping[str, Value]
) -> Recipe:
    """Without values, drawn from the seed, of the parameters that have most of them; a parameter
    may be left with its default alone. Neighbours that are left stay neighbours."""
    chance = random.Random(f"{seed}:{recipe.name}")
    while sum(1 for _ in space(recipe, binding, {})) > most:
        spare = {p.name: _spare(p, kept) for p in recipe.parameters}
        open_ = [p for p in recipe.parameters if spare[p.name]]
        if not open_:
            break
        longest = max(len(p.values) for p in open_)
        chosen = chance.choice([p for p in open_ if len(p.values) == longest])
        gone = chance.choice(spare[chosen.name])
        left = replace(chosen, values=tuple(v for v in chosen.values if v != gone))
        parameters = tuple(left if p is chosen else p for p in recipe.parameters)
        recipe = replace(recipe, parameters=parameters)
    return recipe


def _spare(parameter: Parameter, kept: Mapping[str, Value]) -> list[Value]:
    stays = (parameter.default, kept.get(parameter.name, parameter.default))
    return [value for value in parameter.values if value not in stays]
