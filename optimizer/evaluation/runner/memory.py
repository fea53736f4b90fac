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

_draw = Random.random
_copy_each, _take, _tensor = torch._foreach_copy_, torch.take, torch.tensor
# By dtype, numbers of the memory of the host as Python reads them; those of other dtypes stay.
_NUMBERS = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
# Elements that still hold other values, and the values that they are to get.
LateChange = tuple[torch.Tensor, torch.Tensor]


class Change(NamedTuple):
    """Fresh values of one tensor. `flat` and `bank` are views in one dimension. Each part of the
    tensor that is as long as the bank holds it from `starts` on, one for each part; none where only
    a few elements change. What is read of the bank is moved, where `move` says how. Then `elements`
    of it from `begin` on, at equal distances, get the bank's from `source` on."""

    flat: torch.Tensor
    bank: torch.Tensor
    starts: list[int]
    move: Move | None
    begin: int
    distance: int
    elements: int
    source: int


# Makes a change; says what is left to be done of it, where its second argument is true.
Write = Callable[[Change, bool], LateChange | None]


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
    write: Write | None = None,
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
    `write` makes the changes, by default `written`.

    With `late`, a few elements of a few tensors, the largest among them, hold other values
    afterwards. They are returned with the values that they are to get from `finish`.
    """
    chosen = Random(seed * 1_000_003 + call)
    write = write or written
    changes = list[Change]()
    for number, (tensor, bank) in enumerate(zip(tensors, banks, strict=True)):
        if tensor is not None and bank is not None and tensor.numel():
            looked_at = bank if near is None else near[number]
            changes.append(_change(tensor, bank, looked_at, chosen, spread, whole, moved, rounded))
    spoiled = _spoilt(changes, chosen) if late else []
    left = {number: write(change, number in spoiled) for number, change in enumerate(changes)}
    return [change for number in spoiled if (change := left[number]) is not None]


def _change(
    tensor: torch.Tensor,
    bank: torch.Tensor,
    looked_at: torch.Tensor,
    chosen: Random,
    spread: bool,
    whole: bool,
    moved: bool,
    rounded: bool,
) -> Change:
    """What is drawn for one tensor; as for `refresh`."""
    flat, held = tensor.view(-1), bank.view(-1)
    move = _move(looked_at.view(-1), chosen, rounded) if whole and moved else None
    starts = _starts(flat.numel(), held.numel(), chosen) if whole else []
    begin, distance, count = _places(flat.numel(), chosen, spread)
    source = chosen.randrange(held.numel() - count + 1)
    return Change(flat, held, starts, move, begin, distance, count, source)


def _spoilt(changes: Sequence[Change], chosen: Random) -> list[int]:
    """Numbers of the changes of which something is left to be done: that of the largest tensor,
    by what is replaced, up to CHUNK, and of some that are drawn."""
    by_size = sorted(range(len(changes)), key=lambda number: -changes[number].elements)
    others = min(LATE_TENSORS, len(changes)) - 1
    return [*by_size[:1], *(chosen.sample(by_size[1:], others) if changes else [])]


def written(change: Change, late: bool) -> LateChange | None:
    """Make a change, by torch. With `late`, some of the elements get wrong values; returned are
    those, and the right ones."""
    flat, bank, starts, move, begin, distance, count, source = change
    if starts:
        _turn(flat, bank, starts, move)
    places = flat[begin : begin + (count - 1) * distance + 1 : distance]
    values = bank[source : source + count]
    if move is not None:
        values = move.of(values)
    places.copy_(values)
    return _spoiled(places, values) if late else None


def few_of(count: int) -> int:
    """Of so many replaced elements, each how manieth is late."""
    return -(-count // LATE)


def _spoiled(places: torch.Tensor, values: torch.Tensor) -> LateChange:
    """Put wrong values at some of the places, and return what makes up for it.

    Floats are larger than all others, so that sums and maxima are wrong too. Whole numbers may be
    places in another tensor; they change theirs among themselves.
    """
    step = few_of(places.numel())
    few, right = places[::step], values[::step]
    few.copy_(larger(right) if right.is_floating_point() else right.flip(0))
    return few, right


def larger(values: torch.Tensor) -> torch.Tensor:
    """A number that is larger than all of these."""
    return 2 * values.float().abs().amax() + 1


def finish(changes: Sequence[LateChange]) -> None:
    """Make the changes that `refresh` left to be made, on the current stream."""
    for places, values in changes:
        places.copy_(values)


def _starts(size: int, held: int, chosen: Random) -> list[int]:
    """For each part of a tensor that is as long as its bank, a place in the bank. An odd place:
    rows of even length then come from two rows each.
    """
    return [(int(_draw(chosen) * held) | 1) % held for _ in range(0, size, held)]


def _turn(flat: torch.Tensor, bank: torch.Tensor, starts: Sequence[int], move: Move | None) -> None:
    """Copy the bank into each part of the tensor that is as long, from these places on."""
    held = bank.numel()
    sizes, values = list[int](), list[torch.Tensor]()
    for start, begin in zip(starts, range(0, flat.numel(), held), strict=True):
        part = min(held, flat.numel() - begin)
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
    if bank.dtype not in _NUMBERS:
        return None
    values = _at(bank, places)
    if not math.isfinite(values[0]) or len({*values}) < len({*places}):
        return None  # a value that repeats, such as the zeros of a sparse input, means something
    if all(value == round(value) for value in values if math.isfinite(value)):
        return None
    return Move(1 - parts / 256, values[0] * parts / 256, rounded)


def _at(values: torch.Tensor, places: Sequence[int]) -> list[float]:
    """The numbers at these places. Those in the memory of the host are read without torch, which
    takes a tenth of the time."""
    if values.device.type != "cpu" or not values.is_contiguous():
        read: list[float] = _take(values, _tensor(places, device=values.device)).tolist()
        return read
    held: Any = (_NUMBERS[values.dtype] * values.numel()).from_address(values.data_ptr())
    return [held[place] for place in places]


def _fill(place: torch.Tensor, values: torch.Tensor, move: Move | None) -> None:
    if move is None:
        place.copy_(values)
    else:
        move.of(values, place)


def _places(size: int, chosen: Random, spread: bool) -> tuple[int, int, int]:
    """What to replace: from which element on, at what distance, and how many. Never all of it: then
    every call would see the same values, those of the bank."""
    count = min(CHUNK, max(1, size // 2))
    if not spread:
        return chosen.randrange(size - count + 1), 1, count
    least = size // count
    if chosen.random() < SPARSE_SHARE:  # each tenth of the tensor still holds some of them
        least = max(least, min(SPARSE, size // 20))
    distance = chosen.randint(least, 2 * least)
    begin = chosen.randrange(min(distance, size))
    return begin, distance, -(-(size - begin) // distance)


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
