"""The binary interface of a candidate: inputs, then parameters and buffers in state_dict order,
then outputs, as contiguous arrays that the harness allocates.

A C function gets them as `kernlore_tensor` structures (`kb/candidate_abi.py`), a command toolchain
as `.npy` files with a JSON manifest, a `ModelNew` as torch tensors. All integers have 64 bits.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Literal

Role = Literal["input", "parameter", "buffer", "output"]

# Bytes per element, by torch's dtype names in the order of their codes in kernlore_tensor.dtype.
ITEM_BYTES: Mapping[str, int] = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "bool": 1,
}
DTYPE_CODES: Mapping[str, int] = {dtype: code for code, dtype in enumerate(ITEM_BYTES)}


@dataclass(frozen=True)
class TensorSpec:
    """An array of the interface, contiguous. `name` is the argument or the state_dict key."""

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]

    def as_json(self) -> dict[str, Any]:
        """The form of manifests and compile requests."""
        return {**asdict(self), "shape": list(self.shape)}


@dataclass(frozen=True)
class Signature:
    """The arrays of a case, in the order of the interface."""

    tensors: tuple[TensorSpec, ...]

    def of(self, *roles: Role) -> tuple[TensorSpec, ...]:
        """The tensors with one of these roles, in order."""
        return tuple(t for t in self.tensors if t.role in roles)

    @property
    def compulsory_bytes(self) -> int:
        """Bytes of inputs, weights and outputs, each counted once."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def compulsory_read_bytes(self) -> int:
        """Bytes of inputs and weights, each counted once."""
        return sum(tensor.bytes for tensor in self.tensors if tensor.role != "output")
