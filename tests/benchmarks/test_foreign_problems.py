"""The foreign problem set: problems have the required form, and its table reports the results of
searches.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.search.foreign.grammar import FAMILIES, GPU_BATCHES, problem_text, write_modules
from benchmarks.search.foreign.report import Result, report


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
