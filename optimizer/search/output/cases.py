"""What a package holds of the problem.

The measured cases become rows of dispatch.json: what a call must look like, and whether the kernel
takes it. Of the problem's file it holds what the Model depends on: constants that change the Model
from case to case, and modules beside the file; these are found in the source, without running it.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kb.errors import InvalidRequest, KernloreError
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.problem.user_code import import_problem, running
from optimizer.search.confirm import Figure
from optimizer.search.output.shipped.table import comparable, constructor_arguments


def model_part(source: str) -> str:
    """The definitions that Model depends on, in their order, in a form that can be compared: two
    sources with the same part have the same Model."""
    tree = ast.parse(source)
    scopes = symtable.symtable(source, "<problem>", "exec").get_children()
    needed, waiting = {"Model"}, ["Model"]
    while waiting:
        name = waiting.pop()
        for node in tree.body:
            if name in _defines(node):
                for used in _uses(node, scopes) - needed:
                    needed.add(used)
                    waiting.append(used)
    return "\n".join(ast.dump(node) for node in tree.body if _defines(node) & needed)


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    # A name that is set in a loop or a condition counts as well.
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }


def _uses(node: ast.stmt, scopes: Sequence[symtable.SymbolTable]) -> set[str]:
    """Module-level names; an argument of the same name is none."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return _loaded(node)
    used = {name for scope in scopes if scope.get_name() == node.name for name in _free(scope)}
    outside: list[ast.AST] = list(node.decorator_list)
    if isinstance(node, ast.ClassDef):
        outside += [*node.bases, *node.keywords]
    else:
        outside.append(node.args)
    return used.union(*map(_loaded, outside))


def _free(scope: symtable.SymbolTable) -> set[str]:
    """Of a function or class and all inside it."""
    own = {s.get_name() for s in scope.get_symbols() if s.is_global() and s.is_referenced()}
    return own.union(*map(_free, scope.get_children()))


def _loaded(node: ast.AST) -> set[str]:
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    }


def files_beside(source: str, folder: Path) -> Mapping[str, str]:
    """Text of the modules in `folder` that the source imports, and of those that they import."""
    files: dict[str, str] = {}
    waiting = [source]
    while waiting:
        for name in _imported(waiting.pop()):
            for path in _files(folder, name):
                relative = path.relative_to(folder).as_posix()
                if relative not in files:
                    files[relative] = path.read_text(encoding="utf-8")
                    waiting.append(files[relative])
    return files


def _imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _files(folder: Path, name: str) -> list[Path]:
    if (folder / f"{name}.py").is_file():
        return [folder / f"{name}.py"]
    if (folder / name / "__init__.py").is_file():
        return sorted((folder / name).rglob("*.py"))
    return []


def wins(figure: Figure) -> bool:
    """Whether the case is certainly faster than the reference: the interval lies above 1."""
    return figure.speedup.low > 1.0


def case_rows(problem: Problem, figures: Sequence[Figure], chosen: Case) -> list[dict[str, Any]]:
    """A row of dispatch.json for each figure; `chosen` is the case whose constants the shipped
    reference has."""
    cases = {case.name: case for case in problem.cases}
    return [_row(problem, cases.get(figure.case), figure, chosen) for figure in figures]


def _row(problem: Problem, case: Case | None, figure: Figure, chosen: Case) -> dict[str, Any]:
    row = asdict(figure)
    try:
        form = _form(problem, case, chosen) if case is not None else "the problem has it no more"
    except KernloreError as error:
        form = str(error)
    if isinstance(form, str):
        return {**row, "wins": False, "why": form}
    why = f"{figure.speedup} times as fast as the reference"
    if not wins(figure):
        why = f"not certainly faster than the reference: {figure.speedup}"
    return {**row, "wins": wins(figure), "why": why, **form}


def _form(problem: Problem, case: Case, chosen: Case) -> dict[str, Any] | str:
    """What a call of the case looks like, or why the shipped Model cannot take it."""
    opened = OpenCase(problem, case)
    if model_part(opened.source) != model_part(OpenCase(problem, chosen).source):
        return "its constants make another Model than the one in reference.py"
    cls = import_problem(problem, case.constants).__dict__["Model"]
    arguments, _ = constructor_arguments(cls, opened.init_args, {})
    if not comparable(arguments):
        return "its constructor arguments cannot be compared"
    container = _container(opened, cls)
    if container is None:
        return "the reference returns a type of its own"
    signature = opened.signature
    return {
        "dtype": case.dtype,
        "inputs": _inputs(opened),
        "weights": [_tensor(t.name, t.dtype, t.shape) for t in signature.of("parameter", "buffer")],
        "outputs": [_tensor(t.name, t.dtype, t.shape) for t in signature.of("output")],
        "container": container,
        "arguments": arguments,
        "argument_count": len(opened.init_args),
    }


def _tensor(name: str, dtype: str, shape: Sequence[int]) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


def _inputs(opened: OpenCase) -> list[dict[str, Any]]:
    """Tensors by dtype and shape; Python numbers by type, and by value where it never varies."""
    draws = [opened.inputs(seed) for seed in (0, 1)] if any(opened.scalars) else []
    rows = []
    for number, (spec, scalar) in enumerate(
        zip(opened.signature.of("input"), opened.scalars, strict=True)
    ):
        if not scalar:
            rows.append(_tensor(spec.name, spec.dtype, spec.shape))
            continue
        first, second = (draw[number].item() for draw in draws)
        row = {"name": spec.name, "number": type(first).__name__}
        rows.append({**row, "value": first} if first == second else row)
    return rows


def _container(opened: OpenCase, cls: type[torch.nn.Module]) -> Mapping[str, Any] | None:
    """How the reference returns its outputs; None for a type that cannot be made again."""
    specs = opened.signature.of("input")  # made here: it runs the reference on real values
    if not any(opened.scalars):
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                inputs = [torch.empty(s.shape, dtype=getattr(torch, s.dtype)) for s in specs]
                return _kind(_result(opened, cls, inputs))
        except InvalidRequest:
            pass  # its sizes depend on values: they have to be made
    pairs = zip(opened.inputs(0), opened.scalars, strict=True)
    values = [value.item() if scalar else value for value, scalar in pairs]
    return _kind(_result(opened, cls, values))


def _result(opened: OpenCase, cls: type[torch.nn.Module], inputs: Sequence[Any]) -> Any:
    dtype = opened.case.dtype
    with running(opened.problem, "Model.forward"), torch.no_grad():
        model = cls(*opened.init_args).eval()
        if dtype is not None:
            model = model.to(getattr(torch, dtype))
        return model(*inputs)


def _kind(result: Any) -> Mapping[str, Any] | None:
    if isinstance(result, torch.Tensor):
        return {"kind": "tensor"}
    if isinstance(result, dict):
        return {"kind": "dict", "keys": list(result)}
    if type(result) in (tuple, list):
        return {"kind": type(result).__name__}
    if type(result).__module__ == "torch.return_types":
        return {"kind": "return_types", "name": type(result).__name__}
    return None
