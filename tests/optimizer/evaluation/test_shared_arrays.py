"""Copies and comparisons of large arrays by several threads."""

from __future__ import annotations

import pytest
import torch

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
