"""Tasks and submissions in other conventions, evaluated on this CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kb.errors import InvalidRequest, Unavailable
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.formats import format_of, is_folder
from optimizer.evaluation.formats.task import ForeignTask
from optimizer.evaluation.isolation.runner_process import RunnerPool
from optimizer.evaluation.problem.derived import fitting
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.toolchains.python import TorchPython
from tests.optimizer.evaluation.test_evaluator import CPU, QUICK

pytestmark = pytest.mark.slow(seconds=20)


def judged(read: ForeignTask, pool: RunnerPool) -> Evaluation:
    with Evaluator(read.problem, CPU, QUICK, pool=pool) as evaluator:
        return evaluator.evaluate(read.bundle, TorchPython())


# -- GPU MODE

TASK_YML = """\
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "task.py", "source": "task.py"}
  - {"name": "shared.py", "source": "../shared.py"}
  - {"name": "reference.py", "source": "reference.py"}
lang: "py"
description: |
  Scale rows and add a table.
tests:
  - {"rows": 7, "cols": 33, "seed": 11}
benchmarks:
  - {"rows": 256, "cols": 512, "seed": 12}
ranked_by: "geom"
"""
SHARED = """\
def factor():
    return 3.0
"""
TASK_PY = """\
from typing import TypeVar
input_t = TypeVar("input_t")
output_t = TypeVar("output_t")
"""
REFERENCE = """\
import torch
from shared import factor
from task import input_t, output_t


def generate_input(rows: int, cols: int, seed: int) -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    x = torch.randn(rows, cols, device="cuda", generator=gen)
    weights = {"scale": torch.randn(cols, device="cuda", generator=gen)}
    out = torch.empty(rows, cols, device="cuda")
    return x, weights, {"kind": "scaled"}, out


def ref_kernel(data: input_t) -> output_t:
    x, weights, config, out = data
    assert config["kind"] == "scaled"
    out[...] = x * weights["scale"] * factor() + torch.ones(1, device="cuda")
    return out


def check_implementation(data, output):
    return True, ""
"""
SUBMISSION = """\
import torch
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    x, weights, config, out = data
    torch.mul(x, weights["scale"], out=out)
    return out.mul_({factor}).add_(1.0)
