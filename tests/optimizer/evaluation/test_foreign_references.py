"""References of users: own seeds, changes in place, named outputs, value-dependent shapes; and the
exploits that they could permit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kb.errors import InvalidRequest
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.runner_process import RunnerPool
from optimizer.evaluation.problem.check import CaseFault, check_problem
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.toolchains.python import TorchPython
from optimizer.search.bench.local import reference_bundle
from optimizer.search.synthesizers.compiler.configurations import configured_bundle
from tests.optimizer.evaluation.test_evaluator import CPU, QUICK
from tests.problem_files import model_text

pytestmark = pytest.mark.slow(seconds=20)

FILE = """\
import random

import numpy as np
import torch

{before}
class {name}(torch.nn.Module):
    def forward(self, {arguments}):
        {forward}


def get_inputs():
    {inputs}
"""
X = "x = torch.randn(64, 65)"
SCALED = ("x, w", "return torch.softmax(x * w, -1)")
OWN_SEEDS = {
    "a generator": "g = torch.Generator().manual_seed(3)",
    "torch": "torch.manual_seed(3); g = None",
    "numpy": "g = torch.Generator().manual_seed(int(np.random.default_rng(3).integers(1 << 30)))",
    "python": "g = torch.Generator().manual_seed(random.Random(3).randrange(1 << 30))",
}
DRAWN = "return [torch.randn(64, 65, generator=g), torch.randn(65, generator=g)]"
MOMENTUM = "buf.mul_(0.9).add_(grad); p.add_(buf, alpha=-0.01)"
NAMED = "return {'hidden': x * 2, 'top': x.exp()}"

Make = Callable[..., Problem]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def problem(arguments: str, forward: str, inputs: str, before: str = "") -> Problem:
        path = tmp_path / "foreign.py"
        text = FILE.format(
            name="Model", before=before, arguments=arguments, forward=forward, inputs=inputs
        )
        path.write_text(text, encoding="utf-8")
        return load_problem(path)

    return problem


def faults(problem: Problem) -> list[CaseFault]:
    """Faults except sizes, which are deliberately small."""
    return [found for found in check_problem(problem) if "too little to time" not in found.message]


def evaluated(
    problem: Problem, pool: RunnerPool, arguments: str, forward: str, before: str = ""
) -> Evaluation:
    text = FILE.format(
        name="ModelNew", before=before, arguments=arguments, forward=forward, inputs="return []"
    )
    bundle = Bundle({"kernel.py": text}, "kernel.py", "torch", "ModelNew")
    with Evaluator(problem, CPU, QUICK, pool=pool) as evaluator:
        return evaluator.evaluate(bundle, TorchPython())


@pytest.mark.parametrize("seeds", OWN_SEEDS.values(), ids=OWN_SEEDS)
def test_file_seeds_give_other_inputs_each_time(make: Make, seeds: str) -> None:
    problem = make(*SCALED, f"{seeds}\n    {DRAWN}")
    case = OpenCase(problem, problem.searched[0])
    first, again, other = (case.inputs(seed) for seed in (5, 5, 6))
    for a, b, c in zip(first, again, other, strict=True):
        assert a.equal(b) and not a.equal(c)
    as_written: dict[str, object] = {}
    exec(problem.source, as_written)
    written = as_written["get_inputs"]()  # type: ignore[operator]
    assert all(a.equal(b) for a, b in zip(case.inputs(0), written, strict=True))
    assert faults(problem) == []


def test_kernel_that_draws_its_input_is_wrong(make: Make, pool: RunnerPool) -> None:
    seeds = OWN_SEEDS["a generator"]
    problem = make(*SCALED, f"{seeds}\n    {DRAWN}")
    cheat = f"{seeds}; torch.randn(64, 65, generator=g); w = torch.randn(65, generator=g)"
    assert evaluated(problem, pool, *SCALED).correct
    ignoring = evaluated(problem, pool, "x, w", f"{cheat}; return torch.softmax(x * w, -1)")
    assert ignoring.validity == "incorrect" and "is off by" in ignoring.message


def test_input_that_never_varies_is_named(make: Make, pool: RunnerPool) -> None:
    inputs = f"{X}; return [x, torch.arange(0, 64, 7)]"
    problem = make("x, rows", "return x[rows] + 1", inputs)
    [warning] = faults(problem)
    assert warning.severity == "warning" and "the input rows is the same in every draw" in (
        warning.message
    )
    evaluation = evaluated(problem, pool, "x, rows", "return x[::7] + 1")
    assert evaluation.correct and any("whether it reads rows" in n for n in evaluation.notes)


def test_unreturned_change_in_place_is_refused(make: Make, pool: RunnerPool) -> None:
    drawn = "return [torch.randn(999) for _ in range(3)]"
    lost = make("p, grad, buf", f"{MOMENTUM}; return p", drawn)
    candidate = "buf = buf * 0.9 + grad; return p - 0.01 * buf"
    with pytest.raises(InvalidRequest, match="changes its input buf in place"):
        check_problem(lost)
    with pytest.raises(InvalidRequest, match="changes its input buf in place") as refused:
        evaluated(lost, pool, "p, grad, buf", candidate)
    assert "Return buf as well" in refused.value.hint
    returned = make("p, grad, buf", f"{MOMENTUM}; return p, buf", drawn)
    assert faults(returned) == []
    assert evaluated(returned, pool, "p, grad, buf", candidate + ", buf").correct
    forgotten = evaluated(returned, pool, "p, grad, buf", candidate + ", buf * 1.5")
    assert forgotten.validity == "incorrect" and "output1" in forgotten.message
    changing = evaluated(returned, pool, "p, grad, buf", f"{MOMENTUM}; return p, buf")
    assert "it changed p, buf, which a candidate may only read" in changing.message


def test_dict_is_compared_by_its_keys(make: Make, pool: RunnerPool) -> None:
    problem = make("x", NAMED, f"{X}; return [x]")
    verdicts = {
        "return {'top': x.exp(), 'hidden': x * 2}": "",
        "return x * 2, x.exp()": "",
        "return {'top': x * 2, 'hidden': x.exp()}": "output0 is off by",
        "return {'top': x.exp(), 'low': x * 2}": "outputs named low, top instead of hidden, top",
    }
    for forward, message in verdicts.items():
        evaluation = evaluated(problem, pool, "x", forward)
        assert evaluation.correct == (not message), (forward, evaluation.message)
        assert message in evaluation.message


def test_value_dependent_shape_is_refused(make: Make, pool: RunnerPool) -> None:
    forward = "return torch.nonzero(x > 1.0)"
    # Of so many elements the number above 1 is hardly ever equal for two seeds.
    problem = make("x", forward, "x = torch.randn(640, 650); return [x]")
    [finding] = faults(problem)
    assert finding.severity == "invalid" and "shape of output0 depends on" in finding.message
    with pytest.raises(InvalidRequest, match="shape of output0 depends on"):
        evaluated(problem, pool, "x", forward)


BACKWARD = model_text(
    "((self.l(x) - t) ** 2).mean().backward()\nreturn self.l.weight.grad",
    "torch.randn(128, 64), torch.randn(128, 32)",
    takes="x, t",
    init="self.l = nn.Linear(64, 32)",
)
WRITTEN_OUT = """\
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(64, 32)

    def forward(self, x, t):
        wrong = self.l(x) - t
        return (2 * FACTOR / wrong.numel()) * (wrong.T @ x)
