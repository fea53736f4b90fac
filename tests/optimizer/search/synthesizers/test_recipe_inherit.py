"""Stored winners for another problem of the family: rebuilt where their recipe fits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kb.hardware.table_reader import Problems
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.load import load_problem
from optimizer.search.bench.local import problem_view
from optimizer.search.records import Proposal, Value
from optimizer.search.synthesizers.base import ProblemView
from optimizer.search.synthesizers.recipe.recipe import Recipe, instantiate, parse_recipe
from optimizer.search.synthesizers.recipe.synthesizer import adapt_winner, fit

pytestmark = pytest.mark.slow(seconds=3)

LIBRARY = Path(__file__).resolve().parents[4] / "skills" / "library"
SOFTMAX = "cpp-fused-row-softmax"


def shipped(name: str) -> Recipe:
    folder, problems = LIBRARY / name / "references", Problems(name)
    files = {f"references/{path.name}": path.read_text("utf-8") for path in folder.iterdir()}
    recipe = parse_recipe(name, json.loads(files["references/recipe.json"]), files, problems)
    problems.raise_if_any()
    assert recipe is not None
    return recipe


def view(name: str) -> ProblemView:
    return problem_view(load_problem(Path(name)), "cpu")


def won(recipe: Recipe, problem: ProblemView, **values: Value) -> Proposal:
    fitting = fit(recipe, problem, {})
    assert fitting is not None
    chosen = {**recipe.defaults, **values}
    bundle = instantiate(recipe, chosen, fitting.binding, problem.source)
    return Proposal(bundle, "recipe", recipe=recipe.name, values=chosen, cases=fitting.cases)


def test_winner_is_rebuilt_for_problem_that_its_recipe_fits() -> None:
    recipe, problem = shipped(SOFTMAX), view("softmax")
    elsewhere = won(recipe, problem, chunk=recipe.parameters[0].values[0])
    stale = replace(elsewhere, bundle=replace(elsewhere.bundle, files={"kernel.cpp": "// old"}))
    adapted = adapt_winner(stale, problem, {recipe.name: recipe}, {}, same_problem=False)
    assert adapted is not None and adapted.bundle == elsewhere.bundle
    assert adapted.values == elsewhere.values and adapted.cases == elsewhere.cases


def test_winner_of_an_unsuitable_recipe_is_not_inherited() -> None:
    recipe = shipped("cpp-panel-conv1d")
    winner = won(recipe, view("conv1d"))
    for other in ("depthwise_conv2d", "conv_transpose2d", "pointwise_conv2d"):
        assert (
            adapt_winner(winner, view(other), {recipe.name: recipe}, {}, same_problem=False) is None
        )
    assert adapt_winner(winner, view("conv1d"), {recipe.name: recipe}, {}, same_problem=False)


def test_disallowed_values_are_not_inherited() -> None:
    recipe, problem = shipped(SOFTMAX), view("softmax")
    library = {recipe.name: recipe}
    winner = won(recipe, problem)
    first = recipe.parameters[0].name
    for values in ({**winner.values, first: 1234567}, {first: winner.values[first]}):
        odd = replace(winner, values=values)
        assert adapt_winner(odd, problem, library, {}, same_problem=True) is None
    recipe, problem = shipped("cpp-panel-conv1d"), view("conv1d")
    library, winner = {recipe.name: recipe}, won(recipe, problem, lanes=16)
    assert adapt_winner(winner, problem, library, {"vector_bits": 512}, same_problem=False)
    assert adapt_winner(winner, problem, library, {"vector_bits": 128}, same_problem=False) is None


def test_other_kernels_are_inherited_only_by_their_problem() -> None:
    problem = view("softmax")
    bundle = Bundle({"k.cpp": "// by hand"}, "k.cpp", "cpp", "kernlore_run", {}, "llm")
    for recipe in (None, "a-recipe-that-is-gone"):
        winner = Proposal(bundle, "llm", recipe=recipe)
        assert adapt_winner(winner, problem, {}, {}, same_problem=False) is None
        adapted = adapt_winner(winner, problem, {}, {}, same_problem=True)
        assert adapted is not None and adapted.bundle is bundle
        assert set(adapted.cases) <= {case.name for case in problem.cases}
