"""A C function of the kernlore ABI (kernlore_abi.h), called with torch tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from optimizer.search.output.shipped.library import KernelUnavailable, open_library
from optimizer.search.output.shipped.table import Row, Table

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


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int64),
        ("ndim", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("stride", ctypes.POINTER(ctypes.c_int64)),
    )


class _Counts(ctypes.Structure):
    _fields_ = (
        ("inputs", ctypes.c_int64),
        ("parameters", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("stream", ctypes.c_void_p),
    )


class KernelFailed(RuntimeError):
    """The kernel said that it could not do its work."""


class CKernel:
    """table.entry of the library in table.folder."""

    def __init__(self, table: Table) -> None:
        self._entry = table.entry
        library = open_library(Path(table.folder), apart=table.frozen)
        try:
            self._function = getattr(library, table.entry)
        except AttributeError as problem:
            raise KernelUnavailable(f"the library has no function {table.entry}") from problem
        self._function.restype = ctypes.c_int
        self._function.argtypes = (ctypes.POINTER(_Tensor), ctypes.POINTER(_Counts))
        self._kept: dict[str, Any] = {}

    def __call__(
        self, row: Row, inputs: Sequence[Any], weights: Sequence[torch.Tensor], device: torch.device
    ) -> list[torch.Tensor]:
        given = [_tensor(value, device) for value in inputs]
        results = [torch.empty(shape, dtype=dtype, device=device) for dtype, shape in row.outputs]
        tensors = [*given, *weights, *results]
        if row.name not in self._kept:
            self._kept[row.name] = _described(tensors)
        packed = type(self._kept[row.name][0]).from_buffer_copy(self._kept[row.name][0])
        for place, tensor in zip(packed, tensors, strict=True):
            place.data = tensor.data_ptr()
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
        counts = _Counts(len(given), len(weights), len(results), stream)
        code = self._function(packed, ctypes.byref(counts))
        if code:
            raise KernelFailed(f"{self._entry} returned {code}; 0 means done")
        return results


def _tensor(value: Any, device: torch.device) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    dtype = torch.float64 if isinstance(value, float) else None
    return torch.tensor(value, dtype=dtype, device=device)


def _described(tensors: Sequence[torch.Tensor]) -> tuple[Any, list[Any]]:
    """The structures without data, and the arrays that they point into."""
    packed = (_Tensor * len(tensors))()
    kept: list[Any] = []
    for place, tensor in zip(packed, tensors, strict=True):
        sizes = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.shape)
        strides = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.stride())
        place.dtype = DTYPE_CODES[tensor.dtype]
        place.ndim = tensor.dim()
        place.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
        place.stride = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
        kept += [sizes, strides]
    return packed, kept