"""


@pytest.fixture
def gpu_mode(tmp_path: Path) -> Path:
    task = tmp_path / "scaled_rows"
    task.mkdir()
    (tmp_path / "shared.py").write_text(SHARED)
    for name, text in {"task.yml": TASK_YML, "task.py": TASK_PY, "reference.py": REFERENCE}.items():
        (task / name).write_text(text)
    return task


def gpu_mode_task(task: Path, factor: str) -> ForeignTask:
    submission = task.parent / "submission.py"
    submission.write_text(SUBMISSION.replace("{factor}", factor))
    form = format_of(task)
    assert form.name == "gpu-mode"
    return form.read(task, submission)


def test_gpu_mode_task_is_judged(gpu_mode: Path, pool: RunnerPool) -> None:
    read = gpu_mode_task(gpu_mode, "3.0")
    assert [(c.name, c.timed) for c in read.problem.cases] == [
        ("rows=7,cols=33", False),
        ("rows=256,cols=512", True),
    ]
    assert read.problem.summary == "Scale rows and add a table."
    found = judged(read, pool)
    assert found.correct, found.message
    lines = read.write_back(found).splitlines()
    assert lines[:3] == [
        "check: pass",
        "benchmark-count: 1",
        "benchmark.0.spec: rows: 256; cols: 512",
    ]
    hidden = fitting(read.problem, read.problem.cases[1])
    assert [case.name for case in hidden.cases] == ["cols=511", "cols=513", "rows=128"]


def test_wrong_gpu_mode_submission_is_incorrect(gpu_mode: Path, pool: RunnerPool) -> None:
    read = gpu_mode_task(gpu_mode, "2.0")
    found = judged(read, pool)
    assert found.validity == "incorrect" and "is off by" in found.message
    assert read.write_back(found).startswith("check: fail\nerror: ")


def test_gpu_mode_array_that_reference_does_not_use_may_be_written(
    gpu_mode: Path, pool: RunnerPool
) -> None:
    text = REFERENCE.replace("out[...] =", "out =")
    (gpu_mode / "reference.py").write_text(text)
    assert judged(gpu_mode_task(gpu_mode, "3.0"), pool).correct


def test_gpu_mode_output_that_is_read_first_is_copied(gpu_mode: Path, pool: RunnerPool) -> None:
    text = REFERENCE.replace("out[...] =", "out +=").replace("torch.empty", "torch.randn")
    (gpu_mode / "reference.py").write_text(text)
    adding = "from task import input_t\n\ndef custom_kernel(data):\n    x, w, _, out = data\n"
    right = gpu_mode.parent / "right.py"
    right.write_text(adding + "    return out.add_(x * w['scale'] * 3).add_(1.0)\n")
    assert judged(format_of(gpu_mode).read(gpu_mode, right), pool).correct
    wrong = gpu_mode.parent / "wrong.py"
    wrong.write_text(adding + "    return x * w['scale'] * 3 + 1.0\n")
    assert judged(format_of(gpu_mode).read(gpu_mode, wrong), pool).validity == "incorrect"


def test_incomplete_gpu_mode_files_are_refused(gpu_mode: Path) -> None:
    other = gpu_mode.parent / "other.py"
    other.write_text("def kernel(data):\n    return data\n")
    with pytest.raises(InvalidRequest, match=r"other\.py does not define custom_kernel"):
        format_of(gpu_mode).read(gpu_mode, other)
    (gpu_mode / "reference.py").write_text("def ref_kernel(data):\n    return data\n")
    with pytest.raises(InvalidRequest, match="does not define generate_input"):
        format_of(gpu_mode).read(gpu_mode, other)
    (gpu_mode / "task.yml").write_text("lang: cu\n")
    with pytest.raises(InvalidRequest, match="for the language 'cu'"):
        format_of(gpu_mode).read(gpu_mode, other)


# -- FlashInfer-Bench

DEFINITION = {
    "name": "scaled_add_n64",
    "op_type": "elementwise",
    "description": "A row is added to each row, scaled.",
    "axes": {"rows": {"type": "var"}, "n": {"type": "const", "value": 64}},
    "constraints": ["rows > 1"],
    "inputs": {
        "x": {"shape": ["rows", "n"], "dtype": "float32"},
        "row": {"shape": ["n"], "dtype": "float32"},
        "alpha": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "n"], "dtype": "float32"}},
    "reference": "import torch\n\ndef run(x, row, alpha):\n    return x + alpha * row\n",
}
DESTINATION = (
    "import torch\n\ndef run(x, row, alpha, y):\n    torch.add(x, row, alpha=alpha, out=y)\n"
)
RETURNING = "def solve(x, row, alpha):\n    return x + row\n"


def workload(uuid: str, rows: int) -> dict[str, Any]:
    inputs = {
        "x": {"type": "random"},
        "row": {"type": "random"},
        "alpha": {"type": "scalar", "value": 0.5},
    }
    described = {"uuid": uuid, "axes": {"rows": rows}, "inputs": inputs}
    return {"definition": DEFINITION["name"], "workload": described}


def solution(content: str, entry: str = "main.py::run", **spec: Any) -> dict[str, Any]:
    return {
        "name": "mine",
        "definition": DEFINITION["name"],
        "author": "a person",
        "spec": {"language": "python", "entry_point": entry, "target_hardware": ["cpu"], **spec},
        "sources": [{"path": "main.py", "content": content}],
    }


@pytest.fixture
def definition(tmp_path: Path) -> Path:
    place = tmp_path / "set" / "definitions" / "elementwise" / "scaled_add_n64.json"
    lines = tmp_path / "set" / "workloads" / "elementwise" / "scaled_add_n64.jsonl"
    for path in (place, lines):
        path.parent.mkdir(parents=True)
    place.write_text(json.dumps(DEFINITION))
    rows = [workload("small", 32), workload("large", 2048)]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def flashinfer_task(definition: Path, given: dict[str, Any]) -> ForeignTask:
    path = definition.parent / "solution.json"
    path.write_text(json.dumps(given))
    form = format_of(definition)
    assert form.name == "flashinfer-bench"
    return form.read(definition, path)


def test_flashinfer_solution_is_judged(definition: Path, pool: RunnerPool) -> None:
    read = flashinfer_task(definition, solution(DESTINATION))
    found = judged(read, pool)
    assert found.correct, found.message
    traces = [json.loads(line) for line in read.write_back(found).splitlines()]
    assert [trace["workload"]["uuid"] for trace in traces] == ["small", "large"]
    assert {trace["evaluation"]["status"] for trace in traces} == {"PASSED"}
    assert traces[0]["workload"] == workload("small", 32)["workload"]
    hidden = fitting(read.problem, read.problem.cases[0])
    assert [case.name for case in hidden.cases] == ["rows=31", "rows=33", "rows=16"]


def test_wrong_flashinfer_solution_is_incorrect(definition: Path, pool: RunnerPool) -> None:
    given = solution(RETURNING, "main.py::solve", destination_passing_style=False)
    read = flashinfer_task(definition, given)
    found = judged(read, pool)
    assert found.validity == "incorrect"
    trace = json.loads(read.write_back(found).splitlines()[0])["evaluation"]
    assert trace["status"] == "INCORRECT_NUMERICAL" and trace["performance"] is None


def test_arrays_of_a_workload_are_read_from_file(definition: Path, pool: RunnerPool) -> None:
    from safetensors.torch import save_file

    lines = definition.parents[2] / "workloads" / "elementwise" / "scaled_add_n64.jsonl"
    save_file({"the_row": torch.arange(64.0)}, lines.parent / "row.safetensors")
    row = workload("stored", 32)
    stored = {"type": "safetensors", "path": "row.safetensors", "tensor_key": "the_row"}
    row["workload"]["inputs"]["row"] = stored
    lines.write_text(json.dumps(row) + "\n")
    read = flashinfer_task(definition, solution(DESTINATION))
    found = judged(read, pool)
    assert found.correct, found.message
    assert any("whether it reads row" in note for note in found.notes), found.notes


def test_incomplete_flashinfer_files_are_refused(definition: Path) -> None:
    with pytest.raises(InvalidRequest, match="solutions in cuda are not read"):
        flashinfer_task(definition, solution(DESTINATION, language="cuda"))
    with pytest.raises(InvalidRequest, match="solves 'another'"):
        flashinfer_task(definition, solution(DESTINATION) | {"definition": "another"})
    with pytest.raises(InvalidRequest, match=r"the entry point is 'run\.py::run'"):
        flashinfer_task(definition, solution(DESTINATION, "run.py::run"))


# -- SOL-ExecBench

SOL_REFERENCE = """\
import torch


