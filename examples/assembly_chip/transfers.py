"""Transfers between device memory and scratchpad: their data, their limits and their time.

Data move when a transfer is started; what they cover may not be touched until its tag was waited
for. Knows no instructions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:  # a program finds its neighbours by their bare names
    from examples.assembly_chip.arrays import Array, Tensors, Trap
else:
    from arrays import Array, Tensors, Trap


class Transfer(NamedTuple):
    """first, end: the scratchpad words that it covers. ends: the cycle in which it has ended."""

    tag: int
    first: int
    end: int
    inward: bool
    ends: int


class Channels:
    """The transfer unit of one chip. rows and pitch (in bytes) are those of the next transfer."""

    def __init__(self, chip: Mapping[str, Any], tensors: Tensors, scratch: Array) -> None:
        self.chip, self.tensors, self.scratch = chip, tensors, scratch
        self.rows, self.pitch = 1, 0
        self.unfinished: list[Transfer] = []
        self.free = {"read": 0, "write": 0}
        self.last_end = 0
        self.bytes = {"read": 0, "write": 0}
        self.useful = {"read": 0, "write": 0}
        self.started = 0

    def check(self, first: int, end: int, *, write: bool) -> None:
        """Whether an instruction may touch these words."""
        for transfer in self.unfinished:
            if (transfer.inward or write) and first < transfer.end and end > transfer.first:
                unit = self.chip["unit_bytes"]
                span = f"{transfer.first * 4 // unit} to {transfer.end * 4 // unit - 1}"
                word = self.chip["syntax"]["t"]
                raise Trap("hazard", f"words of the transfer with {word}{transfer.tag}, {span}")

    def start(self, now: int, address: int, place: tuple[str, int], length: int, tag: int) -> None:
        """A transfer of `length` bytes a row. `place` is the argument and the byte in it."""
        name, offset = place
        inward = name in self.tensors.inputs
        rows, pitch = self.rows, self.pitch
        if not self.chip["shape_stays"]:
            self.rows, self.pitch = 1, 0
        self._check_size(rows, length)
        if rows == 1:
            pitch = length
        self._check_alignment(address, offset, pitch if rows > 1 else 0)
        first, end = self._covered(address, rows * length, inward)
        window = self._window(place, rows, pitch, length)
        block = self.scratch[first:end].reshape(rows, length // 4)
        if inward:
            block[:] = window
        else:
            window[:] = block
        ends = self._time(now, rows, length, "read" if inward else "write")
        self.unfinished.append(Transfer(tag, first, end, inward, ends))

    def wait(self, tag: int) -> int:
        """The cycle in which every transfer with the tag has ended."""
        ends = [transfer.ends for transfer in self.unfinished if transfer.tag == tag]
        self.unfinished = [transfer for transfer in self.unfinished if transfer.tag != tag]
        return max(ends, default=0)

    # -- limits

    def _check_size(self, rows: int, length: int) -> None:
        unit, limit = self.chip["unit_bytes"], self.chip["max_transfer"]
        if not 1 <= rows <= self.chip["max_rows"]:
            raise Trap("dma_size", f"{rows} rows, at most {self.chip['max_rows']}")
        if length <= 0 or length % 4:
            raise Trap("dma_size", f"a length of {length // unit}")
        if rows * length > limit:
            raise Trap("dma_size", f"{rows * length} bytes, at most {limit}")
        if len(self.unfinished) >= self.chip["outstanding"]:
            raise Trap("queue", f"{len(self.unfinished)} were not waited for")

    def _check_alignment(self, address: int, offset: int, pitch: int) -> None:
        align, unit = self.chip["dma_align"], self.chip["unit_bytes"]
        named = {"scratchpad address": address, "offset": offset, "pitch": pitch}
        for name, value in named.items():
            if value % align:
                multiple = f"{value // unit} is no multiple of {align // unit}"
                raise Trap("dma_align", f"{name} {multiple}")

    def _covered(self, address: int, size: int, inward: bool) -> tuple[int, int]:
        first, end = address // 4, (address + size) // 4
        if first < 0 or end > len(self.scratch):
            unit = self.chip["unit_bytes"]
            span = f"{address // unit} to {(address + size) // unit - 1}"
            raise Trap("bounds", f"{span} of {self.chip['scratch_bytes'] // unit}")
        self.check(first, end, write=inward)
        return first, end

    def _window(self, place: tuple[str, int], rows: int, pitch: int, length: int) -> Array:
        """The rows in the argument, as a view. Rows that overlap are read as they lie."""
        name, offset = place
        memory, unit = self.tensors.memory[name], self.chip["unit_bytes"]
        last = offset + (rows - 1) * pitch + length
        if min(offset, offset + (rows - 1) * pitch) < 0 or last > 4 * memory.size or pitch < 0:
            span = f"{offset // unit} to {last // unit - 1} of {4 * memory.size // unit}"
            raise Trap("device", f"{name}, {span}")
        shape, strides = (rows, length // 4), (pitch, 4)
        return np.lib.stride_tricks.as_strided(memory[offset // 4 :], shape, strides)

    # -- time

    def _time(self, now: int, rows: int, length: int, side: str) -> int:
        burst = self.chip["dma_align"]
        moved = rows * -(-length // burst) * burst
        self.started += 1
        self.bytes[side] += moved
        self.useful[side] += rows * length
        busy = rows * self.chip["dma_row"] + -(-moved // self.chip["dma_bytes_per_cycle"])
        ends = max(now + int(self.chip["dma_latency"]), self.free[side]) + int(busy)
        for channel in (side,) if self.chip["duplex"] else self.free:
            self.free[channel] = ends
        self.last_end = max(self.last_end, ends)
        return ends
