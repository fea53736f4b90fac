"""The measured cases of a winner as rows of dispatch.json: what a call must look like, and whether
the kernel takes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kb.errors import InvalidRequest, KernloreError
from optimizer.evaluation.problem.importing import import_problem, running
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.problem.tensors import OpenCase, open_case
from optimizer.search.confirm import Figure
from optimizer.search.output.closure import model_part
from optimizer.search.output.shipped.arguments import comparable, constructor_arguments


def wins(figure: Figure) -> bool:
    """Certainly faster than the reference."""
    return figure.speedup.low > 1.0


def case_rows(problem: Problem, figures: Sequence[Figure], chosen: Case) -> list[dict[str, Any]]:
    """One for each figure. chosen: the case whose constants the shipped reference has."""
    cases = {case.name: case for case in problem.cases}
    return [_row(problem, cases.get(figure.case), figure, chosen) for figure in figures]


def _row(problem: Problem, case: Case | None, figure: Figure, chosen: Case) -> dict[str, Any]:
    told = asdict(figure)
    try:
        form = _form(problem, case, chosen) if case is not None else "the problem has it no more"
    except KernloreError as error:
        form = str(error)
    if isinstance(form, str):
        return {**told, "wins": False, "why": form}
    said = f"{figure.speedup} times as fast as the reference"
    if not wins(figure):
        said = f"not certainly faster than the reference: {figure.speedup}"
    return {**told, "wins": wins(figure), "why": said, **form}


def _form(problem: Problem, case: Case, chosen: Case) -> dict[str, Any] | str:
    """What a call of the case looks like, or why the shipped Model cannot take it."""
    opened = open_case(problem, case)
    if model_part(opened.source) != model_part(open_case(problem, chosen).source):
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
    found = []
    for number, (spec, scalar) in enumerate(
        zip(opened.signature.of("input"), opened.scalars, strict=True)
    ):
        if not scalar:
            found.append(_tensor(spec.name, spec.dtype, spec.shape))
            continue
        one, other = (draw[number].item() for draw in draws)
        told = {"name": spec.name, "number": type(one).__name__}
        found.append({**told, "value": one} if one == other else told)
    return found


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
