"""Clocks, snapshots and driver checks of a runner, without a device."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from optimizer.evaluation.runner.clocks import PTX, CpuClock, DeviceHold, HoldUnavailable
from optimizer.evaluation.runner.driver import Prologue, patched, prologues
from optimizer.evaluation.runner.fresh_values import refresh
from optimizer.evaluation.runner.memory import Snapshots, read_elements

DRAW = bytes(range(8))
DTYPES = (torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64, torch.complex128)


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_are_read_like_the_outputs(dtype: torch.dtype) -> None:
    wide, turned = (10 * torch.randn(6, 40)).to(dtype), (10 * torch.randn(5, 6)).to(dtype).t()
    values = [wide[:, 3:20], turned, torch.empty(0, dtype=dtype), torch.ones(3, 1).expand(3, 4)]
    expected = read_elements(values, DRAW)
    snapshots = Snapshots()
    for _ in range(2):
        snapshots.take(values)
        assert snapshots.read(DRAW) == expected


def test_later_changes_are_not_in_copies() -> None:
    """Rows 46 and 47: the compared outputs are those at the end of the call."""
    output, snapshots = torch.zeros(500), Snapshots()
    snapshots.take([output])
    output.fill_(1.0)
    assert not any(snapshots.read(DRAW))


class Watching(TorchDispatchMode):
    """Records the operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_copies_bypass_dispatch_mode() -> None:
    output, snapshots, clock = torch.zeros(500), Snapshots(), CpuClock()
    clock.time(list)
    assert not clock.known["mode_left"]
    with Watching() as mode:
        snapshots.take([output])
        snapshots.read(DRAW)
        clock.time(list)
    assert mode.seen == []
    assert clock.known["mode_left"]


def test_patched_function_is_detected() -> None:
    original = prologues()
    assert original
    assert not patched(original)
    at, code = original[0]
    assert patched([Prologue(at, bytes(len(code)))])


def test_hold_needs_driver() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a driver")
    with pytest.raises(HoldUnavailable):
        DeviceHold(1 << 20)


def test_assembler_accepts_hold_kernel(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    if not assembler.exists():
        pytest.skip("Triton has no assembler")
    source = tmp_path / "hold.ptx"
    source.write_text(PTX, encoding="ascii")
    for arch in ("sm_75", "sm_80", "sm_90"):
        command = [str(assembler), f"-arch={arch}", str(source), "-o", str(tmp_path / "hold")]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr


def test_late_changes_are_made_before_call() -> None:
    banks = [torch.randn(5_000), torch.randint(0, 9, (300,))]
    early, late = [bank.clone() for bank in banks], [bank.clone() for bank in banks]
    refresh(early, banks, seed=3)
    left = refresh(late, banks, seed=3, late=True, host_banks=banks)
    result, took, wall = CpuClock().time(lambda: [value.clone() for value in late], left)
    assert all(map(torch.equal, result, early))
    assert took == wall > 0
