"""The error bound accepts honest arithmetic and rejects wrong or too coarse results."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from optimizer.evaluation.problem.bounds import (
    Pointed,
    agree,
    allowed,
    compare,
    plainly_equal,
    with_scale_of,
    within,
)
from optimizer.evaluation.records import OutputError

LONG = 65_536


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def passes(
    output: torch.Tensor,
    golden: torch.Tensor,
    reference: torch.Tensor,
    terms: int,
    relaxed: bool = False,
) -> bool:
    dtype = str(reference.dtype).removeprefix("torch.")
    bound = allowed(golden, reference, "float", dtype, terms, relaxed=relaxed)
    return compare(output, golden, bound).ok


def test_honest_sequential_sum_passes() -> None:
    x = draw(64, LONG) + 1
    sequential = torch.zeros(64)
    for start in range(0, LONG, 64):  # columns in order, one running sum per row
        for column in x[:, start : start + 64].unbind(1):
            sequential = sequential + column
    assert passes(sequential, x.double().sum(1), x.sum(1), LONG)


def test_dropping_thousandth_of_terms_fails() -> None:
    x = draw(64, LONG) + 1
    assert not passes(x[:, :-64].sum(1), x.double().sum(1), x.sum(1), LONG)


def test_softmax_through_float16_fails() -> None:
    x = draw(32, 1024)
    golden, reference = x.double().softmax(1), x.softmax(1)
    assert passes((x - 3).exp() / (x - 3).exp().sum(1, keepdim=True), golden, reference, 1024)
    assert not passes(x.half().softmax(1).float(), golden, reference, 1024)


def test_bfloat16_matmul_passes_only_with_relaxed_policy() -> None:
    a, b = draw(96, 1024), draw(1024, 64, seed=1)
    golden, reference = a.double() @ b.double(), a @ b
    coarse = (a.bfloat16().float() @ b.bfloat16().float()).float()
    halves = a[:, :512] @ b[:512] + a[:, 512:] @ b[512:]
    assert passes(halves, golden, reference, 1024)
    assert not passes(coarse, golden, reference, 1024)
    assert passes(coarse, golden, reference, 1024, relaxed=True)


def test_mean_of_a_cancelling_reference_fails() -> None:
    """E[x^2] - E[x]^2 at mean 3000 has an error above its result, and so has any bound derived from
    it.
    """
    x = draw(512, 1024) + 3000
    golden = x.double().var(1, correction=0)
    bad = x.square().mean(1) - x.mean(1).square()
    assert passes(golden.mean().float().expand(512), golden, bad, 1024)
    good = x.var(1, correction=0)
    assert not passes(golden.mean().float().expand(512), golden, good, 1024)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_missing_bias_of_a_long_16_bit_row_fails(dtype: torch.dtype) -> None:
    x, scale = draw(64, 4096).to(dtype), (draw(4096).abs() + 0.5).to(dtype)
    bias = draw(4096, seed=2).clamp(-0.5, 0.5).to(dtype)
    wide = [t.double() for t in (x, scale, bias)]
    norm = torch.nn.functional.layer_norm
    golden = norm(wide[0], (4096,), wide[1], wide[2])
    reference = norm(x, (4096,), scale, bias)
    in_float32 = norm(x.float(), (4096,), scale.float(), bias.float()).to(dtype)
    assert passes(in_float32, golden, reference, 4096)
    assert not passes(norm(x, (4096,), scale), golden, reference, 4096)


def test_one_wrong_element_among_many_fails() -> None:
    x = draw(256, 512)
    wrong = x * 2
    wrong[200, 17] += 0.01
    bound = allowed(x.double() * 2, x * 2, "float", "float32", 1)
    error = compare(wrong, x.double() * 2, bound)
    assert not error.ok and error.where == (200, 17)
    assert error.quantile <= error.quantile_allowed < error.worst


def test_error_of_a_row_is_relative_to_its_own_size() -> None:
    x = draw(8, 64) * torch.logspace(-6, 0, 8).unsqueeze(1)
    wrong = x.clone()
    wrong[0] = 0  # negligible beside the other rows, the whole of its row
    assert not passes(wrong, x.double(), x, 1)


def test_nan_is_correct_only_where_reference_has_it() -> None:
    x = draw(4, 64)
    x[0, 0], x[1, 1] = -1.0, math.inf
    golden, reference = x.double().log(), x.log()
    assert passes(reference.clone(), golden, reference, 1)
    everywhere = torch.full_like(reference, math.nan)
    assert not passes(everywhere, golden, reference, 1)
    assert not passes(reference.nan_to_num(nan=0.0), golden, reference, 1)
    other = reference.clone()
    other[1, 1] = -math.inf
    assert not passes(other, golden, reference, 1)


def test_finite_value_where_reference_overflows_passes() -> None:
    golden = torch.full((1, 64), 70_000.0, dtype=torch.float64)
    reference = golden.half()
    assert reference.isinf().all()
    assert passes(reference.clone(), golden, reference, 1)
    assert not passes(-reference, golden, reference, 1)


def test_exact_outputs_are_exact() -> None:
    x = draw(4, 64)
    bound = allowed(x.double(), x, "exact", "float32", 1)
    assert compare(x.clone(), x.double(), bound).ok
    wrong = x.clone()
    wrong[2, 3] = torch.nextafter(wrong[2, 3], torch.tensor(9.0))
    error = compare(wrong, x.double(), bound)
    assert not error.ok and error.where == (2, 3) and error.worst == pytest.approx(1 / 256)
    assert not compare(x.double(), x.double(), bound).ok  # another dtype is another output


def test_indices_are_compared_by_values_they_select() -> None:
    source = torch.tensor([[1.0, 5.0, 5.0], [2.0, 0.0, 1.0]])
    right = source.argmax(1)
    bound = allowed(right, right, "index", "int64", 1, pointed=Pointed(source, 1))
    assert compare(torch.tensor([2, 0]), right, bound).ok
    assert compare(torch.tensor([1, 0]), right, bound).ok
    assert not compare(torch.tensor([0, 0]), right, bound).ok
    assert not compare(torch.tensor([1, 3]), right, bound).ok
    assert not compare(torch.tensor([1, -1]), right, bound).ok


def test_scalars_and_empty_outputs_have_bounds() -> None:
    one = torch.tensor(3.0)
    assert passes(one, one.double(), one, 8)
    assert not passes(one * 1.01, one.double(), one, 8)
    empty = torch.empty(0, 4)
    assert passes(empty, empty.double(), empty, 1)
    bound = allowed(empty.double(), empty, "float", "float32", 1)
    assert plainly_equal(empty, empty, bound)


def test_partial_and_full_comparison_agree() -> None:
    x = draw(1024, 64)
    bound = allowed(x.double(), x, "float", "float32", 1)
    one_off = x.clone()
    one_off[777, 3] += 1  # outside the slices compared first
    for output, right in ((x, True), (x + 1, False), (one_off, False), (x * math.nan, False)):
        assert compare(output, x.double(), bound).ok is right
        assert within(output, x.double(), bound) is right


def test_differing_counts_are_share_not_a_size() -> None:
    """One of 1,501 is wrong, by any amount."""
    error = OutputError("output1", "exact", 1 / 1501, 0.0, 1 / 1501, 0.0, (7,))
    assert error.in_words() == (
        "output1 is wrong in a share of 0.000666 of its elements, one of them at [7],"
        " where none may be"
    )
    called = error.in_words("output1 of a timed call")
    assert called.startswith("output1 of a timed call is wrong in a share of 0.000666")


def test_empty_slice_of_case_is_scaled_by_outputs_of_a_call() -> None:
    golden = torch.zeros(4, 48, dtype=torch.float64)
    golden[0] = torch.randn(48, dtype=torch.float64)
    bound = allowed(golden, golden.float(), "float", "float32", 48)
    called = torch.randn(4, 48)
    called[2, 5] = 1e-4  # where terms cancel
    rounded = called.clone()
    rounded[2, 5] += 1e-7
    assert not plainly_equal(rounded, called, bound)
    rescaled = with_scale_of(bound, called)
    assert plainly_equal(rounded, called, rescaled)
    assert compare(rounded, called.double(), replace(rescaled, reference=called)).ok
    at = torch.tensor([2 * 48 + 5])
    ours, theirs = rounded.flatten()[at], called.flatten()[at]
    assert agree(ours, theirs, at, rescaled) and not agree(ours, theirs, at, bound)
    rounded[2, 5] += 1e-2
    assert not compare(rounded, called.double(), replace(rescaled, reference=called)).ok
    smaller = with_scale_of(bound, torch.zeros(4, 48)).scale
    assert smaller is not None and bound.scale is not None and torch.equal(smaller, bound.scale)
