"""A few elements of the outputs of every timed call, and how they are asked for.

The runner shows where the outputs of the call that has ended lie, and what a few elements of its
own choice held just then; the supervisor draws others and reads them itself (`evaluation.looks`).
Where it may not read another process's memory, it says which elements the runner is to read.

Used on both sides. Standard library and torch.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

LOOKS = 12  # elements of each output that the supervisor reads
PEEKS = 3  # of each output that the runner reads as soon as the call has ended
DRAW_BYTES = 8
READABLE = 0x6B65726E656C6C6F  # a number that a runner holds for its supervisor to read
REQUEST = b"?"  # for a call; what is shown of the call before follows
CALL, END = b"c", b"e"  # how a token begins: a call is granted, or the block ends
# Then the seed of the values that the call gets, and the draw of the elements that the runner is to
# read of the call before, which means nothing where the supervisor reads them.
TOKEN_BYTES = 1 + 2 * DRAW_BYTES
_STEP, _ADD, _ALL = 6364136223846793005, 1442695040888963407, (1 << 64) - 1  # Knuth's generator
_read = ctypes.string_at
MOST_COPIED = 256 << 20  # bytes of an output
# By the bytes of an element, numbers of as many: they are read whatever they mean.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_take, _tensor, _copy = torch.take, torch.tensor, torch.Tensor.copy_
_without_functions = torch._C.DisableTorchFunction
_without_dispatch: Callable[[], AbstractContextManager[Any]] = torch._C._DisableTorchDispatch


def token(granted: bool, seed: bytes, draw: bytes) -> bytes:
    """What answers a request; `seed` and `draw` have DRAW_BYTES each."""
    return (CALL if granted else END) + seed + draw


def seed_in(answer: bytes) -> int:
    """The seed that a token carries."""
    return int.from_bytes(answer[1 : 1 + DRAW_BYTES], "little")


def draw_in(answer: bytes) -> bytes:
    """The draw that a token carries."""
    return answer[1 + DRAW_BYTES :]


def places(draw: bytes, sizes: Sequence[int], count: int = LOOKS) -> Iterator[tuple[int, ...]]:
    """For each output of so many elements, the numbers of `count` that are read, in row-major
    order. `draw` has DRAW_BYTES bytes."""
    state = int.from_bytes(draw, "little")
    for size in sizes:
        numbers = []
        for _ in range(count if size else 0):
            state = (state * _STEP + _ADD) & _ALL
            numbers.append((state >> 16) % size)
        yield tuple(numbers)


def resolved(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same values, in memory that holds what they are: a conjugate view's holds others."""
    return [
        value.resolve_conj().resolve_neg() if value.is_neg() or value.is_conj() else value
        for value in values
    ]


def layout(shapes: Sequence[Sequence[int]]) -> struct.Struct:
    """How addresses and strides of outputs of these shapes are packed."""
    return struct.Struct(f"={sum(1 + len(shape) for shape in shapes)}q")


def show(values: Sequence[torch.Tensor], draw: bytes) -> bytes:
    """What a request shows of outputs, which are `resolved`: the elements that this draw decides
    about, read at once, the draw, and where everything lies."""
    peeked = read_elements(values, draw, PEEKS)
    where: list[int] = []
    for value in values:
        where += (value.data_ptr(), *value.stride())
    return draw + peeked + struct.pack(f"={len(where)}q", *where)


def read_elements(values: Sequence[torch.Tensor], draw: bytes, count: int = LOOKS) -> bytes:
    """The bytes of these elements, one output after the other. The outputs are `resolved` and lie
    in the memory of the host, with any strides."""
    parts = []
    sizes = [v.numel() for v in values]
    for value, numbers in zip(values, places(draw, sizes, count), strict=True):
        begin, size = value.data_ptr(), value.element_size()
        shape, stride = value.shape[::-1], value.stride()[::-1]
        for number in numbers:
            at = offset(number, shape, stride)  # dense or not, in the same time
            parts.append(_read(begin + at * size, size))
    return b"".join(parts)


class Snapshots:
    """What outputs on a device held as soon as their call had ended, in memory that stays from call
    to call. Which elements of them are read is drawn later, so what a call leaves to be done then
    is missing.

    Outputs of many bytes are read where they lie: a copy of them would take the device's memory
    from the candidate.
    """

    def __init__(self) -> None:
        self._forms: list[tuple[Any, ...]] = []
        self._copies: list[torch.Tensor | None] = []
        self._held: list[torch.Tensor] = []

    def take(self, values: Sequence[torch.Tensor]) -> None:
        """Of these outputs, which are `resolved`, on the current stream."""
        with _without_functions(), _without_dispatch():
            forms = [_form(value) for value in values]
            if forms != self._forms:
                self._forms = forms
                self._copies = [None if _large(v) else _room(v) for v in values]
            pairs = zip(values, self._copies, strict=True)
            self._held = [v if copy is None else _copy(copy, v) for v, copy in pairs]

    def read(self, draw: bytes) -> bytes:
        """The bytes of the elements that a draw decides about, one output after the other."""
        parts = []
        sizes = [value.numel() for value in self._held]
        with _without_functions(), _without_dispatch():
            for value, numbers in zip(self._held, places(draw, sizes), strict=True):
                if numbers:
                    at = _tensor(numbers, device=value.device)
                    words = _take(value.view(_WORDS[value.element_size()]), at).cpu()
                    parts.append(_read(words.data_ptr(), words.numel() * words.element_size()))
        return b"".join(parts)


def _form(value: torch.Tensor) -> tuple[Any, ...]:
    return value.shape, value.stride(), value.dtype, value.device


def _room(value: torch.Tensor) -> torch.Tensor | None:
    """Memory for a copy; None where the candidate has left none."""
    try:
        return torch.empty_like(value)
    except torch.OutOfMemoryError:
        return None


def _large(value: torch.Tensor) -> bool:
    return value.numel() * value.element_size() > MOST_COPIED


def offset(number: int, shape: Sequence[int], strides: Sequence[int]) -> int:
    """In elements, of the element with this number; the innermost dimension comes first."""
    offset = 0
    for extent, stride in zip(shape, strides, strict=True):
        number, index = divmod(number, extent)
        offset += index * stride
    return offset
