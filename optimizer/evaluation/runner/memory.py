"""Memory that a runner shares with its supervisor: the layout of arrays in a memory file, a
candidate's outputs, and samples of a few of their elements after every timed call.

The supervisor writes inputs into a memory file and passes its descriptor; the runner maps it. After
a call the runner sends the addresses of its outputs and the values of a few elements of its choice
at once; the supervisor reads others from outside (`isolation.runner_process`), at positions that it
never names. Where it may not read another process's memory, it tells the runner which to read.
Standard library and torch.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

PAGE = 4096  # arrays begin at page boundaries, where an allocator puts large ones
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)  # Linux only
_string_at = ctypes.string_at


class ArrayPlacement(NamedTuple):
    """Position of one tensor in a memory file, in bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


def lay_out(specs: Sequence[tuple[str, Sequence[int]]]) -> tuple[list[ArrayPlacement], int]:
    """Consecutive placements of (dtype, shape) pairs, and the size of the file in bytes."""
    placements, offset = [], 0
    for dtype, shape in specs:
        size = torch.empty(0, dtype=dtype_of(dtype)).element_size()
        for extent in shape:
            size *= extent
        placements.append(ArrayPlacement(dtype, tuple(shape), offset, size))
        offset += -(-size // PAGE) * PAGE
    return placements, max(offset, PAGE)


def create(size: int, name: str = "kernlore") -> int:
    """Create a memory file of `size` bytes and return its descriptor."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


class Arrays:
    """Tensors over a memory file, valid as long as this object lives."""

    def __init__(self, fd: int, placements: Sequence[ArrayPlacement], size: int) -> None:
        # All pages are mapped at once, so that no timed call waits for one.
        self._map = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | _POPULATE)
        self.bytes = size
        self.placements = list(placements)
        self.tensors = [self._view(placement) for placement in placements]

    def _view(self, placement: ArrayPlacement) -> torch.Tensor:
        dtype = dtype_of(placement.dtype)
        if not placement.bytes:
            return torch.empty(placement.shape, dtype=dtype)
        count = placement.bytes // torch.empty(0, dtype=dtype).element_size()
        flat = torch.frombuffer(self._map, dtype=dtype, count=count, offset=placement.offset)
        return flat.view(placement.shape)

    def clear_gaps(self) -> None:
        """Write zeros between and after the arrays."""
        begins = [*(placement.offset for placement in self.placements), self.bytes]
        for placement, until in zip(self.placements, begins[1:], strict=True):
            end = placement.offset + placement.bytes
            self._map[end:until] = bytes(until - end)

    @property
    def address(self) -> int:
        """Address of the file in this process."""
        return int(torch.frombuffer(self._map, dtype=torch.uint8).data_ptr())


def dtype_of(name: str) -> torch.dtype:
    """Torch's dtype of this name. Raises AttributeError or TypeError for an unknown name."""
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} is not a dtype")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """The inverse of `dtype_of`."""
    return str(dtype).removeprefix("torch.")


def placements_json(placements: Sequence[ArrayPlacement]) -> list[list[Any]]:
    """Placements as JSON, for the runner."""
    return [[p.dtype, list(p.shape), p.offset, p.bytes] for p in placements]


def placements_from(rows: Sequence[Sequence[Any]]) -> list[ArrayPlacement]:
    """The inverse of `placements_json`."""
    return [
        ArrayPlacement(dtype, tuple(shape), offset, size) for dtype, shape, offset, size in rows
    ]


# -- pinning

_runtime: Callable[[], Any] = torch.cuda.cudart
MIN_PINNED_BYTES = 16 << 20  # pinning less takes longer than it saves


def pin(arrays: Arrays) -> bool:
    """Pin the memory for this process; False if that is impossible or not worth it.

    A GPU copies from and to pinned memory five times as fast (55 against 10 GB/s on an H200).
    """
    if arrays.bytes < MIN_PINNED_BYTES or not torch.cuda.is_available():
        return False
    return int(_runtime().cudaHostRegister(arrays.address, arrays.bytes, 0)) == 0


def unpin(arrays: Arrays) -> None:
    """Undo `pin`, before the memory is unmapped."""
    _runtime().cudaHostUnregister(arrays.address)


# -- outputs


class OutputRefused(Exception):
    """The returned value is no output that can be compared; the message says why."""


def listed(result: Any) -> list[Any]:
    """The outputs of a call: one tensor, or a tuple, list or mapping of them."""
    if isinstance(result, dict):
        return list(result.values())
    if isinstance(result, tuple | list):
        return list(result)
    return [result]


def by_key(result: Any, keys: Sequence[str]) -> list[Any]:
    """As `listed`, but a mapping in the order of `keys`, if there are any. Raises OutputRefused for
    a mapping with other keys."""
    if not keys or not isinstance(result, dict):
        return listed(result)
    own = dict(dict.items(result))  # of the dict itself, even if a subclass overrides them
    if own.keys() != set(keys):
        shown = ", ".join(sorted(map(str, own)))[:200]
        raise OutputRefused(f"outputs named {shown} instead of {', '.join(keys)}")
    return [own[key] for key in keys]


def check(
    result: Any,
    expected: Sequence[tuple[str, Sequence[int]]],
    plain: bool = True,
    keys: Sequence[str] = (),
) -> list[torch.Tensor]:
    """The outputs as plain tensors of the expected (dtype, shape) pairs; those of a mapping in the
    order of `keys`. Raises OutputRefused.

    A tensor subclass could compute when it is read, which is after the clock has stopped; only
    `plain=False` accepts one.
    """
    values = by_key(result, keys)
    if len(values) != len(expected):
        raise OutputRefused(f"{len(values)} outputs instead of {len(expected)}")
    for number, (value, (dtype, shape)) in enumerate(zip(values, expected, strict=True)):
        where = f"output {number}"
        if type(value) is torch.nn.Parameter:
            value = value.data
        if not plain and isinstance(value, torch.Tensor):
            continue
        if type(value) is not torch.Tensor:
            raise OutputRefused(f"{where} is {type(value).__name__}, not a plain torch.Tensor")
        if value.layout is not torch.strided or value.is_meta:
            raise OutputRefused(f"{where} has no storage of its own")
        if tuple(value.shape) != tuple(shape):
            raise OutputRefused(f"{where} has shape {tuple(value.shape)}, expected {tuple(shape)}")
        if dtype_name(value.dtype) != dtype:
            raise OutputRefused(f"{where} is {dtype_name(value.dtype)}, expected {dtype}")
        if value.numel() and (value.untyped_storage().size() == 0 or value.data_ptr() == 0):
            raise OutputRefused(f"{where} has no memory behind it")
    return values


def store(values: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> None:
    """Copy outputs into shared memory."""
    for value, target in zip(values, into, strict=True):
        target.copy_(value.detach())


FEW_PAGES = 64  # up to here, reading one by one is faster than a call of torch


def touch(result: Any) -> None:
    """Read a byte of every page of the outputs. A candidate can make a reader of a page wait while
    it computes the content, and of most calls nothing else is read."""
    for value in listed(result):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.device.type != "cpu":
            continue
        if value.layout is not torch.strided or not value.numel():
            continue
        size = value.element_size()
        strides = zip(value.shape, value.stride(), strict=True)
        end = (1 + sum((extent - 1) * stride for extent, stride in strides)) * size
        begin = value.storage_offset() * size
        if end <= FEW_PAGES * PAGE:
            first = value.data_ptr()
            for address in (*range(first, first + end, PAGE), first + end - 1):
                _string_at(address, 1)
            continue
        storage = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
        storage[begin : begin + end : PAGE].sum()
        storage[begin + end - 1].item()


# -- samples of outputs

SAMPLED = 12  # elements of each output that the supervisor compares
SAMPLED_EARLY = 3  # of each output that the runner reads as soon as the call has ended
READABLE = 0x6B65726E656C6C6F  # a word that a runner holds for its supervisor to try to read
MAX_COPIED = 256 << 20  # bytes of an output
_STEP, _ADD, _ALL = 6364136223846793005, 1442695040888963407, (1 << 64) - 1  # Knuth's generator
# Integer types by the bytes of an element: elements are read as bits, regardless of their dtype.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_take, _tensor, _copy = torch.take, torch.tensor, torch.Tensor.copy_
_without_functions = torch._C.DisableTorchFunction
_without_dispatch: Callable[[], AbstractContextManager[Any]] = torch._C._DisableTorchDispatch


def drawn_elements(
    draw: bytes, sizes: Sequence[int], count: int = SAMPLED
) -> Iterator[tuple[int, ...]]:
    """For each output of so many elements, the row-major numbers of `count` elements that a draw
    of DRAW_BYTES bytes selects."""
    state = int.from_bytes(draw, "little")
    for size in sizes:
        numbers = []
        for _ in range(count if size else 0):
            state = (state * _STEP + _ADD) & _ALL
            numbers.append((state >> 16) % size)
        yield tuple(numbers)


def resolved(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same values, materialised where a view is lazily conjugated or negated."""
    return [
        value.resolve_conj().resolve_neg() if value.is_neg() or value.is_conj() else value
        for value in values
    ]


