"""Compiled and rewritten candidates through a real evaluation: compilation at the first call has
time, and happens once per evaluation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.runner_process import RunnerPool
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings, TimingPolicy
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.python import TorchPython
from optimizer.search.bench.local import problem_view
from optimizer.search.records import Proposal

from .proposals import SOURCE, all_proposals

pytestmark = pytest.mark.slow(seconds=35)

# These tests are about verdicts; a busy machine has no quiet time for measurements.
QUICK = EvaluationSettings(
    seeds=1,
    call_seconds=1.0,
    load_seconds=240.0,
    threads=1,
    timing=TimingPolicy(block_ms=1.0, min_pairs=4, max_pairs=4, quiet=1e6, seconds=5.0),
)
CPU = EvaluationTarget("x86-64", ("x86-64",), "native", "cpu")


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory, pool: RunnerPool) -> Iterator[Evaluator]:
    path = tmp_path_factory.mktemp("problem") / "scaled_softmax.py"
    path.write_text(SOURCE)
    with Evaluator(load_problem(path), CPU, QUICK, pool=pool) as evaluator:
        yield evaluator


@pytest.fixture(scope="module")
def proposals(evaluator: Evaluator) -> list[Proposal]:
    return all_proposals(replace(problem_view(evaluator.problem, "cpu"), op="softmax"))


def evaluated(evaluator: Evaluator, source: str) -> Evaluation:
    bundle = Bundle({"m.py": source}, "m.py", "torch", "ModelNew")
    return evaluator.evaluate(bundle, TorchPython())


@pytest.mark.parametrize("number", [0, 1, 2])
def test_configurations_and_rewrites_are_correct(
    evaluator: Evaluator, proposals: list[Proposal], number: int
) -> None:
    evaluation = evaluator.evaluate(proposals[number].bundle, TorchPython())
    assert evaluation.validity == "correct", evaluation.log or evaluation.message
    assert evaluation.reached == "benchmark" and evaluation.timings


FOLDS = """
import torch
import torch.nn as nn

length = 64

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        n = x.size(-1)
        decay = torch.exp(-torch.arange(n, dtype=x.dtype, device=x.device) / n)
        return self.norm(self.conv(x)) * 0.5 * decay

def get_inputs():
    return [torch.randn(16, 4, length)]

def get_init_inputs():
    return []
"""
FOLDED = "norm_in_weights, scale_in_weights, kept_constant"
SIZES = """
[[cases]]
name = "main"

[[cases]]
name = "longer"
constants = {{ length = 96 }}
timed = false

[policy]
weights = "{weights}"
"""


@pytest.mark.parametrize(
    ("weights", "mode"), [("varying", "eager"), ("frozen", "eager"), ("varying", "default")]
)
def test_folded_candidates_are_correct_with_changing_weights(
    tmp_path: Path, pool: RunnerPool, weights: str, mode: str
) -> None:
    """Other sizes in one process; other weights for each seed, and for each call where they
    vary.
    """
    path = tmp_path / "folds.py"
    path.write_text(FOLDS)
    (tmp_path / "problem.toml").write_text(SIZES.format(weights=weights))
    with Evaluator(load_problem(path), CPU, replace(QUICK, seeds=2), pool=pool) as evaluator:
        proposals = all_proposals(replace(problem_view(evaluator.problem, "cpu"), op="conv"))
        wanted = {"mode": mode, "rewrites": FOLDED}
        proposal = next(p for p in proposals if p.values == wanted)
        evaluation = evaluator.evaluate(proposal.bundle, TorchPython())
    assert evaluation.validity == "correct", evaluation.log or evaluation.message
    assert (
        evaluation.flags == () and evaluation.reached == "benchmark" and len(evaluation.checks) == 4
    )


LEAVES_SOMETHING = (
    SOURCE.replace("class Model(", "class ModelNew(")
    + """
import os
import pathlib

store = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
if (store / "left").exists() and "LEFT_BY_THIS_PROCESS" not in os.environ:
    raise RuntimeError("compiled already")
store.mkdir(parents=True, exist_ok=True)
(store / "left").touch()
os.environ["LEFT_BY_THIS_PROCESS"] = "1"  # a process loads a candidate once for every case
"""
)


def test_only_processes_of_one_evaluation_share_compiled_code(evaluator: Evaluator) -> None:
    for text in (LEAVES_SOMETHING, LEAVES_SOMETHING):
        evaluation = evaluated(evaluator, text)
        assert "compiled already" in evaluation.message, evaluation.log or evaluation.message
        assert (evaluation.validity, evaluation.reached) == ("crashed", "benchmark")


HAS_THE_COMPILER = (
    SOURCE.replace("class Model(", "class ModelNew(")
    + """
import os
import sys

from_before = "torch._inductor.compile_fx" in sys.modules
import torch._inductor.cpu_vec_isa as instructions

known = instructions.valid_vec_isa_list.cache_info().currsize
from torch._inductor import codecache

look_up, paths = codecache._precompile_header, []

def noted(*key, **rest):
    paths.append(look_up(*key, **rest))
    return paths[-1]

codecache._precompile_header = noted
torch.compile(lambda x: x.sin() + 1)(torch.ones(8))
headers = [os.path.isfile(f"{path}.gch") for path in paths]
raise RuntimeError(f"imported before: {from_before}, instructions: {known}, headers: {headers}")
"""
)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks are Linux's")
def test_compiler_is_prepared_once_for_all_candidates(evaluator: Evaluator) -> None:
    evaluation = evaluated(evaluator, HAS_THE_COMPILER)
    assert "imported before: True, instructions: 1, headers: [True]" in evaluation.message


SLOW = (
    SOURCE.replace("class Model(", "class ModelNew(")
    + """
import time

class ModelNew(ModelNew):
    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == {slow}:
            time.sleep(1.5)
        return super().forward(x)
"""
)


@pytest.mark.parametrize(("slow", "validity"), [(1, "correct"), (2, "timed_out")])
def test_only_first_call_has_time_to_compile(
    evaluator: Evaluator, slow: int, validity: str
) -> None:
    evaluation = evaluated(evaluator, SLOW.format(slow=slow))
    assert evaluation.validity == validity, evaluation.log or evaluation.message
