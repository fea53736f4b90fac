"""Stored winners of other problems for the one at hand.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from optimizer.search.context import ProblemView
from optimizer.search.records import Proposal
from optimizer.search.synthesizers.recipe.instantiate import instantiate
from optimizer.search.synthesizers.recipe.match import allowed
from optimizer.search.synthesizers.recipe.recipe import Recipe, Value
from optimizer.search.synthesizers.recipe.synthesizer import fit


def fitted(
    winner: Proposal,
    problem: ProblemView,
    recipes: Mapping[str, Recipe],
    facts: Mapping[str, Value],
    *,
    same_problem: bool,
) -> Proposal | None:
    """The winner as a candidate for this problem; None where it cannot be one.

    An instance of a recipe is made anew with the winner's values, as its source may hold constants
    of the other problem. Any other kernel says nothing of what it fits, so it is taken only where
    it won on this very problem. same_problem: whether it did. recipes: of the library, by name.
    """
    recipe = recipes.get(winner.recipe or "")
    if recipe is None:
        dtype = problem.main.dtype
        cases = tuple(case.name for case in problem.cases if case.dtype == dtype)
        return replace(winner, cases=cases) if same_problem else None
    fitting = fit(recipe, problem, facts)
    domains = {p.name: p.values for p in recipe.parameters}
    known = winner.values.keys() == domains.keys() and all(
        value in domains[name] for name, value in winner.values.items()
    )
    if fitting is None or not known or not allowed(recipe, winner.values, fitting.binding, facts):
        return None
    bundle = instantiate(recipe, winner.values, fitting.binding, problem.source)
    return replace(winner, bundle=bundle, cases=fitting.cases)
