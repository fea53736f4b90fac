"""A whole kernel becomes a recipe if its instances are correct."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.bench.local import problem_view
from optimizer.search.records import Proposal
from optimizer.search.synthesizers.recipe.recipe import instantiate
from optimizer.search.synthesizers.recipe.synthesizer import fit
from skills.curator.distil import KernelLifter, constants_of, recipe_from
from skills.curator.records import WRITTEN, KernelChange, LiftedRecipe
from skills.trajectories.records import (
    MeasuredKernel,
    Trajectory,
    TrajectoryStep,
    problem_of_trajectory,
)
from tests.skills.curator.planted import measured
from tests.skills.trials.curated import KERNEL, bench_of, problem_in

pytestmark = pytest.mark.slow(seconds=10)


def kernel(source: str = KERNEL, **changed: object) -> Bundle:
    fields = {"language": "cpp", "main": "kernel.cpp", "entry": "kernlore_run"}
    return Bundle(**{**fields, "files": {"kernel.cpp": source}, **changed})  # type: ignore[arg-type]


def lifted(problem: Problem, source: str = KERNEL, **changed: object) -> LiftedRecipe | str:
    proposal = Proposal(kernel(source, **changed), "told")
    step = TrajectoryStep(
        MeasuredKernel(0, None, None), MeasuredKernel(1, proposal, measured("key", None))
    )
    lineage = ("x86-64",)
    whole = Trajectory(
        "trj_1", problem_of_trajectory(problem, "float32", []), "x86-64", lineage, (step,), True
    )
    change = KernelChange(step, "use", WRITTEN, (), (), (), None)
    return KernelLifter(problem, "cpu", bench_of).lift(whole, change)


def test_correct_kernel_becomes_a_recipe_with_tested_values(tmp_path: Path) -> None:
    problem = problem_in(tmp_path)
    made = lifted(problem)
    assert isinstance(made, LiftedRecipe), made
    assert made.name == "cpp-reduction-row-total"
    parameters = {p["name"]: p for p in made.recipe["parameters"]}
    assert {name: p["role"] for name, p in parameters.items()} == {
        "LANES": "vector",
        "CHUNK": "block",
    }
    assert parameters["LANES"]["values"] == parameters["LANES"]["tested"] == [4, 8, 16]
    assert parameters["CHUNK"]["values"] == [8, 16, 32] and parameters["CHUNK"]["default"] == 16
    view, recipe = problem_view(problem, "cpu"), recipe_from(made)
    fitting = fit(recipe, view, {})
    assert fitting is not None and set(fitting.cases) == {"main", "odd"}
    again = instantiate(recipe, recipe.defaults, fitting.binding, view.source)
    assert again.files["kernel.cpp"] == KERNEL
    wider = instantiate(recipe, {"LANES": 16, "CHUNK": 8}, fitting.binding, view.source)
    assert "#define LANES 16" in wider.files["kernel.cpp"]
    assert "CHUNK = 8;" in wider.files["kernel.cpp"]


def test_kernel_for_fixed_sizes_is_refused(tmp_path: Path) -> None:
    fixed = KERNEL.replace("cols = t[0].shape[1]", "cols = 1024")
    reason = lifted(problem_in(tmp_path), fixed)
    assert isinstance(reason, str) and reason.startswith(
        "an instance of it is incorrect on held_out"
    )


def test_failing_value_is_excluded_from_its_domain(tmp_path: Path) -> None:
    narrow = KERNEL.replace("double part[LANES]", "double part[LANES > 8 ? 0 : LANES]").replace(
        "y[i] = (float)sum", "y[i] = LANES > 8 ? 0.f : (float)sum"
    )
    made = lifted(problem_in(tmp_path), narrow)
    assert isinstance(made, LiftedRecipe), made
    (lanes,) = (p for p in made.recipe["parameters"] if p["name"] == "LANES")
    assert lanes["values"] == [4, 8]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"entry": "other"}, "its entry is other"),
        ({"files": {"kernel.cpp": KERNEL, "more.h": ""}}, "it has 2 files"),
        ({"files": {"kernel.cpp": KERNEL + "// @{x}\n"}}, "placeholder"),
        (
            {"language": "torch", "main": "k.py", "files": {"k.py": "class ModelNew: ...\n"}},
            "it is a whole module",
        ),
    ],
)
def test_unliftable_kernel_is_refused_at_once(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    reason = lifted(problem_in(tmp_path), **changed)
    assert isinstance(reason, str) and message in reason


def test_constants_are_numbers_with_role_and_one_definition() -> None:
    constants = constants_of(kernel())
    assert [(c.name, c.role, c.value) for c in constants] == [
        ("LANES", "vector", 8),
        ("CHUNK", "block", 16),
    ]
    twice = constants_of(kernel(KERNEL + "#undef LANES\n#define LANES 4\n"))
    assert [c.name for c in twice] == ["CHUNK"]
    odd = constants_of(kernel(KERNEL.replace("LANES 8", "LANES 12").replace("CHUNK", "BORDER")))
    assert [(c.name, c.others) for c in odd] == [("LANES", ())]
