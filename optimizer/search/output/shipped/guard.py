"""Dispatch: the kernel takes calls that look exactly like a measured case that it won; the
reference takes all others.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch

from optimizer.search.output.shipped.kernels import CKernel, KernelErrorCode, PythonKernel, find
from optimizer.search.output.shipped.library import KernelUnavailable
from optimizer.search.output.shipped.table import (
    DispatchTable,
    Row,
    comparable,
    constructor_arguments,
    describe,
    key_of,
)

ALIGNMENT = 64  # bytes; the kernel was never measured on arrays that begin elsewhere
Kernel = CKernel | PythonKernel


class Choice(NamedTuple):
    """Whether kernel or reference takes a call, and why; `case` is the measured case that the call
    looks like."""

    which: Literal["kernel", "reference"]
    why: str
    case: str | None = None


class _Match(NamedTuple):
    row: Row
    weights: list[torch.Tensor]


class Guarded(torch.nn.Module):
    """Mixin of the reference's Model: same constructor and state_dict, guarded forward."""

    _table: ClassVar[DispatchTable]
    _reference: ClassVar[type]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        constructed = constructor_arguments(self._reference, args, named)
        self.__dict__["_given"] = constructed
        self.__dict__["_kernel"] = None
        self.__dict__["_seen"] = None

    def __getstate__(self) -> dict[str, Any]:
        """The state without the kernel, which a copy loads again."""
        return {**self.__dict__, "_kernel": None, "_seen": None}

    def dispatch(self, *inputs: Any, **named: Any) -> Choice:
        """Whether kernel or reference would take this call, and why. Loads the kernel if so."""
        values = self._positional(inputs, named)
        match = self._match(values)
        if isinstance(match, str):
            return Choice("reference", match)
        if self._loaded(match) is None:
            return Choice("reference", self._table.broken, match.row.name)
        return Choice(
            "kernel", f"measured as case {match.row.name}: {match.row.why}", match.row.name
        )

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The result of the kernel for a measured case that it wins, else of the reference."""
        values = self._positional(inputs, named)
        match = self._match(values)
        if not isinstance(match, str):
            kernel = self._loaded(match)
            if kernel is not None:
                try:
                    return self._called(kernel, match, values)
                except (KernelErrorCode, KernelUnavailable) as problem:
                    self._give_up(str(problem))
        return super().forward(*inputs, **named)

    def _positional(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        if not named:
            return inputs
        bound = inspect.signature(super().forward).bind(*inputs, **named)
        return (*bound.args, *bound.kwargs.values())

    def _match(self, inputs: tuple[Any, ...]) -> _Match | str:
        """The case that the call looks like, or why it goes to the reference."""
        table = self._table
        refused = self._refused(inputs)
        if refused:
            return refused
        rows = table.rows.get(key_of(inputs))
        if rows is None:
            return f"no measured case has inputs {describe(inputs)}"
        reason, fitting = "", None
        for row in rows:
            weights = self._fits(row, inputs)
            if isinstance(weights, str):
                reason = f"case {row.name}: {weights}"
            elif not row.wins:
                return f"case {row.name}: {row.why}"
            else:
                fitting = fitting or _Match(row, weights)
        return fitting or reason

    def _refused(self, inputs: tuple[Any, ...]) -> str:
        table = self._table
        if not table.kind or table.broken:
            return table.broken or table.reason
        if self.training:
            return "training mode; call .eval()"
        if torch.compiler.is_compiling():
            return "torch.compile traces the reference"
        if torch.is_autocast_enabled(table.device):
            return "autocast changes dtypes"
        for value in inputs:
            if not isinstance(value, torch.Tensor):
                continue
            if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
                return f"an input is a {type(value).__name__}"
            if value.device.type != table.device or value.layout is not torch.strided:
                return f"measured on dense tensors on {table.device}, not {value.device}"
            if value.requires_grad and torch.is_grad_enabled():
                return "an input requires a gradient"
        return ""

    def _fits(self, row: Row, inputs: tuple[Any, ...]) -> list[torch.Tensor] | str:
        """The weights of the call, or the difference from the measured case."""
        for value, measured in zip(inputs, row.values, strict=True):
            if measured is not None and value != measured:
                return f"measured with {measured!r} where this call has {value!r}"
        arguments = self.__dict__["_given"][0]
        if arguments != row.arguments or not comparable(arguments):
            return f"measured with constructor arguments {dict(row.arguments)}, not {arguments}"
        weights = find(self, [name for name, _, _ in row.weights])
        if weights is None:
            return "its weights are no longer those of the reference's state_dict"
        grad = torch.is_grad_enabled()
        for weight, (name, dtype, shape) in zip(weights, row.weights, strict=True):
            if (weight.dtype, weight.shape) != (dtype, shape):
                return f"{name} is {describe([weight])}, measured as {dtype} {list(shape)}"
            if weight.device.type != self._table.device:
                return f"{name} is on {weight.device}"
            if grad and weight.requires_grad:
                return f"{name} requires a gradient; call under torch.no_grad()"
        return weights

    def _loaded(self, match: _Match) -> Kernel | None:
        """The kernel; None, after a warning with the reason, if it cannot be loaded."""
        kernel: Kernel | None = self.__dict__["_kernel"]
        if self._table.frozen:
            # It may cache values that it computed from the weights of its first call.
            seen = [_version(weight) for weight in match.weights]
            if seen != self.__dict__["_seen"]:
                kernel = None
                self.__dict__["_seen"] = seen
        if kernel is None:
            try:
                kernel = self._open()
            except KernelUnavailable as problem:
                self._give_up(str(problem))
                return None
            self.__dict__["_kernel"] = kernel
        return kernel

    def _open(self) -> Kernel:
        table = self._table
        if table.kind == "library":
            return CKernel(table)
        return PythonKernel(table, self.__dict__["_given"][1])

    def _give_up(self, reason: str) -> None:
        self._table.broken = f"the kernel cannot be used: {reason}"
        warnings.warn(
            f"{self._table.folder.name} runs the reference: {reason}", RuntimeWarning, stacklevel=4
        )

    def _called(self, kernel: Kernel, match: _Match, inputs: Sequence[Any]) -> Any:
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        device = next((value.device for value in [*tensors, *match.weights]), None)
        device = device or torch.device(self._table.device)
        with torch.no_grad():
            values = [_ready(v) if isinstance(v, torch.Tensor) else v for v in inputs]
            weights = match.weights
            if isinstance(kernel, CKernel):
                weights = [_ready(weight) for weight in weights]
            if device.type == "cuda":
                with torch.cuda.device(device):
                    results = kernel(match.row, values, weights, device)
            else:
                results = kernel(match.row, values, weights, device)
        return _packed(results, match.row)


def _ready(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor contiguous and aligned, as it was measured; copied if necessary."""
    if tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _version(tensor: torch.Tensor) -> tuple[int, int]:
    """Changes when the tensor is replaced or written to."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def _packed(results: list[torch.Tensor], row: Row) -> Any:
    """The results in the container that the reference returns."""
    kind = row.container["kind"]
    if kind == "tensor":
        return results[0]
    if kind == "dict":
        return dict(zip(row.container["keys"], results, strict=True))
    if kind == "return_types":
        return getattr(torch.return_types, row.container["name"])(results)
    return tuple(results) if kind == "tuple" else results
