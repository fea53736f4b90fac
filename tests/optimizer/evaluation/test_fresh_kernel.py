"""The kernel that makes fresh values on a GPU, which has to make those that torch makes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from optimizer.evaluation.runner.fresh import KINDS, GpuValueWriter, ptx
from optimizer.evaluation.runner.memory import finish, refresh

HELD = 40_000  # elements of a bank at most: larger tensors have several parts
SIZES = (1, 2, 3, 50, 999, 70_000, 1_234_567)
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)


def test_its_kernels_are_what_the_assembler_takes(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    if not assembler.exists():
        pytest.skip("Triton has no assembler here")
    for kind in KINDS:
        source = tmp_path / f"{kind}.ptx"
        source.write_text(ptx(kind), encoding="ascii")
        command = [str(assembler), "-arch=sm_75", str(source), "-o", str(tmp_path / "fresh")]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr


def test_without_a_gpu_values_are_made_by_torch() -> None:
    banks = [torch.randn(3_000), torch.randint(0, 9, (300,))]
    plain, by_writer = ([bank.clone() for bank in banks] for _ in range(2))
    writer = GpuValueWriter()
    writer.prepare(banks)
    left = refresh(plain, banks, seed=3, call=0, late=True)
    also = refresh(by_writer, banks, seed=3, call=0, late=True, write=writer)
    assert all(map(torch.equal, plain, by_writer)) and len(left) == len(also) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spread", [True, False])
def test_it_makes_what_torch_makes(dtype: torch.dtype, spread: bool) -> None:
    near = [(3 * torch.randn(min(size, HELD))).to(dtype) for size in SIZES]
    banks = [bank.cuda() for bank in near]
    writer = GpuValueWriter()
    writer.prepare(banks)
    for seed in range(6):
        plain, ours = (
            [torch.zeros(size, dtype=dtype, device="cuda") for size in SIZES] for _ in range(2)
        )
        refresh(plain, banks, seed, 0, spread, near=near)
        left = refresh(ours, banks, seed, 0, spread, late=True, near=near, write=writer)
        for places, right in left:
            if dtype.is_floating_point:
                largest = max(float(bank.float().abs().max()) for bank in near)
                assert bool((places.float() > right.float().abs().max()).all())
                assert float(places.float().max()) <= 2 * largest + 2
            elif places.numel() > 1 and dtype is not torch.bool:
                assert sorted(map(str, places.tolist())) == sorted(map(str, right.tolist()))
        assert len(left) == 4
        finish(left)
        for size, theirs, made in zip(SIZES, plain, ours, strict=True):
            assert torch.equal(theirs, made), f"{size} elements, seed {seed}"