def layout(shapes: Sequence[Sequence[int]]) -> struct.Struct:
    """Packing of the addresses and strides of outputs of these shapes."""
    return struct.Struct(f"={sum(1 + len(shape) for shape in shapes)}q")


def report(values: Sequence[torch.Tensor], draw: bytes) -> bytes:
    """The part of a request about the previous call's outputs, which are `resolved`: the draw, the
    elements that it selects, read now, and all addresses and strides."""
    early = read_elements(values, draw, SAMPLED_EARLY)
    where: list[int] = []
    for value in values:
        where += (value.data_ptr(), *value.stride())
    return draw + early + struct.pack(f"={len(where)}q", *where)


def read_elements(values: Sequence[torch.Tensor], draw: bytes, count: int = SAMPLED) -> bytes:
    """Bytes of the drawn elements, one output after the other. The outputs are `resolved`, in host
    memory, with any strides."""
    parts = []
    sizes = [v.numel() for v in values]
    for value, numbers in zip(values, drawn_elements(draw, sizes, count), strict=True):
        begin, size = value.data_ptr(), value.element_size()
        shape, stride = value.shape[::-1], value.stride()[::-1]
        for number in numbers:
            at = offset(number, shape, stride)  # takes as long whether dense or not
            parts.append(_string_at(begin + at * size, size))
    return b"".join(parts)


