"""The foreign problem set: problems have the required form, and its table reports the results of
searches.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.search.foreign.grammar import FAMILIES, GPU_BATCHES, problem_text, write_modules
from benchmarks.search.foreign.report import Result, report
from benchmarks.search.hard.__main__ import SEALED, Cell, by_arm, by_problem
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase


def result(name: str, gain: float | None, *, best: float, first: float | None) -> Result:
    return Result(name, gain, "", 1.1, best, False, "traced", "", 3, first, 60.0, "")


def test_drawn_problem_is_deterministic() -> None:
    for family in FAMILIES:
        text = problem_text(family, 3, "cpu")
        assert text == problem_text(family, 3, "cpu")
        assert text != problem_text(family, 3, "gpu")
        ast.parse(text)


def test_model_blocks_are_written_for_both_sizes(tmp_path: Path) -> None:
    sizes = {"cpu": tmp_path / "cpu", "gpu": tmp_path / "gpu"}
    for size, folder in sizes.items():
        folder.mkdir()
        assert len(write_modules(size, folder)) == 20
    for path in sizes["cpu"].iterdir():
        small, large = (batch(folder / path.name) for folder in sizes.values())
        assert large == GPU_BATCHES * small


def batch(path: Path) -> int:
    """The value of BATCH; the file has all that the harness needs of a problem."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert {"Model", "get_inputs", "get_init_inputs"} <= names
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "BATCH"
    )
    assert isinstance(value, ast.Constant)
    assert isinstance(value.value, int)
    return value.value


def test_report_names_shortcomings() -> None:
    results = [
        result("norm_1", 1.5, best=1.2, first=8.0),
        result("norm_2", 1.0, best=1.4, first=30.0),
        result("loss_1", None, best=1.0, first=None),
        result("resnet_basic", 1.2, best=1.2, first=12.0),
    ]
    text = "\n".join(report(results, ["norm_1", "scan_1"]))
    assert "Problems: 4; without a figure: 1 (loss_1); not begun: 1 (scan_1)." in text
    assert "best option: 1 (norm_2)" in text
    assert "after 12 s at the median and 30 s" in text
    assert "| published block | 1 |" in text
    assert "| unopened | 1 |" in text


@pytest.mark.parametrize(
    "name, drawn, opened", [("scan_3", True, False), ("timm_cbam", False, True)]
)
def test_model_blocks_count_as_opened(name: str, drawn: bool, opened: bool) -> None:
    one = result(name, 1.0, best=1.0, first=None)
    assert (one.drawn, one.opened) == (drawn, opened)


# -- hard problems: each can be evaluated on its small case, and arms are compared by problem

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
