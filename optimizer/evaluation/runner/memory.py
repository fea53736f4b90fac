"""Arrays that a runner shares with its supervisor: their layout in a memory file, fresh values
before every call, the candidate's outputs, and pinning for a GPU.

The supervisor writes inputs into a memory file and passes its descriptor; the runner maps it.
Offsets are aligned to a page, as an allocator would align large arrays.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import torch

PAGE = 4096
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)  # Linux has it


class Place(NamedTuple):
    """Where one tensor lies in a memory file, in bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


def lay_out(specs: Sequence[tuple[str, Sequence[int]]]) -> tuple[list[Place], int]:
    """Places for (dtype, shape) pairs one after the other, and the size of the file in bytes."""
    places, offset = [], 0
    for dtype, shape in specs:
        size = torch.empty(0, dtype=dtype_of(dtype)).element_size()
        for extent in shape:
            size *= extent
        places.append(Place(dtype, tuple(shape), offset, size))
        offset += -(-size // PAGE) * PAGE
    return places, max(offset, PAGE)


def create(size: int, name: str = "kernlore") -> int:
    """Create a memory file of `size` bytes and return its descriptor."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


class Arrays:
    """Views on a memory file; they live as long as this object does."""

    def __init__(self, fd: int, places: Sequence[Place], size: int) -> None:
        # Every page is there from the start, so that no timed call waits for one.
        self._map = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | _POPULATE)
        self.bytes = size
        self.places = list(places)
        self.tensors = [self._view(place) for place in places]

    def _view(self, place: Place) -> torch.Tensor:
        dtype = dtype_of(place.dtype)
        if not place.bytes:
            return torch.empty(place.shape, dtype=dtype)
        count = place.bytes // torch.empty(0, dtype=dtype).element_size()
        flat = torch.frombuffer(self._map, dtype=dtype, count=count, offset=place.offset)
        return flat.view(place.shape)

    def clear_gaps(self) -> None:
        """Write zeros between the arrays and behind them."""
        begins = [*(place.offset for place in self.places), self.bytes]
        for place, until in zip(self.places, begins[1:], strict=True):
            end = place.offset + place.bytes
            self._map[end:until] = bytes(until - end)

    @property
    def address(self) -> int:
        """The address at which this process sees the file."""
        return int(torch.frombuffer(self._map, dtype=torch.uint8).data_ptr())


def dtype_of(name: str) -> torch.dtype:
    """Torch's dtype of this name. Raises AttributeError or TypeError where there is none."""
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} is not a dtype")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """The name that `dtype_of` takes."""
    return str(dtype).removeprefix("torch.")


def places_json(places: Sequence[Place]) -> list[list[Any]]:
    """Places as they travel to the runner."""
    return [[p.dtype, list(p.shape), p.offset, p.bytes] for p in places]


def places_from(rows: Sequence[Sequence[Any]]) -> list[Place]:
    """The inverse of `places_json`."""
    return [Place(dtype, tuple(shape), offset, size) for dtype, shape, offset, size in rows]


CHUNK = 16_384  # elements replaced in each tensor before a call, up to half of a small one
SPARSE = 32  # in sparse calls, one element in at least so many is replaced
SPARSE_SHARE = 0.75  # of the calls: a key of two elements then misses the change in 8 of 10
# Values are drawn nearer to one of them, by so many of 256 parts: any of it can be told exactly.
SHRINK = range(2, 33)
LOOKED_AT = 32  # values of a bank, to tell numbers that vary from a few that repeat
# Of a GPU's inputs, so many tensors, and up to so many elements in each, get their last values when
# the stream reaches the call.
LATE_TENSORS, LATE = 4, 256

# Elements that still hold other values, and the values that they are to get.
_draw = Random.random
_copy_each, _take, _tensor = torch._foreach_copy_, torch.take, torch.tensor
LateChange = tuple[torch.Tensor, torch.Tensor]


def refresh(
    tensors: Sequence[torch.Tensor | None],
    banks: Sequence[torch.Tensor | None],
    seed: int,
    call: int,
    spread: bool = True,
    whole: bool = True,
    late: bool = False,
    moved: bool = True,
    near: Sequence[torch.Tensor] | None = None,
    rounded: bool = True,
) -> list[LateChange]:
    """Give every tensor that has a bank fresh values, the same on both sides of a comparison.

    A bank is a second draw of the same tensor, so fresh values follow its distribution. The tensor
    becomes the bank, turned by a number of places that is drawn for each call, with all values
    moved a little towards one of them; then elements at equal distances, at places drawn too, are
    replaced by a random stretch of the bank. So no element is what it was, no value is one of an
    earlier call at another place, and no earlier result can be mended at a few places: where the
    operator is linear, that would be a small share of its work.

    `whole=False` leaves the rest of the tensor as it was (without defences 34 and 35);
    `spread=False` replaces one stretch instead of elements over the whole (without 33). `seed` is
    the block's, `call` counts from 0 within it. A candidate that keeps results by address, by
    version counter or by a fingerprint of its inputs is then wrong, because no call sees what an
    earlier one saw. The supervisor makes the same changes on its own copy, so it knows the inputs
    of any call without shipping them; whole changes do not depend on the calls before.

    `near` holds the banks in the memory of the host, where they are on a device: some of their
    values are looked at. `rounded` is that of `Move`, the same wherever these values are made.

    With `late`, a few elements of a few tensors, the largest among them, hold other values
    afterwards. They are returned with the values that they are to get from `finish`.
    """
    chosen = Random(seed * 1_000_003 + call)
    replaced: list[LateChange] = []
    for number, (tensor, bank) in enumerate(zip(tensors, banks, strict=True)):
        if tensor is None or bank is None or not tensor.numel():
            continue
        looked_at = bank if near is None else near[number]
        move = _move(looked_at.view(-1), chosen, rounded) if whole and moved else None
        if whole:
            _turn(tensor.view(-1), bank.view(-1), chosen, move)
        places = _places(tensor.view(-1), chosen, spread)
        count = places.numel()
        source = chosen.randrange(bank.numel() - count + 1)
        values = bank.view(-1)[source : source + count]
        if move is not None:
            values = move.of(values)
        places.copy_(values)
        replaced.append((places, values))
    if not late:
        return []
    replaced.sort(key=lambda change: -change[0].numel())  # by what was replaced, up to CHUNK
    others = chosen.sample(replaced[1:], min(LATE_TENSORS, len(replaced)) - 1) if replaced else []
    return [_spoiled(*change) for change in (*replaced[:1], *others)]


def _spoiled(places: torch.Tensor, values: torch.Tensor) -> LateChange:
    """Put wrong values at some of the places, and return what makes up for it.

    Floats are larger than all others, so that sums and maxima are wrong too. Whole numbers may be
    places in another tensor; they change theirs among themselves.
    """
    step = -(-places.numel() // LATE)
    few, right = places[::step], values[::step]
    few.copy_(2 * right.float().abs().amax() + 1 if right.is_floating_point() else right.flip(0))
    return few, right


def finish(changes: Sequence[LateChange]) -> None:
    """Make the changes that `refresh` left to be made, on the current stream."""
    for places, values in changes:
        places.copy_(values)


def _turn(flat: torch.Tensor, bank: torch.Tensor, chosen: Random, move: Move | None) -> None:
    """Copy the bank into each part of the tensor that is as long, from a place on that is drawn. An
    odd place: rows of even length then come from two rows each.
    """
    held = bank.numel()
    sizes, values = list[int](), list[torch.Tensor]()
    for begin in range(0, flat.numel(), held):
        part = min(held, flat.numel() - begin)
        start = (int(_draw(chosen) * held) | 1) % held
        first = min(part, held - start)
        sizes += (first, part - first)
        values += (bank[start : start + first], bank[: part - first])
    places = flat.split_with_sizes(sizes)
    if flat.is_cuda:  # a launch for each takes longer than the copies
        _copy_each(places, values)
        if move is not None:
            flat.mul_(move.factor).add_(move.term)
        return
    for place, value in zip(places, values, strict=True):
        _fill(place, value, move)


class Move(NamedTuple):
    """What becomes of every value: it is multiplied, and something is added. `rounded` says that
    the product is rounded before that, as a GPU does it here and a CPU, in one step, does not."""

    factor: float
    term: float
    rounded: bool = True

    def of(self, values: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The values, moved; into `out` where that is given."""
        if self.rounded:
            return torch.mul(values, self.factor, out=out).add_(self.term)
        term = _tensor(self.term, dtype=values.dtype, device=values.device)
        return torch.add(term, values, alpha=self.factor, out=out)


