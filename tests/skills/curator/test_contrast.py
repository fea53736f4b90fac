"""Changes between parent and child, as structure."""

from __future__ import annotations

from typing import Any

import pytest

from kb.problem_terms import changes_named, direction_of, transformation_of
from skills.curator.contrast import GatePass, contrast
from skills.curator.records import UNNAMED, WRITTEN, KernelChange
from skills.trajectories.records import MeasuredKernel, TrajectoryStep
from tests.skills.curator.planted import ROLES, VALUES, free, instance, measured, step, tuned

USE = GatePass("use", "pair", None)
AVOID = GatePass("avoid", "pair", None)
LOOP = (
    "void run(const float *x, float *y, long n) {\n  for (long i = 0; i < n; i++) y[i] = x[i];\n}"
)


def changed(made: TrajectoryStep, passed: GatePass = USE, **other: Any) -> KernelChange | None:
    return contrast(made, passed, ROLES, **other)[0]


def between(before: str, after: str, language: str = "cpp") -> KernelChange | None:
    sides = (MeasuredKernel(1, free(before, language), measured("a", 1.0)),
             MeasuredKernel(2, free(after, language), measured("b", 1.5)))  # fmt: skip
    return changed(step(*sides))


def test_recipe_parameters_have_their_declared_roles() -> None:
    change = changed(tuned(after={**VALUES, "lanes": 16, "ahead": 2}))
    assert change is not None and change.transformation == "increase-prefetch-and-increase-vector"
    assert [(p.name, p.role, p.before, p.after) for p in change.parameters] == [
        ("ahead", "prefetch", 0, 2),
        ("lanes", "vector", 8, 16),
    ]


def test_more_than_two_causes_have_no_name() -> None:
    made = tuned(after={"lanes": 4, "unroll": 2, "chunk": 4, "ahead": 0})
    change, decision = contrast(made, USE, ROLES)
    assert change is None and "3 parameters" in decision.reason
    assert contrast(tuned(), USE, {})[0] is None


def test_recipe_that_replaces_reference_is_adopted() -> None:
    made = step(
        MeasuredKernel(0, None, None), MeasuredKernel(1, instance(VALUES), measured("b", 1.5))
    )
    change = changed(made)
    assert change is not None and change.transformation == "use-recipe-cpp-row-resident-layernorm"
    assert changed(made, AVOID) is None  # no reason for the failure is given
    assert changed(made, AVOID, attributed=True) is not None


@pytest.mark.parametrize(
    ("before", "after", "language", "name", "role"),
    [
        ("BLOCK_M = 64\nf()", "BLOCK_M = 128\nf()", "triton", "increase-tile_m", "tile_m"),
        ("f(num_warps=8)", "f(num_warps=4)", "triton", "decrease-warps", "warps"),
        ("constexpr int UNROLL = 2;", "constexpr int UNROLL = 4;", "cpp", "increase-unroll",
         "unroll"),
    ],
)  # fmt: skip
def test_constants_of_free_code_are_parameters(
    before: str, after: str, language: str, name: str, role: str
) -> None:
    change = between(before, after, language)
    assert change is not None and change.transformation == name
    assert [p.role for p in change.parameters] == [role]


def test_added_lines_name_transformation() -> None:
    change = between(LOOP, LOOP.replace("  for", "#pragma omp parallel for\n  for"))
    assert change is not None and change.transformation == "parallelise"
    assert change.pattern == ("+#pragma omp parallel for",)
    both = LOOP.replace("  for", "#pragma omp parallel for\n  for").replace(
        "y[i] = x[i]", "__builtin_prefetch(x + i), y[i] = x[i]"
    )
    assert getattr(between(LOOP, both), "transformation", "") == "parallelise-and-prefetch"
    unknown = between(LOOP, LOOP.replace("x[i];", "x[i] + x[i] * 0;"))
    assert unknown is not None and unknown.transformation == UNNAMED


def test_lines_of_parent_name_no_transformation() -> None:
    parallel = LOOP.replace("  for", "#pragma omp parallel for\n  for")
    change = between(parallel, parallel.replace("for\n", "for schedule(static)\n"))
    assert change is not None and change.transformation == UNNAMED


def test_kernel_without_parent_is_a_written_kernel() -> None:
    change = changed(
        step(MeasuredKernel(0, None, None), MeasuredKernel(1, free(LOOP), measured("b", 1.5)))
    )
    assert change is not None and change.transformation == WRITTEN


def test_directions() -> None:
    assert [direction_of(1, 2), direction_of(2, 1), direction_of(None, 2)] == [
        "increase",
        "decrease",
        "set",
    ]
    assert [direction_of(False, True), direction_of("a", "b")] == ["add", "set"]


def test_change_names_are_parsed() -> None:
    changes = (("vector", "decrease"), ("fuse", "add"))
    name = transformation_of(changes)
    assert name == "decrease-vector-and-add-fuse" and changes_named(name) == changes
    assert changes_named("use-recipe-x") == changes_named("increase-nothing") == ()