def make(axes_and_scalars, device):
    rows, n = axes_and_scalars["rows"], axes_and_scalars["n"]
    picked = torch.randint(0, rows, (rows,), dtype=torch.int32, device=device)
    return {"x": torch.randn(rows, n, device=device), "picked": picked}


def run(x, picked):
    return x[picked.long(), : x.shape[1] // 2].contiguous()
"""
SOL_DEFINITION = {
    "name": "picked_halves",
    "custom_inputs_entrypoint": "make",
    "axes": {
        "rows": {"type": "var"},
        "n": {"type": "const", "value": 64},
        "half": {"type": "expr", "expression": "n // 2"},
    },
    "inputs": {
        "x": {"shape": ["rows", "n"], "dtype": "float32"},
        "picked": {"shape": ["rows"], "dtype": "int32"},
    },
    "outputs": {"y": {"shape": ["rows", "half"], "dtype": "float32"}},
    "reference": SOL_REFERENCE,
}


def test_sol_execbench_solution_is_judged(tmp_path: Path, pool: RunnerPool) -> None:
    (tmp_path / "definition.json").write_text(json.dumps(SOL_DEFINITION))
    inputs = {"x": {"type": "custom"}, "picked": {"type": "custom"}}
    row = {"uuid": "one", "axes": {"rows": 512}, "inputs": inputs}
    (tmp_path / "workload.jsonl").write_text(json.dumps(row) + "\n")
    verdicts = {"picked.long()": "correct", "picked.long().flip(0)": "incorrect"}
    for index, validity in verdicts.items():
        text = f"def run(x, picked, y):\n    y.copy_(x[{index}, : y.shape[1]])\n"
        given = solution(text) | {"definition": "picked_halves"}
        # As its public examples: a list of languages, and sources beside the solution.
        given["spec"] = {"languages": ["pytorch"], "entry_point": "main.py::run"}
        given["sources"] = [{"path": "main.py", "content": ""}]
        (tmp_path / "main.py").write_text(text)
        (tmp_path / "solution.json").write_text(json.dumps(given))
        form = format_of(tmp_path)
        assert form.name == "sol-execbench"
        found = judged(form.read(tmp_path, tmp_path / "solution.json"), pool)
        assert found.validity == validity, found.message


# -- the table


def test_unknown_formats_and_tasks_have_hint(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        format_of(tmp_path, "gpumode")
    assert "Did you mean gpu-mode" in refused.value.hint
    with pytest.raises(InvalidRequest, match="is unknown") as refused:
        format_of(tmp_path)
    assert "task.yml" in refused.value.hint and "definition.json" in refused.value.hint


def test_bundle_contains_only_imports_of_submission(gpu_mode: Path) -> None:
    bundle: Bundle = gpu_mode_task(gpu_mode, "3.0").bundle
    assert sorted(bundle.files) == ["submission.py", "task.py"]


# -- JAX

JAX_TASK = """\
import jax
import jax.numpy as jnp

def reference(x, w):
    return jax.nn.softmax(x @ w, axis=-1) * jnp.arange(1, w.shape[1] + 1)

def get_inputs():
    first, second = jax.random.split(jax.random.key(0))
    return [jax.random.normal(first, (64, 32)), jax.random.normal(second, (32, 48))]
"""
JAX_SUBMISSION = """\
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x, w):
        return (x @ w).softmax(-1) * torch.arange(1, w.shape[1] + 1)
