"""Copies and comparisons of large arrays by several threads."""

from __future__ import annotations

import ctypes
import mmap

import pytest
import torch

from optimizer.evaluation import shared_arrays
from optimizer.evaluation.runner.memory import PAGE
from optimizer.evaluation.shared_arrays import PIECE, copy_into, same_bits

ELEMENTS = 5 * PIECE // 4 + 3


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_every_element_is_copied_and_compared(threads: int) -> None:
    values = torch.randn(ELEMENTS)
    values[7] = float("nan")
    copy = torch.zeros(ELEMENTS)
    copy_into(copy, values)
    assert same_bits(copy, values)
    for at in (0, ELEMENTS // 3, ELEMENTS // 2, ELEMENTS - 1):
        changed = copy.clone()
        changed[at] += 1
        assert not same_bits(changed, values), at


def test_arrays_of_any_layout_are_copied(threads: int) -> None:
    wide = torch.randn(3, ELEMENTS // 3)
    target = torch.zeros(ELEMENTS // 3, 3)
    copy_into(target, wide.t())
    assert same_bits(target, wide.t())
    half = torch.zeros(3, ELEMENTS // 3, dtype=torch.bfloat16)
    copy_into(half, wide)
    assert torch.equal(half, wide.bfloat16())
    copy_into(torch.empty(0), torch.empty(0))
    assert same_bits(torch.empty(0), torch.empty(0))


def test_pages_of_new_memory_are_touched_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_arrays, "POPULATED", 1 << 20)
    memory = mmap.mmap(-1, 5 << 20)
    values = torch.frombuffer(memory, dtype=torch.uint8)

    def entered() -> list[bool]:
        states = (ctypes.c_ubyte * (len(memory) // PAGE))()
        begin = ctypes.c_void_p(values.data_ptr())
        assert ctypes.CDLL(None).mincore(begin, len(memory), states) == 0
        return [bool(state & 1) for state in states]

    assert not any(entered())
    shared_arrays._populate(values.data_ptr() + 100, len(memory) - 5000)
    assert [not state for state in entered()] == [True, *[False] * 1277, True, True]
    shared = shared_arrays.SharedStore().take([("uint8", (5 << 20,)), ("float32", (300,))])
    assert not any(tensor.any() for tensor in shared.arrays.tensors)
    shared.close()
