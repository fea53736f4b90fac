"""A right and faster kernel that cannot be a recipe is drafted as text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kb.catalog import Catalog
from kb.catalog.skills.reading import SkillRow, get_skill
from skills.curator.draft import MOST_LINES, key_lines
from skills.curator.records import Distillation, KernelChange
from skills.trajectories.records import MeasuredKernel, Trajectory, TrajectoryStep
from tests.skills.curator.planted import distil, free, measured, trajectory

REFUSAL = "it is a module of its own"
LOOP = (
    "void kernlore_run(const float *x, float *y, long n) {\n"
    "  #pragma omp parallel for\n"
    "  for (long i = 0; i < n; i++) {\n"
    "    y[i] = x[i] * 2;\n"
    "  }\n"
    "}\n"
)
TWICE = LOOP.replace("y[i] = x[i] * 2;", "float a = x[i];\n    y[i] = a + a;")


def written(
    *kernels: tuple[str, float], origin: str = "llm", parents: tuple[int, ...] = ()
) -> Trajectory:
    """Kernels with their speed-up over the reference; each from the reference unless `parents`
    names the node that it changes."""
    root = MeasuredKernel(0, None, measured("ev-0", 1.0, toolchain="torch"))
    sides = [root]
    steps = []
    for number, (text, speedup) in enumerate(kernels, 1):
        proposal = free(text)
        bundle = replace(proposal.bundle, origin=origin)  # type: ignore[arg-type]
        side = MeasuredKernel(
            number, replace(proposal, bundle=bundle), measured(f"ev-{number}", speedup)
        )
        parent = parents[number - 1] if parents else 0
        steps.append(TrajectoryStep(sides[parent], side))
        sides.append(side)
    made: Trajectory = trajectory(*steps)
    return made


def refuses(*_: Any) -> str:
    return REFUSAL


def drafted(catalog: Catalog, made: Distillation) -> SkillRow:
    [added] = made.stored
    with catalog.read() as connection:
        return get_skill(connection, added.skill)


def test_a_kernel_that_cannot_be_lifted_is_a_text_skill(catalog: Catalog) -> None:
    made = distil(written((LOOP, 3.0)), catalog, lift=refuses)
    skill = drafted(catalog, made)
    assert (skill.state, skill.tier, skill.recipe) == ("candidate", "learned", None)
    assert skill.metadata["kind"] == "text"
    reasons = [d.reason for d in made.decisions if d.stage == "draft"]
    assert any(REFUSAL in reason and "drafted as a text skill" in reason for reason in reasons)
    for part in (
        "```cpp\n" + LOOP.strip(),  # whole, for it is short
        "Structures of the kernel that the reference has not: `parallelise`.",
        "Right in the cases under Expected effect and in float32 on x86-64",
        "main on x86-64",
        "3.00, from 2.91 to 3.09",
    ):
        assert part in skill.body, part
    assert distil(written((LOOP, 3.0)), catalog, lift=refuses).stored == ()


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (written((LOOP, 3.0), origin="recipe"), REFUSAL),
        (written((LOOP, 1.0)), "no certain difference"),
    ],
)
def test_what_no_model_wrote_and_what_is_not_faster_teach_no_text(
    catalog: Catalog, made: Trajectory, reason: str
) -> None:
    judged = distil(made, catalog, lift=refuses)
    assert judged.stored == () and any(reason in d.reason for d in judged.decisions)


def test_the_fastest_kernel_of_a_run_is_the_one(catalog: Catalog) -> None:
    other = LOOP.replace("* 2", "+ x[i]")
    made = distil(written((other, 2.0), (LOOP, 3.0)), catalog, lift=refuses)
    assert "node 2 against node 0" in drafted(catalog, made).body
    assert any("this run teaches node 2" in d.reason for d in made.decisions if d.node == 1)


def test_a_change_without_a_name_is_shown_before_and_after(catalog: Catalog) -> None:
    made = distil(written((LOOP, 1.0), (TWICE, 2.0), parents=(0, 1)), catalog)
    skill = drafted(catalog, made)
    assert "## Before\n\n```cpp\ny[i] = x[i] * 2;\n```" in skill.body
    assert "float a = x[i];" in skill.body and "its parent" in skill.body


def test_two_kernels_of_one_operator_are_two_texts(catalog: Catalog) -> None:
    first = distil(written((LOOP, 3.0)), catalog, lift=refuses)
    second = distil(replace(written((TWICE, 3.0)), id="run_2"), catalog, lift=refuses)
    names = {made.stored[0].skill for made in (first, second)}
    assert len(names) == 2 and second.stored[0].operation == "ADD"


def test_key_lines_are_bounded_and_say_where_lines_are_left_out() -> None:
    filler = "".join(f"int a{n} = {n};\n" for n in range(60))
    [step] = written((filler + LOOP + filler, 3.0)).steps
    lines = [f"+{line}" for line in step.proposal.bundle.source.splitlines()]
    change = KernelChange(step, "use", "write-kernel", (), (), (), None, tuple(lines))
    shown = key_lines(change)
    assert len([line for line in shown if line != "..."]) == MOST_LINES
    assert "  #pragma omp parallel for" in shown and "    y[i] = x[i] * 2;" in shown
    assert "..." in shown
