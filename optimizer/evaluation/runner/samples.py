"""A few elements of the outputs of every timed call. Where they are is drawn by the supervisor once
the call has ended, so that no call can be told from one whose outputs are looked at.

Used on both sides: the runner reads the elements, the supervisor works out which they were.
Standard library and torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import torch

LOOKS = 12  # elements of each output
DRAW_BYTES = 8
_STEP, _ADD, _ALL = 6364136223846793005, 1442695040888963407, (1 << 64) - 1  # Knuth's generator
_read = ctypes.string_at


def places(draw: bytes, sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """For each output of so many elements, the numbers of those that are read, in row-major order.
    `draw` has DRAW_BYTES bytes."""
    state = int.from_bytes(draw, "little")
    for size in sizes:
        numbers = []
        for _ in range(LOOKS if size else 0):
            state = (state * _STEP + _ADD) & _ALL
            numbers.append((state >> 16) % size)
        yield tuple(numbers)


def read_elements(values: Sequence[torch.Tensor], draw: bytes) -> bytes:
    """The bytes of these elements, one output after the other. The outputs lie in the memory of the
    host, with any strides."""
    parts = []
    for value, numbers in zip(values, places(draw, [v.numel() for v in values]), strict=True):
        if value.is_neg() or value.is_conj():  # its memory holds other values than it has
            value = value.resolve_conj().resolve_neg()
        begin, size = value.data_ptr(), value.element_size()
        shape, stride = value.shape[::-1], value.stride()[::-1]
        for number in numbers:
            at = _offset(number, shape, stride)  # dense or not, in the same time
            parts.append(_read(begin + at * size, size))
    return b"".join(parts)


def _offset(number: int, shape: Sequence[int], strides: Sequence[int]) -> int:
    """In elements, of the element with this number; the innermost dimension comes first."""
    offset = 0
    for extent, stride in zip(shape, strides, strict=True):
        number, index = divmod(number, extent)
        offset += index * stride
    return offset
