"""Held-out cases of problems that declare none."""

from __future__ import annotations

from pathlib import Path

from optimizer.evaluation.problem.derived import DerivedCases, fitting
from optimizer.evaluation.problem.load import load_problem
from tests.problem_files import model_text

MODEL = model_text("{result}", "torch.rand({shape})", head="{sizes}")


def _derived(folder: Path, result: str, sizes: str, shape: str) -> DerivedCases:
    file = folder / "problem.py"
    file.write_text(MODEL.format(result=result, sizes=sizes, shape=shape), encoding="utf-8")
    problem = load_problem(file)
    return fitting(problem, problem.searched[0])


def test_sizes_plus_and_minus_one_and_another_batch(tmp_path: Path) -> None:
    derived = _derived(tmp_path, "x.relu()", "batch, width = 8, 64", "batch, width")
    assert [dict(case.constants) for case in derived.cases] == [
        {"width": 63}, {"width": 65}, {"batch": 4},
    ]  # fmt: skip
    assert all(case.held_out and not case.timed for case in derived.cases)
    assert "width=63, width=65, batch=4" in derived.note and "not possible" not in derived.note


def test_sizes_refused_by_reference_are_named(tmp_path: Path) -> None:
    sizes = "batch, width = 7, 64\nshape = (batch, width)"
    derived = _derived(tmp_path, "x.view(-1, 32)", sizes, "shape")
    assert [case.name for case in derived.cases] == ["batch=3"]
    assert "not possible: width=63 (" in derived.note


def test_problem_without_sizes_has_no_derived_cases(tmp_path: Path) -> None:
    derived = _derived(tmp_path, "x.relu()", "factor = 3", "8, 64")
    assert derived == DerivedCases((), derived.note)
    assert "none: no size of its inputs is a constant" in derived.note
