"""Elements read from another process's memory, at positions unknown to it."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Callable

import pytest
import torch

from optimizer.evaluation.isolation.runner_process import (
    MemoryUnreadable,
    OutputSampler,
    may_read,
    read_memory,
    sampled_outputs,
)
from optimizer.evaluation.runner.memory import (
    READABLE,
    drawn_elements,
    read_elements,
    report,
    resolved,
)
from optimizer.evaluation.runner.wire import DRAW_BYTES, TOKEN_BYTES, draw_in, seed_in, token

DRAW, OTHER = bytes(range(8)), bytes(range(8, 16))
OWN = os.getpid()
libc = ctypes.CDLL(None, use_errno=True)


def expected(values: list[torch.Tensor]) -> list[tuple[str, tuple[int, ...]]]:
    return [(str(value.dtype)[6:], tuple(value.shape)) for value in values]


def sampled(
    values: list[torch.Tensor], change: Callable[[], object] = lambda: None
) -> OutputSampler:
    """Samples of outputs that `change` modifies after the call."""
    sampler = OutputSampler(OWN, sampled_outputs(expected(values)), [DRAW])
    reported = report(held := resolved(values), OTHER)
    assert held and len(reported) == sampler.report_bytes
    change()
    sampler(0, reported)
    return sampler


def test_elements_read_from_outside_equal_those_inside() -> None:
    wide, ids = torch.randn(6, 40), torch.arange(30).view(5, 6)
    values = [wide[:, 3:20], ids.t(), torch.empty(0, 4), torch.tensor(2.5), torch.ones(1).expand(9)]
    sampler = sampled(values)
    assert sampler.samples == [read_elements(values, DRAW)]
    assert not sampler.changed_late and not sampler.error


def test_conjugate_view_is_resolved() -> None:
    values = [torch.randn(7, dtype=torch.complex64).conj(), torch.randn(5)]
    assert sampled(values).samples == [read_elements(resolved(values), DRAW)]


def test_outputs_changed_after_call_are_late() -> None:
    """All of them, or one read at the end of the call."""
    value = torch.zeros(1000)
    assert sampled([value], lambda: value.fill_(1)).changed_late == 1
    value = torch.zeros(1000)
    (early,) = drawn_elements(OTHER, [1000], 3)
    assert sampled([value], lambda: value[list(early)].fill_(1)).changed_late == 0  # a copy
    change = sampled([value], lambda: value.index_fill_(0, torch.tensor(early[:1]), 1))
    assert change.changed_late == 1


def test_unreadable_page_calls_no_handler() -> None:
    """Rows 36 and 42: no handler of the candidate is called."""
    held = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    value = torch.frombuffer(held, dtype=torch.float32)
    address, size = ctypes.c_void_p(value.data_ptr()), ctypes.c_size_t(len(held))
    sampler = sampled([value], lambda: assert_zero(libc.mprotect(address, size, 0)))
    assert_zero(libc.mprotect(address, size, mmap.PROT_READ | mmap.PROT_WRITE))
    assert sampler.error and not sampler.samples


def assert_zero(answer: int) -> None:
    assert answer == 0, os.strerror(ctypes.get_errno())


def test_shared_inputs_are_sampled() -> None:
    given = torch.arange(100, dtype=torch.float32)
    sampler = OutputSampler(OWN, sampled_outputs([("float32", (3,))]), [DRAW, DRAW], [given])
    reported = report([torch.randn(3)], OTHER)
    sampler(0, reported)
    given += 1
    sampler(1, reported)
    before, after = (
        torch.frombuffer(bytearray(data), dtype=torch.float32) for data in sampler.inputs
    )
    assert torch.equal(after, before + 1)


def test_unmapped_memory_and_missing_processes() -> None:
    with pytest.raises(MemoryUnreadable):
        read_memory(OWN, [(8, 8)])
    word = ctypes.c_uint64(READABLE)
    assert may_read(OWN, ctypes.addressof(word))
    assert not may_read(2**22 - 1, ctypes.addressof(word))
    many = [(ctypes.addressof(word), 8)] * 3000
    assert struct.unpack("3000Q", read_memory(OWN, many)) == (READABLE,) * 3000


def test_token_contains_seed_and_draw() -> None:
    given = token(True, OTHER, DRAW)
    assert len(given) == TOKEN_BYTES and given[:1] == b"c"
    assert seed_in(given) == int.from_bytes(OTHER, "little") and draw_in(given) == DRAW
    assert token(False, OTHER, bytes(DRAW_BYTES))[:1] == b"e"
