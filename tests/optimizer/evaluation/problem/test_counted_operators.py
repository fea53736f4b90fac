"""Operators unknown to torch's counter, and messages before a search."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from optimizer.evaluation.problem.check import check_problem, distrust
from optimizer.evaluation.problem.load import guess_op, load_problem
from optimizer.evaluation.problem.operators import reference_cost

ROWS, STEPS, IN, HIDDEN = 3, 7, 5, 11


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_are_counted(kind: str, gates: int) -> None:
    model = getattr(torch.nn, kind)(IN, HIDDEN, 2, bidirectional=True, batch_first=True)
    first, second = IN + HIDDEN, 2 * HIDDEN + HIDDEN
    expected = 2 * ROWS * STEPS * 2 * gates * HIDDEN * (first + second)
    with torch.no_grad():
        assert reference_cost(lambda: model(torch.ones(ROWS, STEPS, IN))).flops == expected
    assert guess_op(f"class Model:\n    def __init__(self):\n        self.r = nn.{kind}(1, 2)") == (
        "recurrent"
    )


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_products_are_counted_by_elements() -> None:
    matrix, dense = torch.zeros(8, 8), torch.ones(8, 5)
    matrix[0, :3] = 1
    csr, coo = matrix.to_sparse_csr(), matrix.to_sparse()
    assert reference_cost(lambda: csr @ dense).flops == 2 * 3 * 5
    assert reference_cost(lambda: torch.sparse.mm(coo, dense)).flops == 2 * 3 * 5
    assert reference_cost(lambda: coo @ dense[:, 0]).flops == 2 * 3
    assert reference_cost(lambda: matrix @ dense).flops == 2 * 8 * 8 * 5


MODES = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.d, self.bn, self.none = nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Dropout(0.0)
        {mode}

    def forward(self, x):
        return {result}


def get_inputs():
    return [torch.randn(400, 16)]
"""


def _file(folder: Path, mode: str = "pass", result: str = "self.bn(self.d(x))") -> Path:
    path = folder / "modes.py"
    path.write_text(MODES.format(mode=mode, result=result), encoding="utf-8")
    return path


def test_modules_that_differ_in_training_are_named(tmp_path: Path) -> None:
    warnings = [f.message for f in check_problem(load_problem(_file(tmp_path)))]
    named = [message for message in warnings if "d (Dropout), bn (BatchNorm1d)" in message]
    assert named and "none" not in named[0]
    in_eval_mode = check_problem(load_problem(_file(tmp_path, "self.eval()")))
    assert not any("eval mode" in fault.message for fault in in_eval_mode)


def test_search_reports_invalid_problem_first(tmp_path: Path) -> None:
    good = distrust(load_problem(_file(tmp_path, "self.eval()", "self.bn(x)")))
    assert good == []
    zeros = distrust(load_problem(_file(tmp_path, "self.eval()", "self.bn(x) * 0")))
    assert any(
        "cannot be trusted" in output and "the same everywhere" in output for output in zeros
    )
