"""Fresh values of a GPU's tensors, each by one kernel of ours, where `memory.written` needs a dozen
launches of torch's: their cost is the host's.

The values are bit by bit the same. Needs the driver of NVIDIA and nothing that compiles.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import torch

from optimizer.evaluation.runner.driver import LIBRARY, launch, loaded_kernel
from optimizer.evaluation.runner.memory import LATE, Change, LateChange, few_of, larger, written

THREADS = 256
PARTS = 512  # of a tensor, in one launch
BLOCKS = 256  # for each part
MOST = 1 << 31  # elements: the kernel counts in 32 bits


class _Given(ctypes.Structure):
    """What the kernel is given, in one piece."""

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
        ("each", ctypes.c_uint32),  # manieth of the replaced elements is late; 0: none is
        ("late", ctypes.c_uint32),
        ("spare", ctypes.c_uint32),
        ("starts", ctypes.c_uint32 * PARTS),
    )


# How a value is read and kept, its register, and the type to compute with, if any.
KINDS = {
    "b1": ("u8", ".b16", ""),
    "b2": ("u16", ".b16", ""),
    "b4": ("u32", ".b32", ""),
    "b8": ("u64", ".b64", ""),
    "f4": ("f32", ".f32", "f32"),
    "f8": ("f64", ".f64", "f64"),
}


# Each thread makes elements of one part of the tensor: it reads the bank where the part begins
# there, or where the replaced elements come from. Of a late one the right value goes elsewhere, and
# a wrong one stands in its place.
TEXT = """
.version 6.3
.target sm_70
.address_size 64
.visible .entry fresh(.param .align 8 .b8 all[<bytes>])
.maxntid <threads>, 1, 1
{
    .reg .pred %p;
    .reg <register> %v, %factor, %term;
    .reg .b32 %size, %held, %first, %begin, %distance, %count, %source, %each, %late;
    .reg .b32 %part, %base, %left, %i, %step, %start, %n, %at, %j, %r, %few;
    .reg .b64 %given, %to, %bank, %right, %wrong, %k;

    mov.u64 %given, all;
<reads>
    mov.u32 %part, %ctaid.y;
    mul.wide.u32 %k, %part, 4;
    add.u64 %k, %k, %given;
    ld.param.u32 %start, [%k+<starts>];
    add.u32 %part, %part, %first;
    mul.lo.u32 %base, %part, %held;
    sub.u32 %left, %size, %base;
    min.u32 %left, %left, %held;
    mov.u32 %i, %ctaid.x;
    mov.u32 %r, %tid.x;
    mad.lo.u32 %i, %i, <threads>, %r;
    mov.u32 %step, %nctaid.x;
    mul.lo.u32 %step, %step, <threads>;
next:
    setp.ge.u32 %p, %i, %left;
    @%p bra done;
    add.u32 %n, %base, %i;
    mov.u32 %few, 0xffffffff;
    add.u32 %at, %start, %i;
    setp.lt.u32 %p, %at, %held;
    @%p bra within;
    sub.u32 %at, %at, %held;
within:
    setp.lt.u32 %p, %n, %begin;
    @%p bra read;
    sub.u32 %r, %n, %begin;
    div.u32 %j, %r, %distance;
    mul.lo.u32 %few, %j, %distance;
    setp.ne.u32 %p, %few, %r;
    mov.u32 %few, 0xffffffff;
    @%p bra read;
    setp.ge.u32 %p, %j, %count;
    @%p bra read;
    add.u32 %at, %source, %j;
    setp.eq.u32 %p, %each, 0;
    @%p bra read;
    div.u32 %r, %j, %each;
    mul.lo.u32 %n, %r, %each;
    setp.ne.u32 %p, %n, %j;
    add.u32 %n, %base, %i;
    @%p bra read;
    mov.u32 %few, %r;
read:
    mad.wide.u32 %k, %at, <size>, %bank;
    ld.global.<access> %v, [%k];
<move>
    setp.eq.u32 %p, %few, 0xffffffff;
    @%p bra write;
    mad.wide.u32 %k, %few, <size>, %right;
    st.global.<access> [%k], %v;
    setp.eq.u64 %p, %wrong, 0;
    @%p bra turned;
    ld.global.<access> %v, [%wrong];
    bra write;
turned:
    sub.u32 %r, %late, 1;
    sub.u32 %r, %r, %few;
    mad.lo.u32 %at, %r, %each, %source;
    mad.wide.u32 %k, %at, <size>, %bank;
    ld.global.<access> %v, [%k];
write:
    mad.wide.u32 %k, %n, <size>, %to;
    st.global.<access> [%k], %v;
    add.u32 %i, %i, %step;
    bra next;
done:
    ret;
}
"""
ADDRESSES = ("to", "bank", "right", "wrong")
COUNTS = ("size", "held", "first", "begin", "distance", "count", "source", "each", "late")


def ptx(kind: str) -> str:
    """The kernel for values of this kind."""
    access, register, number = KINDS[kind]
    reads = [
        ("u64", ADDRESSES),
        ("u32", COUNTS),
        *([(number, ("factor", "term"))] if number else []),
    ]
    move = (f"mul.rn.{number} %v, %v, %factor;", f"add.rn.{number} %v, %v, %term;")
    parts = {
        "bytes": ctypes.sizeof(_Given),
        "threads": THREADS,
        "register": register,
        "access": access,
        "size": kind[1:],
        "starts": _Given.starts.offset,
        "reads": "\n".join(
            f"    ld.param.{of} %{name}, [%given+{getattr(_Given, name).offset}];"
            for of, names in reads
            for name in names
        ),
        "move": "".join(f"    {line}\n" for line in move) if number else "",
    }
    text = TEXT
    for name, part in parts.items():
        text = text.replace(f"<{name}>", str(part))
    return text


class Writer:
    """Makes changes of tensors on a GPU, by the kernel where it can, else as `written` does."""

    def __init__(self) -> None:
        self._given = _Given()
        self._pointer = (ctypes.c_void_p * 1)(ctypes.addressof(self._given))
        self._right: dict[int, torch.Tensor] = {}
        self._wrong: dict[int, torch.Tensor] = {}

    def prepare(self, banks: Sequence[torch.Tensor | None]) -> None:
        """For these banks, as they are now: memory for what is late, and for floats a number that
        is larger than all of a bank's."""
        self._right, self._wrong = {}, {}
        for bank in banks:
            if bank is None or not bank.numel() or not bank.is_cuda:
                continue
            _function(_kind(bank, bank.dtype in (torch.float32, torch.float64)))
            self._right[bank.data_ptr()] = torch.empty(LATE, dtype=bank.dtype, device=bank.device)
            if bank.is_floating_point():
                self._wrong[bank.data_ptr()] = larger(bank).to(bank.dtype)

    def __call__(self, change: Change, late: bool) -> LateChange | None:
        """As `written`, on the current stream."""
        flat, at = change.flat, change.bank.data_ptr()
        fits = change.starts and flat.numel() < MOST and at in self._right
        function = _function(_kind(flat, change.move is not None)) if fits else None
        if function is None or not flat.is_cuda:
            return written(change, late)
        given, move = self._given, change.move
        given.to, given.bank = flat.data_ptr(), at
        given.size, given.held = flat.numel(), change.bank.numel()
        given.begin, given.distance, given.count, given.source = change[4:]
        given.each = each = few_of(change.elements) if late else 0
        given.late = count = -(-change.elements // each) if late else 0
        right, wrong = self._right[at], self._wrong.get(at)
        given.right = right.data_ptr()
        given.wrong = 0 if wrong is None else wrong.data_ptr()
        if move is not None:
            given.factor, given.term = (_bits(v, flat.element_size()) for v in move[:2])
        self._launched(function, change)
        if not late:
            return None
        places = flat[change.begin :: change.distance * each][:count]
        return places, right[:count]

    def _launched(self, function: ctypes.c_void_p, change: Change) -> None:
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


def _kind(values: torch.Tensor, moved: bool) -> str:
    return f"{'f' if moved else 'b'}{values.element_size()}"


def _bits(value: float, size: int) -> int:
    """The bits of a number as a float of so many bytes."""
    if size == 8:
        return ctypes.c_uint64.from_buffer(ctypes.c_double(value)).value
    return ctypes.c_uint32.from_buffer(ctypes.c_float(value)).value


@cache
def _function(kind: str) -> ctypes.c_void_p | None:
    """The kernel, loaded into the current context; None where the driver does not take it, or for
    values of this kind there is none."""
    if LIBRARY is None or kind not in KINDS:
        return None
    torch.cuda.current_stream().synchronize()  # makes torch's context the current one
    function, _ = loaded_kernel(ptx(kind), "fresh")
    return function


def prepare() -> None:
    """Let the driver compile it for what inputs mostly are, before anybody waits for it."""
    _function("f4")
