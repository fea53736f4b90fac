"""Hard problems: each can be evaluated on its small case, and arms are compared by problem."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.search.hard.__main__ import SEALED, Cell, by_arm, by_problem
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase

FOLDERS = sorted((Path(__file__).parents[2] / "benchmarks/search/hard/problems").iterdir())


def test_some_problems_are_sealed() -> None:
    assert len(FOLDERS) == 16 and len(SEALED) == 4
    assert {folder.name for folder in FOLDERS} > set(SEALED)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_problem_has_timed_gpu_case_and_finite_results(folder: Path) -> None:
    problem = load_problem(folder)
    timed = [case for case in problem.cases if case.timed]
    assert [case.name for case in timed] == ["gpu"]
    small = next(case for case in problem.cases if case.name == "small")
    case = OpenCase(problem, small)
    outputs = case.reference(case.inputs(0), case.state(0))
    assert all(output.isfinite().all() for output in outputs)


def test_arms_are_compared_with_first_by_problem() -> None:
    arms = {
        "nothing": {
            "a": Cell(2, 2, 900.0, 200.0, 40.0, 3000),
            "b": Cell(2, 0, 50.0, None, None, 8),
        },
        "ours": {"a": Cell(2, 1, 910.0, 100.0, 80.0, 9000)},
    }
    rows = by_arm(arms).splitlines()
    assert rows[2] == "| nothing | 2 | 2 of 4 | 1.000 n=1 (n=1) | 752 |"
    assert rows[3] == "| ours | 1 | 1 of 2 | 2.000 n=1 (n=1) | 4500 |"
    assert "| a | 900.0 | 2/2, 200.0, 40 % | 1/2, 100.0, 80 % |" in by_problem(arms)
    assert "| b | 50.0 | 0/2, - | - |" in by_problem(arms)