def offset(number: int, shape: Sequence[int], strides: Sequence[int]) -> int:
    """Offset in elements of the element with this number; innermost dimension first."""
    offset = 0
    for extent, stride in zip(shape, strides, strict=True):
        number, index = divmod(number, extent)
        offset += index * stride
    return offset


class Snapshots:
    """Copies of a device's outputs, made as soon as their call has ended, in memory that is reused
    from call to call. The elements are drawn later, so work that a call leaves undone is missing.

    Outputs above MAX_COPIED are read in place: a copy would take the device's memory from the
    candidate.
    """

    def __init__(self) -> None:
        self._forms: list[tuple[Any, ...]] = []
        self._copies: list[torch.Tensor | None] = []
        self._held: list[torch.Tensor] = []

    def take(self, values: Sequence[torch.Tensor]) -> None:
        """Copy these outputs, which are `resolved`, on the current stream."""
        with _without_functions(), _without_dispatch():
            forms = [(v.shape, v.stride(), v.dtype, v.device) for v in values]
            if forms != self._forms:
                self._forms = forms
                self._copies = [_memory_like(v) for v in values]
            pairs = zip(values, self._copies, strict=True)
            self._held = [v if copy is None else _copy(copy, v) for v, copy in pairs]

    def read(self, draw: bytes) -> bytes:
        """Bytes of the drawn elements, one output after the other."""
        parts = []
        sizes = [value.numel() for value in self._held]
        with _without_functions(), _without_dispatch():
            for value, numbers in zip(self._held, drawn_elements(draw, sizes), strict=True):
                if numbers:
                    at = _tensor(numbers, device=value.device)
                    words = _take(value.view(_WORDS[value.element_size()]), at).cpu()
                    size = words.numel() * words.element_size()
                    parts.append(_string_at(words.data_ptr(), size))
        return b"".join(parts)


def _memory_like(value: torch.Tensor) -> torch.Tensor | None:
    """Memory for a copy; None if the output is too large or the candidate has left none."""
    if value.numel() * value.element_size() > MAX_COPIED:
        return None
    try:
        return torch.empty_like(value)
    except torch.OutOfMemoryError:
        return None
