"""Fresh values are equal on all devices and processes, and replaced generators are detected."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
import torch

from optimizer.evaluation.runner import fresh_values
from optimizer.evaluation.runner.clocks import original_functions, replaced
from optimizer.evaluation.runner.fresh_values import PTX, GpuValueWriter, ValueShift, apply, refresh

PIECES = [1, 3, 7, 100_001, 5, 60_000, 17]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rounded", [True, False])
def test_values_do_not_depend_on_number_of_threads(dtype: torch.dtype, rounded: bool) -> None:
    """The supervisor and a runner may have different numbers of threads."""
    values, move = (
        torch.randn(sum(PIECES), dtype=dtype),
        ValueShift(1 - 7 / 256, 0.3123456, rounded),
    )
    whole = move.of(values)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = move.of(values)
    finally:
        torch.set_num_threads(threads)
    parts = torch.cat([move.of(part) for part in values.split_with_sizes(PIECES)])
    assert torch.equal(whole, alone) and torch.equal(whole, parts)
    assert torch.equal(whole, move.of(values, torch.empty_like(values)))


@pytest.mark.parametrize("rounded", [True, False])
def test_default_device_of_a_candidate_has_no_effect(rounded: bool) -> None:
    bank = torch.randn(3_000)
    first, second = torch.empty(5_000), torch.empty(5_000)
    refresh([first], [bank], seed=5, rounded=rounded)
    with torch.device("meta"):
        refresh([second], [bank], seed=5, rounded=rounded)
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["random", "getrandbits", "randrange"])
def test_replaced_generator_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    originals, original = original_functions(), getattr(random.Random, name)
    assert not replaced(originals)
    monkeypatch.setattr(random.Random, name, lambda self, *of: original(self, *of), raising=False)
    assert replaced(originals)
    assert not replaced(originals, runner=False)


def test_replaced_functions_and_code_of_runner_are_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    originals = original_functions()
    with monkeypatch.context() as changed:
        changed.setattr(fresh_values, "_rotate", lambda *of: None)
        assert replaced(originals)
    assert not replaced(originals)
    monkeypatch.setattr(
        fresh_values._rotate, "__code__", (lambda flat, bank, chosen, move: None).__code__
    )
    assert replaced(originals)


# -- the kernel for GPUs

HELD = 40_000  # maximum elements of a bank: larger tensors have several parts
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


def test_assembler_accepts_kernels(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    if not assembler.exists():
        pytest.skip("Triton has no assembler")
    for kind, text in PTX.items():
        source = tmp_path / f"{kind}.ptx"
        source.write_text(text, encoding="ascii")
        command = [str(assembler), "-arch=sm_75", str(source), "-o", str(tmp_path / "fresh")]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr


def test_torch_writes_values_without_gpu() -> None:
    banks = [torch.randn(3_000), torch.randint(0, 9, (300,))]
    plain, by_writer = ([bank.clone() for bank in banks] for _ in range(2))
    writer = GpuValueWriter()
    writer.prepare(banks)
    left = refresh(plain, banks, seed=3, late=True)
    also = refresh(by_writer, banks, seed=3, late=True, write=writer)
    assert all(map(torch.equal, plain, by_writer)) and len(left) == len(also) == 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("spread", [True, False])
def test_kernel_and_torch_write_equal_values(dtype: torch.dtype, spread: bool) -> None:
    near = [(3 * torch.randn(min(size, HELD))).to(dtype) for size in SIZES]
    banks = [bank.cuda() for bank in near]
    writer = GpuValueWriter()
    writer.prepare(banks)
    for seed in range(6):
        plain, ours = (
            [torch.zeros(size, dtype=dtype, device="cuda") for size in SIZES] for _ in range(2)
        )
        refresh(plain, banks, seed, spread=spread, host_banks=near)
        left = refresh(ours, banks, seed, spread=spread, late=True, host_banks=near, write=writer)
        for elements, right in left:
            if dtype.is_floating_point:
                largest = max(float(bank.float().abs().max()) for bank in near)
                assert bool((elements.float() > right.float().abs().max()).all())
                assert float(elements.float().max()) <= 2 * largest + 2
            elif elements.numel() > 1 and dtype is not torch.bool:
                assert sorted(map(str, elements.tolist())) == sorted(map(str, right.tolist()))
        assert len(left) == 4
        apply(left)
        for size, theirs, made in zip(SIZES, plain, ours, strict=True):
            assert torch.equal(theirs, made), f"{size} elements, seed {seed}"


@pytest.mark.parametrize(
    "bank",
    [
        torch.randint(0, 1 << 20, (4_000,)),
        torch.randint(0, 1 << 20, (2_000, 2)),
        torch.rand(4_000) < 0.5,
        torch.relu(torch.randn(4_000)) * 3,
        torch.randn(4_000).half(),
        torch.randint(0, 5, (7,), dtype=torch.int8),
    ],
)
def test_values_of_every_dtype_are_new_in_every_call(bank: torch.Tensor) -> None:
    own = bank.clone()
    calls = []
    for seed in range(3):
        refresh([own], [bank.view(-1)], seed, rounded=False)
        calls.append(own.clone().view(-1))
    flat = bank.view(-1)
    for call in calls[1:]:
        turned = [(call == calls[0].roll(by)).float().mean() for by in range(0, len(flat), 2)]
        most = max(float(share) for share in turned)
        usual = float((flat[torch.randperm(len(flat))] == flat).float().mean())
        assert most < usual + 0.2 or len(flat) < 10


def test_rows_of_a_few_integers_stay_whole() -> None:
    low = torch.randint(0, 500, (900, 1))
    bank = torch.cat((low, low + 7), 1)
    own = bank.clone()
    refresh([own], [bank.view(-1)], seed=3, rounded=False)
    assert not torch.equal(own, bank)
    assert bool((own[:, 1] - own[:, 0] == 7).all())


def test_repeated_zeros_stay_zero_and_other_values_change() -> None:
    bank = torch.relu(torch.randn(5_000))
    own = bank.clone()
    refresh([own], [bank], seed=3, rounded=False)
    assert abs(float((own == 0).float().mean()) - 0.5) < 0.1
    assert not torch.isin(own[own > 0], bank).float().mean() > 0.01