"""


@pytest.fixture
def jax_task(tmp_path: Path) -> Path:
    (tmp_path / "scaled_softmax.py").write_text(JAX_TASK)
    (tmp_path / "submission.py").write_text(JAX_SUBMISSION)
    return tmp_path / "scaled_softmax.py"


def test_jax_reference_without_jax_names_package(
    jax_task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = format_of(jax_task)
    assert form.name == "jax"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unavailable) as raised:
        form.read(jax_task, jax_task.with_name("submission.py"))
    assert "pip install jax" in raised.value.hint


@pytest.mark.parametrize(("old", "new", "right"), [("", "", True), ("(-1)", "(-1) * 1.001", False)])
def test_jax_reference(jax_task: Path, pool: RunnerPool, old: str, new: str, right: bool) -> None:
    pytest.importorskip("jax", reason="JAX is an optional package of those who have tasks in it")
    submission = jax_task.with_name("submission.py")
    submission.write_text(JAX_SUBMISSION.replace(old, new, 1))
    read = format_of(jax_task).read(jax_task, submission)
    case = OpenCase(read.problem, read.problem.cases[0])
    assert not torch.equal(case.inputs(1)[0], case.inputs(2)[0])  # though its key is fixed
    [golden] = case.reference(*case.drawn(1), dtype=torch.float64)
    assert golden.dtype == torch.float64 and case.outputs[0].dtype == "float32"
    evaluation = judged(read, pool)
    assert evaluation.correct is right
    assert json.loads(read.write_back(evaluation))["correctness"] is right


# -- robust-kbench

FUNC = """\
import torch


class AutogradFunction(torch.autograd.Function):
    backward_fn = None

    @staticmethod
    def forward(ctx, x, weight, scale):
        ctx.save_for_backward(x, weight)
        ctx.scale = scale
        return (x * weight).tanh() * scale

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return *AutogradFunction.backward_fn(gradient, x, weight, ctx.scale), None


def forward_fn(x, weight, scale):
    return (x * weight).tanh() * scale


class Model(torch.nn.Module):
    def __init__(self, columns, scale=2.0, kind="random"):
        super().__init__()
        weight = torch.randn(columns) if kind == "random" else torch.ones(columns)
        self.weight = torch.nn.Parameter(weight)
        self.scale = scale

    def forward(self, x, fn=forward_fn):
        return fn(x, self.weight, self.scale)


