"""A candidate that uses torch's extension builder: Python that builds C++ on import."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.runner_process import RunnerPool
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.toolchains.base import CACHE, EvaluationTarget
from optimizer.evaluation.toolchains.python import TorchPython
from tests.problem_files import model_text

pytestmark = pytest.mark.slow(seconds=15)

PROBLEM = model_text("torch.softmax(x, -1)", "torch.randn(32, 65)")
CANDIDATE = '''
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
at::Tensor rows(at::Tensor x) {
  at::Tensor y = x.sub(x.amax(-1, true)).exp();
  return y.div(y.sum(-1, true));
}
"""
# Few headers and no optimisation: the builder is the subject.
kernel = load_inline(
    "rows_extension",
    SOURCE,
    functions=["rows"],
    extra_cflags=["-O0"],
    no_implicit_headers=True,
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return kernel.rows(x)
'''


def test_extension_is_built_in_isolation_and_correct(tmp_path: Path, pool: RunnerPool) -> None:
    path = tmp_path / "rows.py"
    path.write_text(PROBLEM, encoding="utf-8")
    path.with_suffix(".toml").write_text(
        'op = "softmax"\n[[cases]]\nname = "main"\ntimed = false\n', encoding="utf-8"
    )
    bundle = Bundle({"m.py": CANDIDATE}, "m.py", "torch", "ModelNew")
    target = EvaluationTarget("x86-64", ("x86-64",), None, "cpu")
    settings = EvaluationSettings(threads=1, load_seconds=240.0)
    with Evaluator(load_problem(path), target, settings, pool=pool) as evaluator:
        evaluation = evaluator.evaluate(bundle, TorchPython())
    assert evaluation.correct, f"{evaluation.message}\n{evaluation.log}"


def test_extension_for_gpu_is_built_before_its_runner_loads_it(tmp_path: Path) -> None:
    bundle = Bundle({"m.py": CANDIDATE}, "m.py", "torch", "ModelNew")
    target = EvaluationTarget("h100", ("h100", "hopper", "nvidia"), "90", "cuda")
    assert TorchPython().compile(bundle, target, tmp_path, ()).ok
    assert list(tmp_path.glob(f"{CACHE}/extensions/rows_extension/rows_extension*.so"))
