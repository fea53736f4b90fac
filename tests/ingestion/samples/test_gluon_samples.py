"""The Gluon samples for Blackwell on a simulation of their calls, because no such device is
available.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.ingestion.samples import gluon_barriers, gluon_machine

# -- the NVFP4 samples: the quantiser in Triton's interpreter, the product in the Gluon
# simulation, and both together

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
    [("gemm-gluon-persistent.py", "persistent_gemm"), ("gemm-gluon-cta-pair.py", "pair_gemm")],
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
    sample: tuple[str, str], right: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
TIES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


# Triton decides at import whether kernels are interpreted, so this needs a separate process.
CHILD = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("nvfp4_quantise", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
cases = torch.load(sys.argv[2])
torch.save([module.nvfp4_quantise(*case) for case in cases], sys.argv[2])
"""


@dataclass(frozen=True)
class Quantised:
    """A matrix and its quantisation by the sample."""

    x: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor
    tensor_scale: torch.Tensor

    def real(self) -> torch.Tensor:
        """The multiplied numbers in float64."""
        in_rows = _scales_in_rows(self.scales, len(self.values)).repeat_interleave(16, 1)
        return _decoded(self.values) * in_rows * self.tensor_scale.double()


def _spread(rows: int, depth: int) -> torch.Tensor:
    """Groups of sixteen of different magnitudes, the first all zero."""
    generator = torch.Generator().manual_seed(rows)
    powers = torch.exp2(torch.randint(-6, 7, (rows, depth // 16, 1), generator=generator))
    x = (torch.randn(rows, depth // 16, 16, generator=generator) * powers).reshape(rows, depth)
    x[0, :16] = 0.0
    return x


def _ties() -> torch.Tensor:
    x = torch.zeros(1, 64)
    x[0, 0], x[0, 1:8], x[0, 8:15] = 6.0, TIES, -TIES
    return x


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Quantised]:
    """The matrices of these tests by name, quantised by the interpreted sample."""
    generator = torch.Generator().manual_seed(4)
    cases: dict[str, tuple[torch.Tensor, ...]] = {
        "3 x 64": (_spread(3, 64),),
        "130 x 192": (_spread(130, 192),),
        "ties": (_ties(), torch.ones(1)),
        # Neither fills its blocks, and K is not a multiple of the step.
        "A": (torch.randn(200, 320, generator=generator),),
        "B": (torch.randn(300, 320, generator=generator),),
    }
    path = tmp_path_factory.mktemp("nvfp4") / "cases.pt"
    torch.save(list(cases.values()), path)
    command = [sys.executable, "-c", CHILD, str(FOLDER / "nvfp4-quantise.py"), str(path)]
    subprocess.run(command, check=True, env={**os.environ, "TRITON_INTERPRET": "1"})
    return {
        name: Quantised(case[0], *made)
        for (name, case), made in zip(cases.items(), torch.load(path), strict=True)
    }


def _decoded(packed: torch.Tensor) -> torch.Tensor:
    """E2M1 bytes [rows][K/2] as float64 [rows][K], the low half first."""
    codes = torch.stack((packed & 15, packed >> 4), dim=2).reshape(packed.shape[0], -1).long()
    return VALUES[codes & 7] * (1 - 2 * (codes >> 3))


def _scales_in_rows(packed: torch.Tensor, rows: int) -> torch.Tensor:
    """[1][blocks][K/64][2][256] as float64 [rows][K/16], one element at a time as the layout is
    documented.
    """
    _, blocks, fours, _, _ = packed.shape
    flat = packed.to(torch.float64).reshape(blocks, fours, 512)
    result = torch.empty(rows, fours * 4, dtype=torch.float64)
    for row in range(rows):
        for group in range(fours * 4):
            byte = 16 * (row % 32) + 4 * (row % 128 // 32) + group % 4
            result[row, group] = flat[row // 128, group // 4, byte]
    return result


@pytest.mark.parametrize("name", ["3 x 64", "130 x 192"])
def test_quantised_values_are_nearest_with_scales_in_tcgen05_order(
    quantised: dict[str, Quantised], name: str
) -> None:
    case = quantised[name]
    rows, tensor = len(case.x), case.tensor_scale.double()
    groups = case.x.double().reshape(rows, -1, 16)
    exact = groups.abs().amax(2) / (6 * tensor)
    rounded = exact.float().to(torch.float8_e4m3fn).double()
    written = _scales_in_rows(case.scales, rows)
    # Triton 3.7.1's interpreter loses the carry into the exponent: 1.95 becomes 1, not 2.
    lost = (rounded.log2() % 1 == 0) & (exact < rounded) & (written == rounded / 2)
    assert torch.equal(torch.where(lost, rounded, written), rounded)

    decoded = _decoded(case.values).reshape(rows, -1, 16)
    factor = (written * tensor)[:, :, None]
    scaled = torch.where(factor > 0, groups / factor, torch.zeros(())).clamp(-6, 6)
    nearest = (scaled.abs()[..., None] - VALUES).abs().amin(-1)
    assert ((scaled - decoded).abs() <= nearest + 1e-6).all()


def test_ties_round_to_even_code(quantised: dict[str, Quantised]) -> None:
    rounded = torch.tensor([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0], dtype=torch.float64)
    decoded = _decoded(quantised["ties"].values)[0]
    assert decoded[0] == 6
    assert torch.equal(decoded[1:8], rounded) and torch.equal(decoded[8:15], -rounded)


def test_product_of_quantised_matrices_equals_float64(quantised: dict[str, Quantised]) -> None:
    a, b = quantised["A"], quantised["B"]
    product = gluon_machine.sample(FOLDER / "nvfp4-gemm-gluon.py")
    alpha = a.tensor_scale * b.tensor_scale
    c = product.nvfp4_gemm(a.values, b.values, a.scales, b.scales, alpha, stages=2)
    expected = a.real() @ b.real().T
    assert (c.double() - expected).norm() / expected.norm() < 3e-3  # the result is bf16
    # The quantisation is close to the input: four bits leave about ten per cent.
    assert (a.real() - a.x.double()).norm() / a.x.double().norm() < 0.12


def test_both_packings_of_scales_are_equal(quantised: dict[str, Quantised]) -> None:
    scales = quantised["130 x 192"].scales
    in_rows = _scales_in_rows(scales, 130).to(torch.float8_e4m3fn)
    packed = gluon_machine.sample(FOLDER / "nvfp4-gemm-gluon.py").pack_scales(in_rows)
    assert torch.equal(packed.view(torch.uint8), scales.view(torch.uint8))
