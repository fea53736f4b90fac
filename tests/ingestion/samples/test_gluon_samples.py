"""The Gluon samples for Blackwell on a simulation of their calls, because no such device is
available.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.ingestion.samples import gluon_barriers, gluon_machine

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[3] / "hw_manuals" / "samples" / "blackwell"


def _matrix(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(16, 32, 16), (40, 70, 100), (33, 200, 8)])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize(
    "name, function",
    [
        ("gemm-gluon-tcgen05.py", "tcgen05_gemm"),
        ("gemm-gluon-persistent.py", "persistent_gemm"),
        ("gemm-gluon-cta-pair.py", "pair_gemm"),
    ],
)
def test_products_equal_float64(
    name: str, function: str, shape: tuple[int, int, int], stages: int
) -> None:
    M, N, K = shape
    a, b = _matrix(M, K, 0), _matrix(N, K, 1)
    multiply = getattr(gluon_machine.sample(FOLDER / name), function)
    c = multiply(a, b, block_m=16, block_n=32, block_k=16, stages=stages, piece=8)
    torch.testing.assert_close(c, a @ b.T, rtol=1e-12, atol=1e-12)


def test_block_scaled_product_equals_float64() -> None:
    rows, columns, depth = 200, 300, 416  # 13 scales per row: packing pads all three
    module = gluon_machine.sample(FOLDER / "mxfp8-gemm-gluon.py")
    a, b = _matrix(rows, depth, 0), _matrix(columns, depth, 1)
    generator = torch.Generator().manual_seed(2)
    a_scales = torch.randint(120, 134, (rows, depth // 32), generator=generator).to(torch.uint8)
    b_scales = torch.randint(120, 134, (columns, depth // 32), generator=generator).to(torch.uint8)
    c = module.mxfp8_gemm(
        a, b, module.pack_scales(a_scales), module.pack_scales(b_scales), stages=2
    )
    left = a * torch.exp2(a_scales.double() - 127).repeat_interleave(32, 1)
    right = b * torch.exp2(b_scales.double() - 127).repeat_interleave(32, 1)
    expected = left @ right.T
    assert (c.double() - expected).norm() / expected.norm() < 3e-3  # the result is bf16


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [16, 40, 100])
def test_attention_equals_float64(length: int, causal: bool) -> None:
    attention = gluon_machine.sample(FOLDER / "attention-gluon.py").attention
    generator = torch.Generator().manual_seed(length)
    q, k, v = (
        3 * torch.randn(2, heads, length, 128, generator=generator, dtype=torch.float64)
        for heads in (4, 2, 2)
    )
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=True
    )
    result = attention(q, k, v, causal=causal, block_m=16, block_n=16)
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)


def test_attention_of_transposed_tensors() -> None:
    """As a projection returns them: [batch][length][heads][128], viewed with the heads first."""
    attention = gluon_machine.sample(FOLDER / "attention-gluon.py").attention
    generator = torch.Generator().manual_seed(5)
    q, k, v = (
        torch.randn(2, 33, heads, 128, generator=generator, dtype=torch.float64).transpose(1, 2)
        for heads in (4, 2, 2)
    )
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    result = attention(q, k, v, causal=True, block_m=16, block_n=16)
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "name, function",
    [
        ("gemm-gluon-persistent.py", "persistent_gemm"),
        ("gemm-gluon-cta-pair.py", "pair_gemm"),
    ],
)
def test_odd_number_of_pieces_is_refused(name: str, function: str) -> None:
    """The last piece of a tile and the first of the next would use the same half of the ring."""
    multiply = getattr(gluon_machine.sample(FOLDER / name), function)
    a, b = _matrix(32, 16, 0), _matrix(48, 16, 1)
    with pytest.raises(AssertionError, match="static_assert"):
        multiply(a, b, block_m=16, block_n=24, block_k=16, stages=2, piece=8)


RUNS = 8  # a missing wait is a race, which may give the right result
PERSISTENT = ("gemm-gluon-persistent.py", "persistent_gemm")
PAIR = ("gemm-gluon-cta-pair.py", "pair_gemm")


@pytest.mark.parametrize(
    "sample, right, wrong",
    [
        (PERSISTENT, "mbarrier.wait(empty.index(slot), count // STAGES & 1 ^ 1)", "pass"),
        (PERSISTENT, "mbarrier.wait(full.index(slot), count // STAGES & 1)", "pass"),
        (PERSISTENT, "mbarrier.wait(drained.index(turn), done // ACCUMULATORS & 1 ^ 1)", "pass"),
        (PERSISTENT, "tma.store_wait(pendings=1)", "pass"),
        (PERSISTENT, "mbarrier.wait(summed.index(turn), done // ACCUMULATORS & 1)", "pass"),
        (PERSISTENT, "mbarriers=[empty.index(slot)]", "mbarriers=[]"),
        (PERSISTENT, "tcgen05_commit(summed.index(turn))", "pass"),
        (
            PAIR,
            "mbarrier.wait(drained.index(done % ACCUMULATORS), done // ACCUMULATORS & 1 ^ 1)",
            "pass",
        ),
        (
            PAIR,
            "full = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=True)",
            "full = mbarrier.allocate_mbarrier(batch=STAGES)",
        ),
        (PAIR, "multicast=True, mbarriers=[empty.index(slot)]", "multicast=True, mbarriers=[]"),
    ],
)
def test_simulation_detects_missing_wait_or_commit(
    sample: tuple[str, str],
    right: str,
    wrong: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, function = sample
    monkeypatch.setattr(gluon_barriers, "PATIENCE", 0.5)
    monkeypatch.setattr(gluon_machine, "PAUSE", 2e-3)
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert right in text
    changed = tmp_path / "changed.py"
    changed.write_text(text.replace(right, wrong), encoding="utf-8")
    a, b = _matrix(96, 16, 0), _matrix(96, 16, 1)
    multiply = getattr(gluon_machine.sample(changed), function)
    for _ in range(RUNS):
        try:
            c = multiply(a, b, block_m=16, block_n=32, block_k=16, stages=2, piece=8)
        except (gluon_barriers.WaitsForever, AssertionError):
            return
        if not torch.allclose(c, a @ b.T):
            return
    pytest.fail(f"{RUNS} runs without {right!r} were right")
