"""Large arrays in the memory of the host, copied and compared in pieces by as many threads as torch
has here, up to a few: one thread alone is slower than the memory.

The threads sleep between two tasks, where OpenMP's go on spinning beside whatever is timed next.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

PIECE = 4 << 20  # bytes, at least, that a thread is woken for
MOST = 8  # threads
T = TypeVar("T")
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def copy_into(place: torch.Tensor, values: torch.Tensor) -> None:
    """Copy values into a tensor of the same size. Both lie in the memory of the host."""
    plain = place.is_contiguous() and values.is_contiguous() and place.dtype == values.dtype
    if not plain or place.shape != values.shape or place.nbytes < 2 * PIECE:
        place.copy_(values)
        return
    to, source = place.view(-1), values.view(-1)

    def copied(begin: int, end: int) -> None:
        to[begin:end].copy_(source[begin:end])

    list(_shared_out(copied, to.numel(), place.element_size()))


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of one size and dtype in the memory of the host are equal bit by bit,
    because NaN is a value here."""
    ours, theirs = left.contiguous(), right.contiguous()
    size = ours.numel() * ours.element_size()
    first, second = ours.data_ptr(), theirs.data_ptr()

    def same(begin: int, end: int) -> bool:
        return bool(_memcmp(first + begin, second + begin, end - begin) == 0)

    return not size or all(_shared_out(same, size, 1))


def _shared_out(work: Callable[[int, int], T], count: int, size: int) -> Iterable[T]:
    """What `work` returns for each piece, from one number to another, of `count` elements of so
    many bytes."""
    pieces = max(1, min(torch.get_num_threads(), MOST, count * size // PIECE))
    bounds = [count * number // pieces for number in range(pieces + 1)]
    if pieces == 1:
        return [work(0, count)]
    return _workers(os.getpid()).map(work, bounds[:-1], bounds[1:])


@cache
def _workers(process: int) -> ThreadPoolExecutor:
    """The threads of this process; a fork has none of them."""
    return ThreadPoolExecutor(MOST, thread_name_prefix="arrays")