def get_inputs(rows=7, columns=65):
    return [torch.randn(rows, columns, requires_grad=True)]
"""
CONFIG = {
    "single_init_configs": [{"kind": "random"}],
    "single_input_configs": [{"rows": 64}],
    "single_shared_configs": [{"columns": 129}],
    "multi_init_configs": [{"kind": "ones"}, {"scale": 0.5}],
    "multi_input_configs": [{}],
    "multi_shared_configs": [{"columns": 33}],
}
# Methods of tensors need fewer headers than functions, which halves the time of each build.
EXTENSION = """\
#include <torch/csrc/utils/pybind.h>

at::Tensor forward(at::Tensor x, at::Tensor weight, double scale) {
  return x.mul(weight).tanh().mul(scale);
}

std::vector<at::Tensor> backward(at::Tensor grad, at::Tensor x, at::Tensor weight, double scale) {
  at::Tensor inner = x.mul(weight).tanh();
  at::Tensor outer = inner.mul(inner).neg().add(1).mul(grad).mul(scale);
  return {outer.mul(weight), outer.mul(x).sum(0)};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &forward);
  m.def("backward", &backward);
}
"""


@pytest.fixture
def robust_kbench(tmp_path: Path) -> Path:
    task = tmp_path / "scaled_tanh"
    task.mkdir()
    for way in ("forward", "backward"):
        (task / f"func_{way}.py").write_text(FUNC)
        (task / f"config_{way}.json").write_text(json.dumps(CONFIG))
    return task


def robust_kbench_task(task: Path, text: str) -> ForeignTask:
    submission = task.parent / "kernel.cpp"
    submission.write_text(text)
    form = format_of(task)
    assert form.name == "robust-kbench"
    assert not is_folder(task)  # though func_forward.py looks like a task of KernelBench
    return form.read(task, submission)


def test_robust_kbench_kernel_is_judged_in_all_settings(
    robust_kbench: Path, pool: RunnerPool
) -> None:
    read = robust_kbench_task(robust_kbench, EXTENSION)
    assert {case.name: case.timed for case in read.problem.cases} == {
        "kind_random_columns_129_rows_64_columns_129": True,
        "kind_ones_columns_33_columns_33": False,
        "scale_0_5_columns_33_columns_33": False,
    }
    found = judged(read, pool)
    assert found.correct, f"{found.message}\n{found.log}"
    result = json.loads(read.write_back(found))
    assert result["test_results"]["summary"]["correct"] is True
    assert list(result["time_results"]["eval_settings"]) == [read.problem.cases[0].name]
    assert result["time_results"]["summary"]["avg_mean_time"] > 0
    hidden = fitting(read.problem, read.problem.cases[0])
    assert {"columns=128", "columns=130", "rows=32"} == {case.name for case in hidden.cases}


def test_robust_kbench_gradients_are_judged(robust_kbench: Path, pool: RunnerPool) -> None:
    task = robust_kbench / "func_backward.py"
    found = judged(robust_kbench_task(task, EXTENSION), pool)
    assert found.correct, f"{found.message}\n{found.log}"
    wrong = EXTENSION.replace("outer.mul(weight),", "outer,")
    found = judged(robust_kbench_task(task, wrong), pool)
    assert found.validity == "incorrect" and "is off by" in found.message


def test_robust_kbench_task_without_what_it_needs_is_refused(robust_kbench: Path) -> None:
    with pytest.raises(InvalidRequest, match="does not export"):
        robust_kbench_task(robust_kbench, EXTENSION.replace('def("', 'def("other_'))
    (robust_kbench / "config_forward.json").write_text('{"single_init_configs": [{}]}')
    with pytest.raises(InvalidRequest, match="does not list single_init_configs"):
        robust_kbench_task(robust_kbench, EXTENSION)
    (robust_kbench / "func_forward.py").write_text("import torch\n")
    with pytest.raises(InvalidRequest, match="does not define Model, forward_fn, get_inputs"):
        robust_kbench_task(robust_kbench, EXTENSION)
