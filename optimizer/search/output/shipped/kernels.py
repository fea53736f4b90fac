"""The two kinds of kernel in a package, called with torch tensors: a C function of the kernlore ABI
(kernlore_abi.h), and a Python class of torch operators or Triton.

A Python kernel works on the caller's weights, which are looked up by the names of the state_dict at
every call, so that it gets weights that were loaded, moved or replaced meanwhile.
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from optimizer.search.output.shipped.library import KernelUnavailable, open_library
from optimizer.search.output.shipped.table import DispatchTable, Row

DTYPE_CODES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.int8: 4,
    torch.uint8: 5,
    torch.int16: 6,
    torch.int32: 7,
    torch.int64: 8,
    torch.bool: 9,
}
BESIDE = "beside"  # folder of the modules that the reference imports from its own folder
_NUMBERS = itertools.count()
_IMPORTED: dict[Path, ModuleType] = {}


def find(model: torch.nn.Module, names: Sequence[str]) -> list[torch.Tensor] | None:
    """The tensors of these names in this order; None if a name is no plain parameter or buffer."""
    tensors = []
    for name in names:
        owner = _owner(model, name)
        value = owner.get(name.rpartition(".")[2]) if owner is not None else None
        if value is None:
            return None
        tensors.append(value)
    return tensors


def share(model: torch.nn.Module, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    """Replace the model's tensors of these names, which must exist, by these."""
    for name, tensor in zip(names, tensors, strict=True):
        owner, last = _owner(model, name), name.rpartition(".")[2]
        assert owner is not None
        if owner.get(last) is not tensor:
            owner[last] = tensor


def _owner(model: torch.nn.Module, name: str) -> dict[str, torch.Tensor | None] | None:
    *path, last = name.split(".")
    at: torch.nn.Module | None = model
    for part in path:
        at = at._modules.get(part) if at is not None else None
    if at is None:
        return None
    parameters: dict[str, torch.Tensor | None] = at._parameters  # type: ignore[assignment]
    return parameters if last in parameters else at._buffers


class _TensorArgument(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int64),
        ("ndim", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("stride", ctypes.POINTER(ctypes.c_int64)),
    )


class _CallCounts(ctypes.Structure):
    _fields_ = (
        ("inputs", ctypes.c_int64),
        ("parameters", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("stream", ctypes.c_void_p),
    )


class KernelErrorCode(RuntimeError):
    """The kernel returned an error code."""


class CKernel:
    """The function `table.entry` of the library in `table.folder`. Raises KernelUnavailable if it
    cannot be loaded or built."""

    def __init__(self, table: DispatchTable) -> None:
        self._entry = table.entry
        library = open_library(Path(table.folder), apart=table.frozen)
        try:
            self._function = getattr(library, table.entry)
        except AttributeError as problem:
            raise KernelUnavailable(f"the library has no function {table.entry}") from problem
        self._function.restype = ctypes.c_int
        self._function.argtypes = (ctypes.POINTER(_TensorArgument), ctypes.POINTER(_CallCounts))
        self._structures: dict[str, Any] = {}  # by name of the case

    def __call__(
        self, row: Row, inputs: Sequence[Any], weights: Sequence[torch.Tensor], device: torch.device
    ) -> list[torch.Tensor]:
        arguments = [_tensor(value, device) for value in inputs]
        results = [torch.empty(shape, dtype=dtype, device=device) for dtype, shape in row.outputs]
        tensors = [*arguments, *weights, *results]
        if row.name not in self._structures:
            self._structures[row.name] = _described(tensors)
        template, _ = self._structures[row.name]
        packed = type(template).from_buffer_copy(template)
        for argument, tensor in zip(packed, tensors, strict=True):
            argument.data = tensor.data_ptr()
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
        counts = _CallCounts(len(arguments), len(weights), len(results), stream)
        code = self._function(packed, ctypes.byref(counts))
        if code:
            raise KernelErrorCode(f"{self._entry} returned {code}; 0 means done")
        return results


def _tensor(value: Any, device: torch.device) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    dtype = torch.float64 if isinstance(value, float) else None
    return torch.tensor(value, dtype=dtype, device=device)


def _described(tensors: Sequence[torch.Tensor]) -> tuple[Any, list[Any]]:
    """The structures without data, and the arrays that they point into, which must stay alive."""
    packed = (_TensorArgument * len(tensors))()
    arrays: list[Any] = []
    for argument, tensor in zip(packed, tensors, strict=True):
        sizes = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.shape)
        strides = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.stride())
        argument.dtype = DTYPE_CODES[tensor.dtype]
        argument.ndim = tensor.dim()
        argument.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
        argument.stride = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
        arrays += [sizes, strides]
    return packed, arrays


class PythonKernel:
    """The class `table.entry` of `table.file`, constructed with the caller's arguments."""

    def __init__(self, table: DispatchTable, arguments: Sequence[Any]) -> None:
        self._class = _class(table)
        self._arguments = list(arguments)
        self._models: dict[tuple[torch.dtype | None, torch.device], Any] = {}

    def __call__(
        self, row: Row, inputs: Sequence[Any], weights: Sequence[torch.Tensor], device: torch.device
    ) -> list[torch.Tensor]:
        key = (row.dtype, device)
        if key not in self._models:
            self._models[key] = self._model(row, device)
        model = self._models[key]
        if weights:
            share(model, [name for name, _, _ in row.weights], weights)
        result = model(*inputs)
        if isinstance(result, dict):
            return list(result.values())
        return list(result) if isinstance(result, tuple | list) else [result]

    def _model(self, row: Row, device: torch.device) -> Any:
        """A model of the kernel. Raises KernelUnavailable if it does not take these weights."""
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


def _class(table: DispatchTable) -> Any:
    path = table.folder / table.file
    if table.frozen or path not in _IMPORTED:
        _IMPORTED[path] = _import(path, table.folder)
    kernel = getattr(_IMPORTED[path], table.entry, None)
    if kernel is None:
        raise KernelUnavailable(f"{path.name} has no {table.entry}")
    return kernel


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
