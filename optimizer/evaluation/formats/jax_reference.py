"""JAX: a file with `reference(...)`, a function of JAX arrays, and `get_inputs()`. Submissions are
candidates as for PyTorch references.

The reference is compiled by `jax.jit` and runs on JAX's own device. Its time contains the
conversion of arrays from and to PyTorch.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from kb.errors import InvalidRequest, Unavailable
from optimizer.evaluation.bundle import read_bundle
from optimizer.evaluation.formats import kernel_bench
from optimizer.evaluation.formats.task import (
    ForeignTask,
    TaskFormat,
    converted,
    defined_names,
    parsed_with,
    read_text,
)
from optimizer.evaluation.problem.spec import Case

TASK = "a Python file that imports jax and defines reference and get_inputs"
FUNCTION, INPUTS = "reference", "get_inputs"

_PROBLEM = """\
import jax
import numpy

_compiled = jax.jit(_reference.reference)
_wide = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


def _to_jax(value):
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach().cpu()
    if value.dtype == torch.bfloat16:
        return jax.numpy.asarray(value.float().numpy()).astype(jax.numpy.bfloat16)
    return jax.numpy.asarray(value.numpy())


def _to_torch(value, device="cpu"):
    if isinstance(value, (bool, int, float)):
        return value
    if value.dtype == jax.numpy.bfloat16:
        values = torch.from_numpy(numpy.array(value.astype("float32"))).bfloat16()
    else:
        values = torch.from_numpy(numpy.array(value))
    return values.to(device)


class Model(torch.nn.Module):
    def forward(self, {names}):
        given = ({names},)
        arrays = [value for value in given if isinstance(value, torch.Tensor)]
        with _wide(any(value.dtype in (torch.float64, torch.int64) for value in arrays)):
            result = _compiled(*map(_to_jax, given))
            device = arrays[0].device if arrays else "cpu"
            if isinstance(result, dict):
                return {name: _to_torch(value, device) for name, value in result.items()}
            if isinstance(result, (tuple, list)):
                return [_to_torch(value, device) for value in result]
            return _to_torch(result, device)


def get_inputs():
    # Keys that the file makes from fixed seeds differ from draw to draw.
    moved = int(torch.randint(2**31, ()))
    makers = {name: getattr(jax.random, name) for name in ("key", "PRNGKey")}
    for name, make in makers.items():
        setattr(jax.random, name, lambda seed, *a, _make=make, **k: _make(seed ^ moved, *a, **k))
    try:
        return [_to_torch(value) for value in _reference.get_inputs()]
    finally:
        for name, make in makers.items():
            setattr(jax.random, name, make)
"""


def _recognises(path: Path) -> bool:
    if path.suffix != ".py" or not path.is_file():
        return False
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return False
    names = defined_names(tree)
    return {FUNCTION, INPUTS} <= names and "Model" not in names and _imports_jax(tree)


def _imports_jax(tree: ast.Module) -> bool:
    modules = [alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names]
    modules += [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    return any(module.partition(".")[0] == "jax" for module in modules)


def _read(task: Path, submission: Path) -> ForeignTask:
    text = read_text(task, f"Give {TASK}.")
    tree = parsed_with({FUNCTION, INPUTS}, task.name, text, f"Give {TASK}.")
    if importlib.util.find_spec("jax") is None:
        raise Unavailable(
            f"{task.name} needs JAX, which is not installed",
            hint="Install it with `python -m pip install jax` (85 MB), or write the reference with"
            " PyTorch.",
        )
    fields = {"names": ", ".join(_arguments(tree))}
    problem = converted(
        task.stem, task, {FUNCTION: text}, _PROBLEM, fields, (Case("declared"),), reference=text
    )
    return ForeignTask(problem, read_bundle(submission), kernel_bench.write_back)


def _arguments(tree: ast.Module) -> list[str]:
    defined = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == FUNCTION]
    if not defined:
        raise InvalidRequest(
            f"{FUNCTION} is not defined by `def`",
            hint="Its arguments name the inputs: write `def reference(x, y)`.",
        )
    arguments = defined[-1].args
    return [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]


FORMAT = TaskFormat(
    "jax", TASK, "a candidate: ModelNew, or kernlore_run in C++ or CUDA", _recognises, _read
)
