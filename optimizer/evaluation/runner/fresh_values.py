"""Fresh values of a kernel's inputs before every call, the same on both sides of a comparison.

The runner gives its inputs fresh values; the supervisor makes the same ones on its own copy, so it
knows the inputs of any call without shipping them. On a GPU one kernel per tensor makes them
(`fresh_values.ptx`), because the dozen launches of torch's cost the host more; the values are equal
bit by bit. Standard library and torch; the kernel needs NVIDIA's driver.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any, NamedTuple

import torch

from optimizer.evaluation.runner.driver import LIBRARY, launch, loaded_kernel, ptx

CHUNK = 16_384  # elements replaced in each tensor before a call, up to half of a small one
SPARSE = 32  # in sparse calls, at most one element in so many is replaced
SPARSE_SHARE = 0.75  # of the calls; a cache keyed by two elements then misses 8 changes in 10
SHIFT_PARTS = range(2, 33)  # of 256: the distance that values are moved towards one of them
PROBED = 32  # values of a bank, to tell continuous values from a few that repeat
# Elements that come from one position of the bank, on a CPU: looking a run up costs about as much
# as summing its values. Values that are not shifted come in shorter runs.
RUNS, SHORT_RUNS = (48, 96), (5, 15)
ROW = 16  # integers that may belong together
# On a GPU, up to so many elements in so many tensors get their values when the stream reaches the
# call.
LATE_TENSORS, LATE = 4, 256

_draw = Random.random
_copy_each, _take, _tensor = torch._foreach_copy_, torch.take, torch.tensor
_empty_like = torch.empty_like
_select, _randint, _Generator = torch.index_select, torch.randint, torch.Generator
# C types of the dtypes whose values are shifted.
_NUMBERS = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}
# Elements that still hold wrong values, and the values that they are to get.
LateChange = tuple[torch.Tensor, torch.Tensor]


class ValueChange(NamedTuple):
    """Fresh values of one tensor, as drawn. `flat` and `bank` are one-dimensional views.

    Each part of the tensor of the bank's length becomes a rotation of the bank, beginning at its
    entry of `starts` (empty if only some elements change), then shifted by `shift`. With `runs`, it
    becomes runs of the bank instead. After that `elements` of it, from `begin` on at equal
    `distance`s, get the bank's from `source` on.
    """

    flat: torch.Tensor
    bank: torch.Tensor
    starts: list[int]
    shift: ValueShift | None
    begin: int
    distance: int
    elements: int
    source: int
    runs: ValueRuns | None = None


class ValueRuns(NamedTuple):
    """Runs of a bank, each of `length` elements, from positions that a generator with this seed
    draws. Lengths and positions are multiples of `unit`."""

    length: int
    seed: int
    unit: int = 1


# Makes a change; if the second argument is true, some elements are left wrong and returned.
WriteChange = Callable[[ValueChange, bool], LateChange | None]


def refresh(
    tensors: Sequence[torch.Tensor | None],
    banks: Sequence[torch.Tensor | None],
    seed: int,
    *,
    whole: bool = True,
    spread: bool = True,
    shift: bool = True,
    scatter: bool = True,
    late: bool = False,
    host_banks: Sequence[torch.Tensor] | None = None,
    rounded: bool = True,
    write: WriteChange | None = None,
) -> list[LateChange]:
    """Give every tensor that has a bank the fresh values of this seed.

    A bank is a second draw of the same tensor, so fresh values follow its distribution. The tensor
    becomes short runs from random positions of the bank (on a GPU, a rotation of it) with all
    values shifted a little towards one of them; then elements at equal distances are replaced by a
    random stretch of the bank. So no element keeps its value, no value of an earlier call comes
    back at another position, and no earlier result can be patched at a few positions, which for a
    linear operator would be little work. Integers and values that repeat are not shifted: their
    runs are shorter. A candidate that caches results by address, version counter or a fingerprint
    of its inputs is wrong.

    With `late`, a few elements of a few tensors, the largest among them, are left wrong; they are
    returned with their values, for `apply`. `host_banks` are the banks in host memory, if `banks`
    are on a device. `rounded` is that of `ValueShift`, true on a GPU. `whole`, `spread`, `shift`
    and `scatter` weaken the change: only the replaced elements change, they are one stretch, values
    are not shifted, and are rotated on a CPU too.
    """
    chosen = Random(seed)
    changes = list[ValueChange]()
    for number, (tensor, bank) in enumerate(zip(tensors, banks, strict=True)):
        if tensor is None or bank is None or not tensor.numel():
            continue
        flat, held = tensor.view(-1), bank.view(-1)
        moved, starts, runs = None, list[int](), None
        if whole:
            if shift:
                probed = bank if host_banks is None else host_banks[number]
                moved = _drawn_shift(probed.view(-1), chosen, rounded)
            if scatter and (not rounded or not tensor.is_floating_point()):
                runs = _drawn_runs(tensor, held.numel(), moved is not None, chosen)
            else:
                starts = _drawn_starts(flat.numel(), held.numel(), chosen)
        if runs is not None and runs.unit > 1:  # nothing inside of a row is replaced
            begin, distance, count = 0, 1, 0
        else:
            begin, distance, count = _replaced(flat.numel(), chosen, spread)
        source = chosen.randrange(held.numel() - count + 1)
        changes.append(ValueChange(flat, held, starts, moved, begin, distance, count, source, runs))
    wrong = _drawn_late(changes, chosen) if late else []
    write = write or write_change
    left = {number: write(change, number in wrong) for number, change in enumerate(changes)}
    return [change for number in wrong if (change := left[number]) is not None]


def apply(changes: Sequence[LateChange]) -> None:
    """Write the values that `refresh` left out, on the current stream."""
    for elements, values in changes:
        elements.copy_(values)


class ValueShift(NamedTuple):
    """An affine map of all values. `rounded`: the product is rounded before the term is added, as
    the kernel for a GPU does and a CPU's fused multiply-add does not."""

    factor: float
    term: float
    rounded: bool = True

    def of(self, values: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The mapped values, in `out` if given."""
        if self.rounded:
            return torch.mul(values, self.factor, out=out).add_(self.term)
        term = _tensor(self.term, dtype=values.dtype, device=values.device)
        return torch.add(term, values, alpha=self.factor, out=out)


def _drawn_shift(bank: torch.Tensor, chosen: Random, rounded: bool) -> ValueShift | None:
    """A shift of all values towards one of them, so that they stay in their range; towards zero if
    zeros repeat, which mean something and stay zeros. None for whole numbers and for few distinct
    values. None in 16 bits, where a kernel may tabulate every value."""
    size = bank.numel()
    at = [int(_draw(chosen) * size) for _ in range(PROBED)]
    parts = chosen.choice(SHIFT_PARTS)
    if bank.dtype not in _NUMBERS:
        return None
    values = _values_at(bank, at)
    places = {place: value for place, value in zip(at, values, strict=True) if value}
    if not math.isfinite(values[0]) or len({*places.values()}) < len(places):
        return None
    if all(value == round(value) for value in values if math.isfinite(value)):
        return None
    towards = 0.0 if len(places) < len({*at}) else values[0]
    return ValueShift(1 - parts / 256, towards * parts / 256, rounded)


def _values_at(values: torch.Tensor, at: Sequence[int]) -> list[float]:
    """Elements as Python numbers. Host memory is read without torch, ten times as fast."""
    if values.device.type != "cpu" or not values.is_contiguous():
        read: list[float] = _take(values, _tensor(at, device=values.device)).tolist()
        return read
    held: Any = (_NUMBERS[values.dtype] * values.numel()).from_address(values.data_ptr())
    return [held[number] for number in at]


def _drawn_starts(size: int, held: int, chosen: Random) -> list[int]:
    """A position in the bank for each part of a tensor. Odd, so that a row of even length is made
    of two rows."""
    return [(int(_draw(chosen) * held) | 1) % held for _ in range(0, size, held)]


def _drawn_runs(tensor: torch.Tensor, held: int, shifted: bool, chosen: Random) -> ValueRuns:
    """Long runs of values that are shifted, or that a kernel may tabulate. Rows of a few integers,
    such as an edge's two nodes, stay whole."""
    few = tensor.dim() > 1 and not tensor.is_floating_point() and tensor.shape[-1] <= ROW
    unit = tensor.shape[-1] if few else 1
    rows = chosen.randint(*(RUNS if shifted or tensor.element_size() < 4 else SHORT_RUNS))
    length = unit * max(1, min(rows // unit, held // (4 * unit)))
    return ValueRuns(length, chosen.getrandbits(63), unit)


def _replaced(size: int, chosen: Random, spread: bool) -> tuple[int, int, int]:
    """First replaced element, distance and number. Never all elements: then every call would see
    the bank's own values."""
    count = min(CHUNK, max(1, size // 2))
    if not spread:
        return chosen.randrange(size - count + 1), 1, count
    least = size // count
    if chosen.random() < SPARSE_SHARE:  # each tenth of the tensor still holds some
        least = max(least, min(SPARSE, size // 20))
    distance = chosen.randint(least, 2 * least)
    begin = chosen.randrange(min(distance, size))
    return begin, distance, -(-(size - begin) // distance)


def _drawn_late(changes: Sequence[ValueChange], chosen: Random) -> list[int]:
    """Numbers of the changes that are left incomplete: the one with most replaced elements, and
    some that are drawn."""
    some = [number for number, change in enumerate(changes) if change.elements]
    by_size = sorted(some, key=lambda number: -changes[number].elements)
    others = min(LATE_TENSORS, len(by_size)) - 1
    return [*by_size[:1], *(chosen.sample(by_size[1:], others) if by_size else [])]


# -- by torch


def write_change(change: ValueChange, late: bool) -> LateChange | None:
    """Make a change by torch. With `late`, some elements get wrong values and are returned with
    the right ones."""
    flat, bank, starts, shift, begin, distance, count, source, runs = change
    if runs is not None:
        _scatter(flat, bank, runs, shift)
    elif starts:
        _rotate(flat, bank, starts, shift)
    elements = flat[begin : begin + (count - 1) * distance + 1 : distance]
    values = bank[source : source + count]
    if shift is not None:
        values = shift.of(values, _empty_like(values))
    elements.copy_(values)
    return _spoiled(elements, values) if late else None


def _rotate(
    flat: torch.Tensor, bank: torch.Tensor, starts: Sequence[int], shift: ValueShift | None
) -> None:
    """Copy the bank into each part of the tensor, beginning at these positions."""
    held = bank.numel()
    sizes, values = list[int](), list[torch.Tensor]()
    for start, begin in zip(starts, range(0, flat.numel(), held), strict=True):
        part = min(held, flat.numel() - begin)
        first = min(part, held - start)
        sizes += (first, part - first)
        values += (bank[start : start + first], bank[: part - first])
    pieces = flat.split_with_sizes(sizes)
    if flat.is_cuda:  # a launch for each takes longer than the copies
        _copy_each(pieces, values)
        if shift is not None:
            flat.mul_(shift.factor).add_(shift.term)
        return
    for piece, value in zip(pieces, values, strict=True):
        if shift is None:
            piece.copy_(value)
        else:
            shift.of(value, piece)


def _scatter(
    flat: torch.Tensor, bank: torch.Tensor, runs: ValueRuns, shift: ValueShift | None
) -> None:
    """Fill the tensor with runs of the bank."""
    length, unit, size = runs.length, runs.unit, flat.numel()
    count, rest = divmod(size, length)
    every = bank.as_strided(((bank.numel() - length) // unit + 1, length), (unit, 1))
    generator = _Generator("cpu").manual_seed(runs.seed)
    starts = _randint(len(every), (count + 1,), generator=generator, device="cpu").to(bank.device)
    if count:
        _select(every, 0, starts[:count], out=flat[: size - rest].view(count, length))
    flat[size - rest :].copy_(every[int(starts[count]), :rest])
    if shift is not None:
        shift.of(flat, flat)


def _spoiled(elements: torch.Tensor, values: torch.Tensor) -> LateChange:
    """Put wrong values into some elements, and return them with the right ones.

    Floats become larger than all others, so that sums and maxima are wrong too. Integers may index
    another tensor; they are permuted among themselves.
    """
    step = late_step(elements.numel())
    few, right = elements[::step], values[::step]
    few.copy_(larger(right) if right.is_floating_point() else right.flip(0))
    return few, right


def late_step(count: int) -> int:
    """Every how manieth of so many replaced elements is late."""
    return -(-count // LATE)


def larger(values: torch.Tensor) -> torch.Tensor:
    """A number larger than all of these."""
    return 2 * values.float().abs().amax() + 1


# -- by one kernel

THREADS = 256
PARTS = 512  # of a tensor, in one launch
BLOCKS = 256  # for each part
MAX_ELEMENTS = 1 << 31  # the kernel counts in 32 bits


class _KernelArguments(ctypes.Structure):
    """The kernel's only argument."""

    _fields_ = (
        ("to", ctypes.c_uint64),
        ("bank", ctypes.c_uint64),
        ("right", ctypes.c_uint64),
        ("wrong", ctypes.c_uint64),
        ("factor", ctypes.c_uint64),
        ("term", ctypes.c_uint64),
        ("size", ctypes.c_uint32),
        ("held", ctypes.c_uint32),
        ("first", ctypes.c_uint32),
        ("begin", ctypes.c_uint32),
        ("distance", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("source", ctypes.c_uint32),
        ("each", ctypes.c_uint32),  # step of late elements; 0 for none
        ("late", ctypes.c_uint32),
        ("spare", ctypes.c_uint32),
        ("starts", ctypes.c_uint32 * PARTS),
    )


_ADDRESSES = ("to", "bank", "right", "wrong")
_COUNTS = ("size", "held", "first", "begin", "distance", "count", "source", "each", "late")
# Access type, register type, and arithmetic type if values are shifted.
_KINDS = {
    "b1": ("u8", ".b16", ""),
    "b2": ("u16", ".b16", ""),
    "b4": ("u32", ".b32", ""),
    "b8": ("u64", ".b64", ""),
    "f4": ("f32", ".f32", "f32"),
    "f8": ("f64", ".f64", "f64"),
}


def _ptx_of(kind: str) -> str:
    access, register, number = _KINDS[kind]
    reads = [
        ("u64", _ADDRESSES),
        ("u32", _COUNTS),
        *([(number, ("factor", "term"))] if number else []),
    ]
    move = (f"mul.rn.{number} %v, %v, %factor;", f"add.rn.{number} %v, %v, %term;")
    return ptx(
        "fresh_values.ptx",
        {
            "bytes": ctypes.sizeof(_KernelArguments),
            "threads": THREADS,
            "register": register,
            "access": access,
            "size": kind[1:],
            "starts": _KernelArguments.starts.offset,
            "reads": "\n".join(
                f"    ld.param.{of} %{name}, [%given+{getattr(_KernelArguments, name).offset}];"
                for of, names in reads
                for name in names
            ),
            "move": "".join(f"    {line}\n" for line in move) if number else "",
        },
    )


PTX = {kind: _ptx_of(kind) for kind in _KINDS}  # read before the candidate is imported


class GpuValueWriter:
    """A `WriteChange` by the kernel, if the driver takes it; else by torch."""

    def __init__(self) -> None:
        self._given = _KernelArguments()
        self._pointer = (ctypes.c_void_p * 1)(ctypes.addressof(self._given))
        self._right: dict[int, torch.Tensor] = {}
        self._wrong: dict[int, torch.Tensor] = {}

    def prepare(self, banks: Sequence[torch.Tensor | None]) -> None:
        """Allocate memory for late values of these banks and, for floats, find a number larger than
        all of a bank's current values."""
        self._right, self._wrong = {}, {}
        for bank in banks:
            if bank is None or not bank.numel() or not bank.is_cuda:
                continue
            _function(_kind(bank, bank.dtype in (torch.float32, torch.float64)))
            self._right[bank.data_ptr()] = torch.empty(LATE, dtype=bank.dtype, device=bank.device)
            if bank.is_floating_point():
                self._wrong[bank.data_ptr()] = larger(bank).to(bank.dtype)

    def __call__(self, change: ValueChange, late: bool) -> LateChange | None:
        """As `write_change`, on the current stream."""
        flat, at = change.flat, change.bank.data_ptr()
        fits = change.starts and flat.numel() < MAX_ELEMENTS and at in self._right
        function = _function(_kind(flat, change.shift is not None)) if fits else None
        if function is None or not flat.is_cuda:
            return write_change(change, late)
        given, shift = self._given, change.shift
        given.to, given.bank = flat.data_ptr(), at
        given.size, given.held = flat.numel(), change.bank.numel()
        given.begin, given.distance, given.count, given.source = change[4:8]
        given.each = step = late_step(change.elements) if late else 0
        given.late = count = -(-change.elements // step) if late else 0
        right, wrong = self._right[at], self._wrong.get(at)
        given.right = right.data_ptr()
        given.wrong = 0 if wrong is None else wrong.data_ptr()
        if shift is not None:
            given.factor, given.term = (_bits(v, flat.element_size()) for v in shift[:2])
        self._launch(function, change)
        if not late:
            return None
        elements = flat[change.begin :: change.distance * step][:count]
        return elements, right[:count]

    def _launch(self, function: ctypes.c_void_p, change: ValueChange) -> None:
        given, starts = self._given, change.starts
        stream = torch.cuda.current_stream().cuda_stream
        blocks = min(BLOCKS, -(-min(change.flat.numel(), change.bank.numel()) // THREADS))
        for first in range(0, len(starts), PARTS):
            some = starts[first : first + PARTS]
            given.first = first
            given.starts[: len(some)] = some
            size = (blocks, len(some), 1, THREADS, 1, 1)
            code = launch(function, size, stream, self._pointer)
            if code:
                raise RuntimeError(f"no fresh values: error {code} of the device's driver")


def _kind(values: torch.Tensor, shifted: bool) -> str:
    return f"{'f' if shifted else 'b'}{values.element_size()}"


def _bits(value: float, size: int) -> int:
    """The bits of a float of so many bytes."""
    if size == 8:
        return ctypes.c_uint64.from_buffer(ctypes.c_double(value)).value
    return ctypes.c_uint32.from_buffer(ctypes.c_float(value)).value


@cache
def _function(kind: str) -> ctypes.c_void_p | None:
    """The kernel in the current context; None if the driver refuses it, or no kernel is for values
    of this kind."""
    if LIBRARY is None or kind not in PTX:
        return None
    torch.cuda.current_stream().synchronize()  # makes torch's context the current one
    function, _ = loaded_kernel(PTX[kind], "fresh")
    return function


def prepare() -> None:
    """Compile the kernel for float32, which most inputs are, before it is needed."""
    _function("f4")