"""


def judged(problem: Problem, bundle: Bundle | str, pool: RunnerPool) -> Evaluation:
    if isinstance(bundle, str):
        bundle = Bundle({"c.py": bundle}, "c.py", "torch", "ModelNew")
    with Evaluator(problem, CPU, QUICK, pool=pool) as evaluator:
        return evaluator.evaluate(bundle, TorchPython())


def test_backward_pass_is_a_problem(tmp_path: Path, pool: RunnerPool) -> None:
    path = tmp_path / "backward.py"
    path.write_text(BACKWARD, encoding="utf-8")
    problem = load_problem(path)
    assert not [fault for fault in faults(problem) if fault.severity == "invalid"]
    opened = OpenCase(problem, problem.cases[0])
    assert opened.gradients
    right = judged(problem, WRITTEN_OUT.replace("FACTOR", "1"), pool)
    assert right.validity == "correct", right
    by_autograd = BACKWARD.replace("Model(", "ModelNew(")
    same = judged(problem, by_autograd, pool)
    assert same.validity == "correct", same
    wrong = judged(problem, WRITTEN_OUT.replace("FACTOR", "1.1"), pool)
    assert wrong.validity == "incorrect"


CONFIGURED = """\
import argparse
from dataclasses import dataclass

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=64)
args = parser.parse_args()


@dataclass
class Config:
    width: int
    dtype: torch.dtype


class Model(nn.Module):
    def __init__(self, config, sizes, inner):
        super().__init__()
        self.w = nn.Parameter(torch.randn(config.width, dtype=config.dtype))
        self.inner = inner
        assert isinstance(sizes, tuple)

    def forward(self, x):
        return torch.relu(self.inner(x * self.w))


def get_inputs():
    return [torch.randn(args.rows, 65)]


def get_init_inputs():
    return [Config(65, torch.float32), (65, 3), nn.Linear(65, 33)]
"""


def test_arguments_of_any_type_reach_candidate(
    tmp_path: Path, pool: RunnerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["kernlore", "optimize", "configured.py"])
    path = tmp_path / "configured.py"
    path.write_text(CONFIGURED, encoding="utf-8")
    problem = load_problem(path)
    assert not [fault for fault in faults(problem) if fault.severity == "invalid"]
    candidate = """\
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, config, sizes, inner):
        super().__init__()
        assert sizes == (config.width, 3)
        self.w = nn.Parameter(torch.zeros(config.width, dtype=config.dtype))
        self.inner = inner

    def forward(self, x):
        return RESULT
"""
    right = candidate.replace("RESULT", "self.inner(x * self.w).clamp(min=0)")
    assert judged(problem, right, pool).validity == "correct"
    wrong = candidate.replace("RESULT", "self.inner(x).clamp(min=0)")
    assert judged(problem, wrong, pool).validity == "incorrect"


def test_file_that_exits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ends.py"
    text = CONFIGURED.replace('"--rows", type=int, default=64', '"rows", type=int')
    path.write_text(text, encoding="utf-8")
    problem = load_problem(path)
    with pytest.raises(InvalidRequest, match="ends the process"):
        OpenCase(problem, problem.cases[0])


def test_reference_that_changes_input_is_measured(make: Make, pool: RunnerPool) -> None:
    inputs = "return [torch.randn(64, 65), torch.randn(64, 65)]"
    problem = make("buf, grad", "buf.mul_(0.9).add_(grad); return buf", inputs)
    opened = OpenCase(problem, problem.cases[0])
    assert opened.overwritten == ("buf",)
    evaluation = judged(problem, reference_bundle(opened), pool)
    assert evaluation.validity == "correct", evaluation
    compiled = configured_bundle(opened.source, "default", {}, [0])
    assert judged(problem, compiled, pool).validity == "correct"
    assert judged(problem, configured_bundle(opened.source, "default", {}), pool).validity in (
        "incorrect",
        "rejected",
    )
