"""Elements read from another process's memory, at places that it is not told."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Callable

import pytest
import torch

from optimizer.evaluation.isolation.runner_process import (
    Looks,
    MemoryUnreadable,
    may_read,
    outputs_of,
    read_memory,
)
from optimizer.evaluation.runner.samples import (
    DRAW_BYTES,
    READABLE,
    TOKEN_BYTES,
    draw_in,
    places,
    read_elements,
    resolved,
    seed_in,
    show,
    token,
)

DRAW, OTHER = bytes(range(8)), bytes(range(8, 16))
OWN = os.getpid()
libc = ctypes.CDLL(None, use_errno=True)


def expected(values: list[torch.Tensor]) -> list[tuple[str, tuple[int, ...]]]:
    return [(str(value.dtype)[6:], tuple(value.shape)) for value in values]


def looked(values: list[torch.Tensor], change: Callable[[], object] = lambda: None) -> Looks:
    """What is seen of outputs that `change` changes after the call has ended."""
    looks = Looks(OWN, outputs_of(expected(values)), [DRAW])
    shown = show(kept := resolved(values), OTHER)
    assert kept and len(shown) == looks.bytes
    change()
    looks(0, shown)
    return looks


def test_the_same_elements_are_read_from_outside_as_from_inside() -> None:
    wide, ids = torch.randn(6, 40), torch.arange(30).view(5, 6)
    values = [wide[:, 3:20], ids.t(), torch.empty(0, 4), torch.tensor(2.5), torch.ones(1).expand(9)]
    looks = looked(values)
    assert looks.looks == [read_elements(values, DRAW)]
    assert not looks.late and not looks.refused


def test_a_conjugate_view_is_read_as_what_it_is() -> None:
    values = [torch.randn(7, dtype=torch.complex64).conj(), torch.randn(5)]
    assert looked(values).looks == [read_elements(resolved(values), DRAW)]


def test_outputs_that_change_after_the_call_are_late() -> None:
    """All of them, or one that was read when the call had ended."""
    value = torch.zeros(1000)
    assert looked([value], lambda: value.fill_(1)).late == 1
    value = torch.zeros(1000)
    (peeked,) = places(OTHER, [1000], 3)
    assert looked([value], lambda: value[list(peeked)].fill_(1)).late == 0  # a copy is changed
    assert looked([value], lambda: value.index_fill_(0, torch.tensor(peeked[:1]), 1)).late == 1


def test_a_page_that_nobody_may_read_is_not_filled_for_us() -> None:
    """Rows 36 and 42: no handler of the candidate is called."""
    held = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    value = torch.frombuffer(held, dtype=torch.float32)
    address, size = ctypes.c_void_p(value.data_ptr()), ctypes.c_size_t(len(held))
    looks = looked([value], lambda: assert_zero(libc.mprotect(address, size, 0)))
    assert_zero(libc.mprotect(address, size, mmap.PROT_READ | mmap.PROT_WRITE))
    assert looks.refused and not looks.looks


def assert_zero(answer: int) -> None:
    assert answer == 0, os.strerror(ctypes.get_errno())


def test_inputs_are_looked_at_where_both_map_them() -> None:
    given = torch.arange(100, dtype=torch.float32)
    looks = Looks(OWN, outputs_of([("float32", (3,))]), [DRAW, DRAW], [given])
    shown = show([torch.randn(3)], OTHER)
    looks(0, shown)
    given += 1
    looks(1, shown)
    before, after = (
        torch.frombuffer(bytearray(data), dtype=torch.float32) for data in looks.inputs
    )
    assert torch.equal(after, before + 1)


def test_memory_that_is_not_there_and_processes_that_are_not_there() -> None:
    with pytest.raises(MemoryUnreadable):
        read_memory(OWN, [(8, 8)])
    word = ctypes.c_uint64(READABLE)
    assert may_read(OWN, ctypes.addressof(word))
    assert not may_read(2**22 - 1, ctypes.addressof(word))
    many = [(ctypes.addressof(word), 8)] * 3000
    assert struct.unpack("3000Q", read_memory(OWN, many)) == (READABLE,) * 3000


def test_a_token_says_what_it_carries() -> None:
    given = token(True, OTHER, DRAW)
    assert len(given) == TOKEN_BYTES and given[:1] == b"c"
    assert seed_in(given) == int.from_bytes(OTHER, "little") and draw_in(given) == DRAW
    assert token(False, OTHER, bytes(DRAW_BYTES))[:1] == b"e"
