"""The part of its inputs that a result depends on, and the minimum work that follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.evaluation.correctness.prepared import PreparedProblem
from optimizer.evaluation.needed_work import least_share, needed_read_bytes
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.settings import EvaluationSettings

pytestmark = pytest.mark.slow

SOURCE = """
import torch

n = 256


class Model(torch.nn.Module):
    def forward(self, x, y):
        return {result}


def get_inputs():
    return [torch.randn(n, 1024), torch.randn(1024)]


def get_init_inputs():
    return []
"""
TABLE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(100_000, 8)

    def forward(self, x):
        return self.table(x)


def get_inputs():
    return [torch.randint(0, 100_000, (16,))]


def get_init_inputs():
    return []
"""
BYTES = 4 * (256 * 1024 + 1024)


def opened(folder: Path, result: str) -> OpenCase:
    path = folder / "problem.py"
    path.write_text(SOURCE.replace("{result}", result), encoding="utf-8")
    problem = load_problem(path)
    return OpenCase(problem, problem.cases[0])


@pytest.mark.parametrize(
    "result",
    [
        "x + y",
        "x.amax(dim=1)",  # all but one of a row change nothing, but all must be read
        "torch.where(x > 0, 1.0, 0.0)",
        "torch.arange(9.0)[(x.sigmoid() * 9).long()]",  # only values in its range can be tried
        "torch.special.entr(x.sigmoid())",
        "x.sort(dim=1).values[:, :8]",
    ],
)
def test_inputs_that_matter_everywhere_must_be_read_whole(tmp_path: Path, result: str) -> None:
    needed = needed_read_bytes(opened(tmp_path, result), "cpu", seed=1)
    assert needed == 4 * 256 * 1024  # y is too small to be tried


@pytest.mark.parametrize(
    ("result", "share"), [("x[::4] + y", 0.25), ("x[:8] * 2", 0.03), ("x[:, :256] * 2", 0.25)]
)
def test_elements_outside_of_a_slice_need_not_be_read(
    tmp_path: Path, result: str, share: float
) -> None:
    needed = needed_read_bytes(opened(tmp_path, result), "cpu", seed=1)
    assert 0.5 * share * BYTES - 4096 < needed <= 1.2 * share * BYTES


def test_unused_weights_need_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "problem.py"
    path.write_text(TABLE, encoding="utf-8")
    problem = load_problem(path)
    needed = needed_read_bytes(OpenCase(problem, problem.cases[0]), "cpu", seed=1)
    assert needed < 4 * 100_000 * 8 / 4


def test_the_work_of_a_case_that_skips_most_inputs_is_smaller(tmp_path: Path) -> None:
    opened_case = opened(tmp_path, "x[:8] * 2")
    prepared = PreparedProblem(opened_case.problem, "cpu", EvaluationSettings())
    whole, needed = prepared.work(opened_case.case), prepared.needed_work(opened_case.case)
    assert whole.read_bytes == BYTES and whole.needed_read_bytes is None
    assert needed.needed_read_bytes == 4 * 8 * 1024 and needed.written_bytes == whole.written_bytes


def test_the_share_is_the_lower_end_of_an_interval() -> None:
    assert least_share(24, 24) == 1.0
    assert least_share(0, 24) == 0.0
    assert 0.3 < least_share(12, 24) < 0.5
