"""Looks into a runner's memory from outside: a few elements of every timed call's outputs, and of
its inputs.

Which elements is drawn here and never said to the runner, so nothing in the candidate's process
knows them. The kernel reads for us: a page that the candidate made unreadable stays unreadable, and
nobody is called to fill it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from optimizer.evaluation.runner.memory import dtype_of
from optimizer.evaluation.runner.samples import (
    DRAW_BYTES,
    LOOKS,
    PEEKS,
    READABLE,
    layout,
    offset,
    places,
)

MAX_PIECES = 1024  # of one system call (IOV_MAX)
_string_at = ctypes.string_at


class MemoryUnreadable(Exception):
    """The other process's memory cannot be read there; the message says why."""


@dataclass(frozen=True)
class Output:
    """An output as it was agreed: its shape, and the bytes of an element."""

    shape: tuple[int, ...]
    item: int

    @property
    def numel(self) -> int:
        """Its number of elements."""
        return int(torch.Size(self.shape).numel())


def outputs_of(expected: Sequence[tuple[str, Sequence[int]]]) -> list[Output]:
    """Outputs of these (dtype, shape) pairs."""
    return [
        Output(tuple(shape), torch.empty(0, dtype=dtype_of(dtype)).element_size())
        for dtype, shape in expected
    ]


def read_memory(pid: int, pieces: Sequence[tuple[int, int]]) -> bytes:
    """The bytes of (address, length) pieces of another process, one after the other. Raises
    MemoryUnreadable."""
    parts = []
    for begin in range(0, len(pieces), MAX_PIECES):
        parts.append(_read_some(pid, pieces[begin : begin + MAX_PIECES]))
    return b"".join(parts)


def _read_some(pid: int, pieces: Sequence[tuple[int, int]]) -> bytes:
    wanted = sum(length for _, length in pieces)
    buffer = ctypes.create_string_buffer(wanted)
    ours = (ctypes.c_uint64 * 2)(ctypes.addressof(buffer), wanted)  # struct iovec
    flat = [number for piece in pieces for number in piece]
    theirs = (ctypes.c_uint64 * len(flat))(*flat)
    read = _readv()(pid, ours, 1, theirs, len(pieces), 0)
    if read != wanted:
        error = ctypes.get_errno() if read < 0 else 0
        raise MemoryUnreadable(os.strerror(error) if error else "a part of it is not there")
    return buffer.raw


_LIBC = ctypes.CDLL(None, use_errno=True)


def _readv() -> ctypes._NamedFuncPointer:
    """process_vm_readv(2). Raises MemoryUnreadable where the system has none."""
    if not sys.platform.startswith("linux"):
        raise MemoryUnreadable("only Linux lets one process read another's memory so")
    function = _LIBC.process_vm_readv
    function.restype = ctypes.c_ssize_t
    return function


def may_read(pid: int, address: int) -> bool:
    """Whether this process may read that one's memory, tried on a word that a runner holds before
    any candidate is there."""
    try:
        return int.from_bytes(read_memory(pid, [(address, 8)]), "little") == READABLE
    except MemoryUnreadable:
        return False


class Looks:
    """What is seen of the calls of one block. It is called with a call's number and what the
    runner showed when it asked for the next one.

    `looks` has the bytes of the elements that were drawn, one entry for each call, `inputs` those
    of the inputs. `late` counts calls whose outputs changed after they had ended. `refused` says
    why the memory could not be read, or is empty.
    """

    def __init__(
        self,
        pid: int,
        outputs: Sequence[Output],
        draws: Sequence[bytes],
        inputs: Sequence[torch.Tensor] = (),
    ) -> None:
        """`draws` has one for each call. `inputs` lie in memory that both processes map; where they
        are is not asked for."""
        self.looks: list[bytes] = []
        self.inputs: list[bytes] = []
        self.late = 0
        self.refused = ""
        self._pid = pid
        self._outputs = outputs
        self._draws = draws
        self._inputs = [(tensor, tensor.data_ptr(), tensor.element_size()) for tensor in inputs]
        self._where = layout([output.shape for output in outputs])
        self._peeked = sum(PEEKS * output.item for output in outputs if output.numel)
        self.bytes = DRAW_BYTES + self._peeked + self._where.size

    def __call__(self, call: int, shown: bytes) -> None:
        """Look at what the call left."""
        if self.refused:
            return
        own, shown = shown[:DRAW_BYTES], shown[DRAW_BYTES:]
        peeked, numbers = shown[: self._peeked], self._where.unpack(shown[self._peeked :])
        pieces = self._pieces(numbers, self._draws[call], LOOKS)
        looked = sum(length for _, length in pieces)
        try:
            data = read_memory(self._pid, pieces + self._pieces(numbers, own, PEEKS))
        except MemoryUnreadable as problem:
            self.refused = str(problem)
            return
        self.looks.append(data[:looked])
        self.late += data[looked:] != peeked
        self.inputs.append(self._of_inputs(self._draws[call]))

    def _pieces(self, numbers: Sequence[int], draw: bytes, count: int) -> list[tuple[int, int]]:
        """Where the elements lie that a draw decides about; `numbers` are addresses and strides."""
        pieces, begin = [], 0
        sizes = [output.numel for output in self._outputs]
        for output, chosen in zip(self._outputs, places(draw, sizes, count), strict=True):
            end = begin + 1 + len(output.shape)
            address, strides = numbers[begin], numbers[begin + 1 : end][::-1]
            shape, begin = output.shape[::-1], end
            for number in chosen:
                at = address + offset(number, shape, strides) * output.item
                pieces.append((at & (1 << 64) - 1, output.item))
        return pieces

    def _of_inputs(self, draw: bytes) -> bytes:
        parts = []
        sizes = [tensor.numel() for tensor, _, _ in self._inputs]
        for (_, address, item), chosen in zip(self._inputs, places(draw, sizes), strict=True):
            parts += [_string_at(address + number * item, item) for number in chosen]
        return b"".join(parts)
