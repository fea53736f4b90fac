"""Memory that the supervisor shares with runners, a store that reuses it, and copies and
comparisons of large arrays by a few threads.

New memory is faulted in page by page, ten times as slow as writing it. Only memory that no living
process maps returns to the store. Reused memory has zeros outside of its arrays; the arrays
themselves hold old values, which the next user overwrites.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import torch

from optimizer.evaluation.runner.memory import (
    PAGE,
    ArrayPlacement,
    Arrays,
    create,
    lay_out,
    pin,
    unpin,
)

MAX_STORED_BYTES = 16 << 30  # and at most a quarter of the free memory
_PAGES = "SC_AVPHYS_PAGES"


@dataclass(frozen=True)
class SharedArrays:
    """A memory file and views on it. `used`: it held something else before. `pinned`: its pages
    stay in place for a GPU (see `runner.memory.pin`) until it is closed."""

    fd: int
    placements: list[ArrayPlacement]
    size: int
    arrays: Arrays
    used: bool = False
    pinned: bool = False

    def close(self) -> None:
        """Unpin and close the file; the views stay valid while they are referenced."""
        if self.pinned:
            unpin(self.arrays)
        os.close(self.fd)


class SharedStore:
    """Provides shared memory. `reuses`: memory that was given back is provided again.
    Thread-safe."""

    def __init__(self, reuses: bool = False) -> None:
        self._reuses = reuses
        self._room = _room() if reuses else 0
        self._free: list[SharedArrays] = []
        self._lock = threading.Lock()

    def take(
        self, specs: Sequence[tuple[str, Sequence[int]]], pinned: bool = False
    ) -> SharedArrays:
        """Memory for arrays of these (dtype, shape) pairs: zeros, or what it held before. `pinned`
        asks for pinned memory, where possible."""
        placements, size = lay_out(specs)
        shared = self._reusable(placements) or _created(placements, size)
        if pinned and not shared.pinned:
            shared = replace(shared, pinned=pin(shared.arrays))
        return shared

    def _reusable(self, placements: Sequence[ArrayPlacement]) -> SharedArrays | None:
        """Free memory of this layout, chosen at random: its address decides some hundredths of a
        kernel's time, which shall not always favour the same side."""
        with self._lock:
            fitting = [n for n, shared in enumerate(self._free) if shared.placements == placements]
            if not fitting:
                return None
            shared = self._free.pop(random.choice(fitting))
        shared.arrays.clear_gaps()
        return shared

    def give(self, shared: SharedArrays, reusable: bool) -> None:
        """Give memory back. `reusable`: no process maps it any more."""
        with self._lock:
            held = sum(free.size for free in self._free)
            if self._reuses and reusable and held + shared.size <= self._room:
                self._free.append(replace(shared, used=True))
                return
        shared.close()

    def close(self) -> None:
        """Close free memory. Memory that is given back later is closed at once."""
        with self._lock:
            self._reuses = False
            free, self._free = self._free, []
        for shared in free:
            shared.close()


def _created(placements: list[ArrayPlacement], size: int) -> SharedArrays:
    fd = create(size)
    if size >= POPULATED:
        with mmap.mmap(fd, size, flags=mmap.MAP_SHARED) as whole:
            view = torch.frombuffer(whole, dtype=torch.uint8)
            _populate(view.data_ptr(), size)
            del view  # else the map cannot be closed
    return SharedArrays(fd, placements, size, Arrays(fd, placements, size))


def _room() -> int:
    """Bytes that may be stored."""
    free = os.sysconf(_PAGES) * os.sysconf("SC_PAGE_SIZE") if _PAGES in os.sysconf_names else 0
    return min(MAX_STORED_BYTES, free // 4)


# -- large arrays  One thread is slower than the memory. These threads sleep between tasks; OpenMP's
# would spin into the next timing.

PIECE = 4 << 20  # bytes for which a thread is worth waking
MAX_THREADS = 8
T = TypeVar("T")
POPULATED = 64 << 20  # bytes of a piece that a thread enters; smaller memory is left alone
MADV_POPULATE_WRITE = 23  # Linux 5.14
_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def copy_into(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values into a tensor of the same size, both in host memory."""
    plain = target.is_contiguous() and values.is_contiguous() and target.dtype == values.dtype
    if not plain or target.shape != values.shape or target.nbytes < 2 * PIECE:
        target.copy_(values)
        return
    to, source = target.view(-1), values.view(-1)

    def copied(begin: int, end: int) -> None:
        to[begin:end].copy_(source[begin:end])

    list(_in_pieces(copied, to.numel(), target.element_size()))


def on_host(values: torch.Tensor) -> torch.Tensor:
    """The tensor in host memory; itself if it is there."""
    if values.device.type == "cpu":
        return values
    target = torch.empty(values.shape, dtype=values.dtype)
    if target.nbytes >= POPULATED:
        _populate(target.data_ptr(), target.nbytes)
    return target.copy_(values)


def _populate(address: int, size: int) -> None:
    """Enter the pages of new memory, by several threads: one enters about 1.5 GB/s on a server, and
    a copy from a device brings 10. Where the system refuses, each page is entered when used."""
    begin, end = -(-address // PAGE) * PAGE, (address + size) // PAGE * PAGE
    pieces = range(begin, end, POPULATED)
    list(
        _workers(os.getpid()).map(
            lambda at: _madvise(at, min(POPULATED, end - at), MADV_POPULATE_WRITE), pieces
        )
    )


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of one size and dtype are equal bit by bit, by the device of the first;
    NaN is a value here."""
    ours, theirs = left.contiguous(), right.contiguous()
    if ours.device.type != "cpu":
        there = theirs.to(ours.device)
        return torch.equal(_as_words(ours), _as_words(there))
    size = ours.numel() * ours.element_size()
    first, second = ours.data_ptr(), theirs.data_ptr()

    def same(begin: int, end: int) -> bool:
        return bool(_memcmp(first + begin, second + begin, end - begin) == 0)

    return not size or all(_in_pieces(same, size, 1))


def _as_words(values: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor as integers."""
    flat = values.view(-1).view(torch.uint8) if values.numel() else values.new_empty(0).byte()
    return flat.view(torch.int64) if flat.numel() % 8 == 0 else flat


def _in_pieces(work: Callable[[int, int], T], count: int, size: int) -> Iterable[T]:
    """Results of `work` on each piece, from one number to another, of `count` elements of `size`
    bytes."""
    pieces = max(1, min(torch.get_num_threads(), MAX_THREADS, count * size // PIECE))
    bounds = [count * number // pieces for number in range(pieces + 1)]
    if pieces == 1:
        return [work(0, count)]
    return _workers(os.getpid()).map(work, bounds[:-1], bounds[1:])


@cache
def _workers(process: int) -> ThreadPoolExecutor:
    """The threads of this process; a fork has none of them."""
    return ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="arrays")
