"""A CPU simulation of the NKI calls of the samples, as documented, run sequentially.

It checks the limits that a wrong kernel exceeds first (128 partitions, 128 x 512 per product, one
PSUM bank, no DMA from PSUM); unwritten memory is NaN. Engines, time and queues are not modelled.
Products are exact; a write rounds to the type of its destination.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

PARTITIONS, STATIONARY, MOVING = 128, 128, 512
BANK = 2048  # bytes of a PSUM bank in one partition


class Tile:
    """A tensor in device memory, SBUF or PSUM. A slice is a view of the same memory."""

    def __init__(self, data: torch.Tensor, buffer: str):
        self.data, self.buffer = data, buffer

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.data.dtype

    def __getitem__(self, place: Any) -> Tile:
        return Tile(self.data[place], self.buffer)

    def read(self) -> torch.Tensor:
        return self.data.double()

    def write(self, values: torch.Tensor) -> None:
        assert values.shape == self.data.shape, (values.shape, self.shape)
        self.data.copy_(values.to(self.dtype))


def device(values: torch.Tensor) -> Tile:
    """An argument of a kernel."""
    return Tile(values.clone(), "hbm")


def _ndarray(shape: tuple[int, ...], dtype: torch.dtype, buffer: str) -> Tile:
    if buffer != "hbm":
        assert shape[0] <= PARTITIONS, f"{shape[0]} partitions"
    if buffer == "psum":
        size = dtype.itemsize
        for columns in shape[1:]:
            size *= columns
        assert size <= BANK, f"{size} bytes do not fit a bank"
    return Tile(torch.full(shape, float("nan"), dtype=dtype), buffer)


def _value(operand: Any) -> Any:
    return operand.read() if isinstance(operand, Tile) else operand


def _on_chip(*tiles: Tile) -> None:
    assert all(tile.buffer in ("sbuf", "psum") for tile in tiles), "an operand in device memory"


def _dma_copy(*, dst: Tile, src: Tile) -> None:
    assert "psum" not in (dst.buffer, src.buffer), "a DMA that reaches PSUM"
    assert dst.dtype == src.dtype, "a DMA moves bytes as they are"
    dst.write(src.read())


def _tensor_copy(*, dst: Tile, src: Tile) -> None:
    _on_chip(dst, src)
    dst.write(src.read())


def _memset(*, dst: Tile, value: float) -> None:
    _on_chip(dst)
    dst.write(torch.full(dst.shape, value, dtype=torch.float64))


def _nc_matmul(
    *, dst: Tile, stationary: Tile, moving: Tile, accumulate: bool, perf_mode: str = "none"
) -> None:
    assert stationary.buffer == moving.buffer == "sbuf" and dst.buffer == "psum"
    left, right = stationary.read(), moving.read()
    if perf_mode == "double_row":
        assert stationary.dtype == moving.dtype and moving.dtype.itemsize == 1
        assert left.shape[1] == right.shape[1] == 2, "the second dimension is two"
        assert left.shape[0] == right.shape[0] <= PARTITIONS
        left, right = left.flatten(0, 1), right.flatten(0, 1)
    else:
        assert left.shape[0] <= PARTITIONS
    assert left.shape[1] <= STATIONARY and right.shape[1] <= MOVING
    product = left.T @ right
    dst.write(dst.read() + product if accumulate else product)


def _nc_transpose(*, dst: Tile, data: Tile) -> None:
    assert data.buffer == "sbuf" and dst.buffer == "psum" and max(data.shape) <= PARTITIONS
    assert dst.dtype == data.dtype, "the Tensor Engine keeps the type"
    dst.write(data.read().T)


Function = Callable[..., torch.Tensor]


def _tensor_reduce(*, dst: Tile, op: Function, data: Tile, axis: int, negate: bool = False) -> None:
    _on_chip(dst, data)
    assert op is torch.maximum and axis == 1
    highest = data.read().amax(dim=1, keepdim=True)
    dst.write(-highest if negate else highest)


def _tensor_tensor(*, dst: Tile, data1: Tile, data2: Tile, op: Function) -> None:
    _on_chip(dst, data1, data2)
    dst.write(op(data1.read(), data2.read()))


def _tensor_scalar(
    *,
    dst: Tile,
    data: Tile,
    op0: Function,
    operand0: Any,
    op1: Function | None = None,
    operand1: Any = None,
) -> None:
    _on_chip(dst, data)
    values = op0(data.read(), _value(operand0))
    dst.write(values if op1 is None else op1(values, _value(operand1)))


def _scalar_tensor_tensor(
    *, dst: Tile, data: Tile, op0: Function, operand0: Any, op1: Function, operand1: Tile
) -> None:
    _on_chip(dst, data, operand1)
    dst.write(op1(op0(data.read(), _value(operand0)), operand1.read()))


def _activation(
    *,
    dst: Tile,
    op: Function,
    data: Tile,
    scale: float = 1.0,
    bias: Any = 0.0,
    reduce_op: Function | None = None,
    reduce_res: Tile | None = None,
    reduce_cmd: str = "idle",
) -> None:
    _on_chip(dst, data)
    values = op(data.read() * scale + _value(bias))
    dst.write(values)
    if reduce_res is not None:
        assert reduce_op is operator.add and reduce_cmd == "reset_reduce"
        reduce_res.write(values.sum(dim=1, keepdim=True))


def _reciprocal(*, dst: Tile, data: Tile) -> None:
    _on_chip(dst, data)
    dst.write(1.0 / data.read())


def _affine_select(
    *,
    dst: Tile,
    pattern: list[list[int]],
    offset: int,
    channel_multiplier: int,
    cmp_op: Function,
    on_true_tile: Tile,
    on_false_value: float,
) -> None:
    assert dst.buffer == on_true_tile.buffer == "sbuf", "the GpSimd Engine does not reach PSUM"
    ((step, count),) = pattern
    partitions = torch.arange(dst.shape[0])[:, None]
    place = offset + partitions * channel_multiplier + torch.arange(count)[None, :] * step
    chosen = cmp_op(place, torch.zeros_like(place))
    no = torch.full(dst.shape, on_false_value, dtype=torch.float64)
    dst.write(torch.where(chosen, on_true_tile.read(), no))


def _module(name: str, names: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(names)
    return module


LANGUAGE = {
    "ndarray": _ndarray,
    "sbuf": "sbuf",
    "psum": "psum",
    "shared_hbm": "hbm",
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "multiply": operator.mul,
    "add": operator.add,
    "maximum": torch.maximum,
    "exp": torch.exp,
    "square": torch.square,
    "rsqrt": torch.rsqrt,
    "greater_equal": torch.ge,
}
ISA = {
    "dma_copy": _dma_copy,
    "tensor_copy": _tensor_copy,
    "memset": _memset,
    "nc_matmul": _nc_matmul,
    "nc_transpose": _nc_transpose,
    "tensor_reduce": _tensor_reduce,
    "tensor_tensor": _tensor_tensor,
    "tensor_scalar": _tensor_scalar,
    "scalar_tensor_tensor": _scalar_tensor_tensor,
    "activation": _activation,
    "reciprocal": _reciprocal,
    "affine_select": _affine_select,
    "matmul_perf_mode": _module("modes", {"none": "none", "double_row": "double_row"}),
    "reduce_cmd": _module("commands", {"reset_reduce": "reset_reduce"}),
}


def sample(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of a sample, with its NKI imports simulated. Any other call, such as one of the
    deprecated NKI, is an AttributeError.
    """
    nki = _module("nki", {"jit": lambda function: function})
    nki.isa, nki.language = _module("nki.isa", ISA), _module("nki.language", LANGUAGE)  # type: ignore[attr-defined]
    for module in (nki, nki.isa, nki.language):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = util.spec_from_file_location("nki_sample", path)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
