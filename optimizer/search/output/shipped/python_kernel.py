"""A kernel that is a Python class: torch operators or Triton. It works on the caller's weights."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from optimizer.search.output.shipped.library import KernelUnavailable
from optimizer.search.output.shipped.table import Row, Table
from optimizer.search.output.shipped.weights import share

BESIDE = "beside"  # folder of the modules that the reference imports from its own folder
_NUMBERS = itertools.count()
_IMPORTED: dict[Path, ModuleType] = {}


class PythonKernel:
    """table.entry of table.file, built with the constructor arguments of the caller."""

    def __init__(self, table: Table, arguments: Sequence[Any]) -> None:
        self._class = _class(table)
        self._arguments = list(arguments)
        self._models: dict[tuple[torch.dtype | None, torch.device], Any] = {}

    def __call__(
        self, row: Row, inputs: Sequence[Any], weights: Sequence[torch.Tensor], device: torch.device
    ) -> list[torch.Tensor]:
        place = (row.dtype, device)
        if place not in self._models:
            self._models[place] = self._model(row, device)
        model = self._models[place]
        if weights:
            share(model, [name for name, _, _ in row.weights], weights)
        result = model(*inputs)
        if isinstance(result, dict):
            return list(result.values())
        return list(result) if isinstance(result, tuple | list) else [result]

    def _model(self, row: Row, device: torch.device) -> Any:
        """Raises KernelUnavailable where it would not take the caller's weights."""
        with torch.random.fork_rng(devices=[]):
            model = self._class(*self._arguments[: row.argument_count])
        names = [name for name, _, _ in row.weights]
        if isinstance(model, torch.nn.Module):
            model = model.eval().requires_grad_(False)
            if row.dtype is not None:
                model = model.to(row.dtype)
            model = model.to(device)
        own = list(model.state_dict()) if isinstance(model, torch.nn.Module) else []
        if names and own != names:
            raise KernelUnavailable(
                f"the kernel has weights {own} where the reference has {names}, so it cannot take"
                " the reference's"
            )
        return model


def _class(table: Table) -> Any:
    path = table.folder / table.file
    if table.frozen or path not in _IMPORTED:
        _IMPORTED[path] = _import(path, table.folder)
    found = getattr(_IMPORTED[path], table.entry, None)
    if found is None:
        raise KernelUnavailable(f"{path.name} has no {table.entry}")
    return found


def _import(path: Path, package: Path) -> ModuleType:
    name = f"{package.name}_kernel_{next(_NUMBERS)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before = list(sys.path)
    own = [path.parent] if path.parent != package else []
    sys.path[:0] = [str(folder) for folder in (*own, package / BESIDE) if folder.is_dir()]
    try:
        spec.loader.exec_module(module)
    except ImportError as problem:
        del sys.modules[name]
        raise KernelUnavailable(
            f"{path.name} needs {problem.name or problem}, which is not installed"
            f" (pip install {problem.name or 'it'})"
        ) from problem
    finally:
        sys.path[:] = before
    return module