def _move(bank: torch.Tensor, chosen: Random, rounded: bool) -> Move | None:
    """A factor and a term that draw all values a little nearer to one of them, so that they stay
    within their range. None where values are whole numbers or few: those mean something. None in 16
    bits too, where a kernel may keep a table of all numbers that there are.
    """
    size = bank.numel()
    places = [int(_draw(chosen) * size) for _ in range(LOOKED_AT)]
    parts = chosen.choice(SHRINK)
    if bank.dtype not in (torch.float32, torch.float64):
        return None
    values = _take(bank, _tensor(places, device=bank.device)).tolist()
    if not math.isfinite(values[0]) or len({*values}) < len({*places}):
        return None  # a value that repeats, such as the zeros of a sparse input, means something
    if all(value == round(value) for value in values if math.isfinite(value)):
        return None
    return Move(1 - parts / 256, values[0] * parts / 256, rounded)


def _fill(place: torch.Tensor, values: torch.Tensor, move: Move | None) -> None:
    if move is None:
        place.copy_(values)
    else:
        move.of(values, place)


def _places(flat: torch.Tensor, chosen: Random, spread: bool) -> torch.Tensor:
    """A view of what to replace. Never all of it: then every call would see the same values, those
    of the bank."""
    size = flat.numel()
    count = min(CHUNK, max(1, size // 2))
    if not spread:
        to = chosen.randrange(size - count + 1)
        return flat[to : to + count]
    least = size // count
    if chosen.random() < SPARSE_SHARE:  # each tenth of the tensor still holds some of them
        least = max(least, min(SPARSE, size // 20))
    distance = chosen.randint(least, 2 * least)
    return flat[chosen.randrange(min(distance, size)) :: distance]


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
    """As `listed`, a mapping in the order of `keys`, if there are any. Raises OutputRefused for one
    with other keys.
    """
    if not keys or not isinstance(result, dict):
        return listed(result)
    own = dict(dict.items(result))  # of the mapping itself, whatever its class does
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
    """The outputs as plain tensors of the expected (dtype, shape) pairs; those of a dict are told
    apart by `keys`. Raises OutputRefused.

    A tensor subclass could compute when it is looked at, which is after the clock has stopped;
    `plain=False` lets it (`--without 3`).
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


FEW_PAGES = 64  # up to here, reading one by one is faster than a call of torch
_read = ctypes.string_at


def touch(result: Any) -> None:
    """Read a byte of every page of the outputs. A candidate can keep whoever reads a page waiting
    while it computes what should stand there, and of most calls nothing else is read.
    """
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
                _read(address, 1)
            continue
        held = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
        held[begin : begin + end : PAGE].sum()
        held[begin + end - 1].item()


def store(values: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> None:
    """Copy the outputs into shared memory."""
    for value, place in zip(values, into, strict=True):
        place.copy_(value.detach())


_runtime: Callable[[], Any] = torch.cuda.cudart
LEAST_BYTES = 16 << 20  # below, pinning takes longer than it saves


def pin(arrays: Arrays) -> bool:
    """Pin the memory for this process; False where that cannot be or is not worth it.

    A GPU copies from and to pinned memory five times as fast as ordinary memory (55 against 10 GB/s
    were seen on an H200). Memory that cannot be pinned is merely slower.
    """
    if arrays.bytes < LEAST_BYTES or not torch.cuda.is_available():
        return False
    return int(_runtime().cudaHostRegister(arrays.address, arrays.bytes, 0)) == 0


def unpin(arrays: Arrays) -> None:
    """Undo `pin`, before the memory is unmapped."""
    _runtime().cudaHostUnregister(arrays.address)
