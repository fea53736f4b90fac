"""Outputs of a call: completed within it, or refused."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import pytest
import torch

from optimizer.evaluation.correctness.prepared import uneven_values
from optimizer.evaluation.problem.open_case import sharing
from optimizer.evaluation.runner.memory import (
    HeldMemory,
    KernelReader,
    OutputRefused,
    check,
    settled,
)

WRAPPED = {
    "zero": lambda: torch._efficientzerotensor((2, 3)),
    "functional": lambda: torch._to_functional_tensor(torch.ones(2, 3)),
    "sparse": lambda: torch.eye(2, 3).to_sparse(),
    "meta": lambda: torch.empty(2, 3, device="meta"),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_wrapped_tensor_is_refused(kind: str) -> None:
    with pytest.raises(OutputRefused):
        check(settled(WRAPPED[kind]()), [("float32", [2, 3])])


def test_container_is_read_as_it_is_stored() -> None:
    class Late(list[Any]):
        def __getitem__(self, at: Any) -> Any:
            return torch.ones(1)

    class Named(tuple[torch.Tensor, ...]):
        def __getitem__(self, at: Any) -> Any:
            return tuple.__getitem__(self, 0 if at == "result" else at)

    with pytest.raises(OutputRefused, match="NoneType"):
        check(settled(Late([None])), [("float32", [1])])
    assert check(settled(Named((torch.ones(1),))), [("float32", [1])])


def test_lazy_views_are_settled() -> None:
    value = torch.randn(3, 4)
    negated = settled(torch.ops.aten._neg_view(value.t()))
    assert not negated.is_neg() and torch.equal(negated, -value.t())
    (spread,) = settled((value[:, :1].expand(3, 4),))
    assert spread.is_contiguous() and torch.equal(spread, value[:, :1].expand(3, 4))
    assert settled(value.t()).data_ptr() == value.data_ptr()
    assert settled(value[:, 1:3]).data_ptr() == value[:, 1:].data_ptr()
    assert settled(value.flatten().unfold(0, 4, 1)).is_contiguous()
    parameter = settled(torch.nn.Parameter(torch.ops.aten._neg_view(value)))
    assert type(parameter) is torch.Tensor and not parameter.is_neg()


def test_attribute_of_a_tensor_replaces_no_method() -> None:
    value = torch.ones(2)
    value.detach = lambda: torch.zeros(2)  # type: ignore[method-assign]
    assert torch.equal(settled(value).detach(), torch.ones(2))


def test_shared_memory_is_refused_unless_the_reference_shares_it() -> None:
    value, form = torch.randn(4, 4), [("float32", [4, 4])]
    held = HeldMemory([None, torch.randn(2), value])
    with pytest.raises(OutputRefused, match="memory of an input or weight"):
        check([value.t()], form, held=held)
    assert check([value.t()], form, held=held, shared=sharing([value.t()], [value]))
    own = torch.randn(4, 4)
    with pytest.raises(OutputRefused, match="memory of another output"):
        check([own, own.t()], form * 2, held=held)
    long = torch.randn(32)
    nested = HeldMemory([long, long[4:8]])
    with pytest.raises(OutputRefused, match="memory of an input or weight"):
        check([long[16:].view(4, 4)], form, held=nested)
    buffer = torch.randn(4, 4, 2)  # outputs of a fused kernel, interleaved
    assert check([buffer[..., 0], buffer[..., 1]], form * 2, held=held)
    packed = torch.randn(2, 6, 4)
    with pytest.raises(OutputRefused, match="memory of another output"):
        check([packed[0, :4], packed[0, 2:]], form * 2, held=held)


def test_closed_page_is_refused() -> None:
    memory = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    value = torch.frombuffer(memory, dtype=torch.float32).fill_(1.0)
    reader = KernelReader()
    reader.touch([value])
    assert reader.read([(value.data_ptr(), 4)]) == bytes(value[:1].numpy())
    libc = ctypes.CDLL(None, use_errno=True)
    page = ctypes.c_void_p(value.data_ptr() + 2 * mmap.PAGESIZE)
    assert libc.mprotect(page, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    with pytest.raises(OutputRefused, match="closed"):
        reader.touch([value])
    libc.mprotect(page, ctypes.c_size_t(mmap.PAGESIZE), 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_uneven_values_stay_in_range(dtype: torch.dtype) -> None:
    value = torch.rand(64, 512).add_(0.5).to(dtype)
    value[:, :100] = 0
    uneven = uneven_values(value, 3)
    assert uneven is not None and uneven.dtype == dtype and uneven.shape == value.shape
    value, uneven = value.float(), uneven.float()
    assert bool((uneven[:, :100] == 0).all())
    assert bool((uneven[:, 100:].std(dim=0) > 0).all())
    rest = uneven[:, 100:]
    assert rest.min() >= value[value > 0].min() and rest.max() <= value.max()
    assert uneven_values(torch.arange(4096.0), 3) is None


def test_half_of_an_uneven_row_shows_another_mean() -> None:
    value = torch.randn(64, 65536)
    uneven = uneven_values(value, 5)
    assert uneven is not None
    whole = uneven.sin().exp().mean(dim=1)
    half = uneven.view(64, -1, 2, 256)[:, :, 0].flatten(1).sin().exp().mean(dim=1)
    assert ((half - whole).abs() / whole).max() > 0.02
