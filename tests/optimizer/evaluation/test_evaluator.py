"""Candidates with every verdict, through real compilers and real processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kb.errors import InvalidRequest
from optimizer.evaluation.bundle import Bundle, read_bundle
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.runner_process import RunnerPool
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import BRIEFLY, TIMING, Evaluation
from optimizer.evaluation.settings import EvaluationSettings, TimingPolicy
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.cpp import CppToolchain
from optimizer.evaluation.toolchains.python import TorchPython

pytestmark = pytest.mark.slow(seconds=15)

PROBLEM = """
import torch
import torch.nn as nn

rows, cols = 96, 257

class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.bias = nn.Parameter(torch.randn(cols))

    def forward(self, x):
        return torch.relu(x * self.scale + self.bias)

def get_inputs():
    return [torch.randn(rows, cols)]

def get_init_inputs():
    return [1.5]
"""
KERNEL = """
#include "kernlore_abi.h"
KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *c) {
  const float *x = (const float *)t[0].data, *b = (const float *)t[1].data;
  float *y = (float *)t[2].data;
  int64_t rows = t[0].shape[0], cols = t[0].shape[1];
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      float v = x[i * cols + j] * 1.5f + b[j];
      y[i * cols + j] = v > 0 ? v : 0;
    }
  return 0;
}
"""
MODEL_NEW = PROBLEM.replace("class Model(", "class ModelNew(")
# These tests are about verdicts; a busy machine has no quiet time for measurements.
QUICK = EvaluationSettings(
    call_seconds=2.5,
    threads=1,
    timing=TimingPolicy(block_ms=1.0, min_pairs=4, max_pairs=4, quiet=1e6, seconds=5.0),
)
CPU = EvaluationTarget("x86-64", ("x86-64",), "native", "cpu")


@pytest.fixture(scope="module", params=[False, True], ids=["fresh", "kept"])
def evaluator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pool: RunnerPool
) -> Iterator[Evaluator]:
    """With fresh processes for everything, as on the CPU, and with reused ones, as on a GPU."""
    path = tmp_path_factory.mktemp("problem") / "scaled_relu.py"
    path.write_text(PROBLEM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "optimizer.evaluation.evaluator.reuses_processes", lambda device: request.param
        )
        with Evaluator(load_problem(path), CPU, QUICK, pool=pool) as evaluator:
            yield evaluator


def cpp(source: str) -> Bundle:
    return Bundle({"kernel.cpp": source}, "kernel.cpp", "cpp", "kernlore_run")


def model(source: str) -> Bundle:
    return Bundle({"model.py": source}, "model.py", "torch", "ModelNew")


def verdict(evaluator: Evaluator, bundle: Bundle) -> Evaluation:
    toolchain = CppToolchain() if bundle.language == "cpp" else TorchPython()
    return evaluator.evaluate(bundle, toolchain)


def test_correct_kernel_is_correct_and_timed(evaluator: Evaluator) -> None:
    found = verdict(evaluator, cpp(KERNEL))
    assert (found.validity, found.timing) == ("correct", "measured"), (found.flags, found)
    assert found.speedup is not None and found.speedup.low <= found.speedup.value
    assert found.isolation is not None and found.isolation.level.startswith(("name", "process"))


def test_failed_kernel_of_another_signature_is_shown_the_interface(evaluator: Evaluator) -> None:
    other = (
        'extern "C" int kernlore_run(const float *x, float *y, long n) { y[n] = x[n]; return 0; }'
    )
    found = verdict(evaluator, cpp(other))
    assert found.validity == "crashed" and "kernlore_abi.h" in found.notes[-1]
    own = verdict(evaluator, cpp(KERNEL.replace("return 0;", "return x;", 1)))
    assert not any("kernlore_abi.h" in note for note in own.notes)


def test_reference_is_correct(evaluator: Evaluator) -> None:
    assert verdict(evaluator, model(MODEL_NEW)).validity == "correct"


@pytest.mark.parametrize(
    ("old", "new", "validity", "reported"),
    [
        ("1.5f", "1.4f", "incorrect", "off by"),
        ("return 0;", "*(volatile int *)0 = 1; return 0;", "crashed", "SIGSEGV"),
        ("return 0;", "return 7;", "crashed", "returned 7"),
        ("return 0;", "return KERNLORE_UNSUPPORTED;", "unsupported", "in case"),
        ("return 0;", "for (volatile int i = 0;; i++); return 0;", "timed_out", "no answer"),
        ("return 0;", "return x;", "not_compiled", "error:"),
        ("return 0;", "((float *)x)[5] = 1; return 0;", "incorrect", "it changed x"),
        ("rows = t[0].shape[0]", "rows = t[0].shape[0] - 1", "incorrect", "off by"),
    ],
)
def test_verdict_of_a_bad_kernel(
    evaluator: Evaluator, old: str, new: str, validity: str, reported: str
) -> None:
    found = verdict(evaluator, cpp(KERNEL.replace(old, new, 1)))
    assert found.validity == validity, found
    assert reported in found.message
    assert found.speedup is None and found.timing == "none"


@pytest.mark.parametrize(
    ("old", "new", "validity", "reported"),
    [
        ("torch.relu(", "torch.nonsense(", "crashed", "nonsense"),
        ("self.bias)", "self.bias).double()", "incorrect", "float64"),
        ("self.bias)", "self.bias)[:-1]", "incorrect", "shape"),
        (
            "return torch",
            "raise NotImplementedError\n        return torch",
            "unsupported",
            "in case",
        ),
        ("return torch", "raise SystemExit(0)\n        return torch", "crashed", "SystemExit"),
        ("class ModelNew", "import os; os._exit(0)\nclass ModelNew", "crashed", "exit code 0"),
        ("class ModelNew(", "class Another(", "crashed", "has no ModelNew"),
        ("def get_inputs", "def get inputs", "not_compiled", "expected '('"),
    ],
)
def test_verdict_of_a_bad_module(
    evaluator: Evaluator, old: str, new: str, validity: str, reported: str
) -> None:
    found = verdict(evaluator, model(MODEL_NEW.replace(old, new, 1)))
    assert found.validity == validity, found
    assert reported in found.message, found.message


def test_cached_results_are_incorrect(evaluator: Evaluator) -> None:
    cached = MODEL_NEW.replace(
        "        return torch.relu(x * self.scale + self.bias)",
        "        if not hasattr(self, 'kept'):\n"
        "            self.kept = {}\n"
        "        key = x.data_ptr()\n"
        "        if key not in self.kept:\n"
        "            self.kept[key] = torch.relu(x * self.scale + self.bias)\n"
        "        return self.kept[key]",
    )
    found = verdict(evaluator, model(cached))
    assert found.validity == "incorrect", found
    assert "is off by" in found.message


def test_process_left_running_is_refused(evaluator: Evaluator) -> None:
    leaving = MODEL_NEW.replace(
        "class ModelNew",
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    time.sleep(600)\n"
        "    os._exit(0)\n"
        "class ModelNew",
        1,
    )
    evaluation = verdict(evaluator, model(leaving))
    assert evaluation.validity == "rejected", evaluation
    assert "still alive" in evaluation.message


def test_busy_machine_gives_no_figure(tmp_path: Path, pool: RunnerPool) -> None:
    """No block is quiet enough if no waiting is allowed, and the wait is negative."""
    path = tmp_path / "scaled_relu.py"
    path.write_text(PROBLEM)
    never = replace(QUICK, timing=replace(QUICK.timing, quiet=-1e9))
    with Evaluator(load_problem(path), CPU, never, pool=pool) as evaluator:
        found = verdict(evaluator, cpp(KERNEL))
    assert (found.validity, found.timing, found.speedup) == ("correct", "repeat", None)
    assert "timing must be repeated" in found.timings[0].reason


def test_brief_timing_is_recorded(
    tmp_path: Path, pool: RunnerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scaled_relu.py"
    path.write_text(PROBLEM)
    monkeypatch.setenv(TIMING, "brief")
    brief = EvaluationSettings(threads=1)
    with Evaluator(load_problem(path), CPU, brief, pool=pool) as evaluator:
        found = verdict(evaluator, cpp(KERNEL))
    assert found.validity == "correct" and found.timing in ("measured", "repeat")
    assert BRIEFLY in found.notes
    monkeypatch.delenv(TIMING)
    assert EvaluationSettings(threads=1).timing == TimingPolicy()
    assert EvaluationSettings(threads=1).fingerprint != brief.fingerprint
    monkeypatch.setenv(TIMING, "short")
    with pytest.raises(InvalidRequest, match="KERNLORE_TIMING is 'short'"):
        EvaluationSettings()


def test_bundle_is_read_from_file(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cpp"
    path.write_text(KERNEL)
    bundle = read_bundle(path)
    assert (bundle.language, bundle.entry, bundle.main) == ("cpp", "kernlore_run", "kernel.cpp")
    assert bundle.sha256 == cpp(KERNEL).sha256


def test_key_depends_on_timed_processor(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle({"model.py": MODEL_NEW}, "model.py", "torch", "ModelNew")
    requested = (bundle, TorchPython(), evaluator.problem.cases)
    here = evaluator.key(*requested)
    assert evaluator.key(*requested) == here
    monkeypatch.setattr("optimizer.evaluation.evaluator.processor", lambda: "Vendor 1 1")
    assert evaluator.key(*requested) != here
    monkeypatch.setattr(evaluator, "device", "cuda")
    elsewhere = evaluator.key(*requested)
    monkeypatch.setattr("optimizer.evaluation.evaluator.processor", lambda: "Vendor 2 2")
    assert evaluator.key(*requested) == elsewhere  # the host of a GPU is not timed
