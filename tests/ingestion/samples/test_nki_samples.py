"""The NKI samples on a simulation of their calls, without compiler or device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.ingestion.samples import nki_machine

pytestmark = pytest.mark.slow

SAMPLES = Path(__file__).parents[3] / "hw_manuals" / "samples"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The operations are small: on busy cores, waiting threads cost 20 times the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _load(file: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return nki_machine.sample(SAMPLES / file, monkeypatch)


def _random(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(torch.bfloat16)


def _error(result: nki_machine.Tile, expected: torch.Tensor) -> float:
    """The largest difference as a share of the largest element; NaN if an element is unwritten."""
    return float((result.read() - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("block", [1, 2, 8])
def test_product(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = _load("aws/nki-matmul-psum.py", monkeypatch).matmul
    left, right = _random(384, 640), _random(384, 1024)
    result = matmul(nki_machine.device(left), nki_machine.device(right), rows_in_block=block)
    assert _error(result, left.double().T @ right.double()) < 3e-3


@pytest.mark.parametrize("queries, keys", [(256, 256), (384, 384), (1024, 1024), (128, 1536)])
def test_attention(queries: int, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = _load("aws/nki-attention.py", monkeypatch).attention
    q, k, v = _random(2, queries, 96), _random(2, keys, 96), _random(2, keys, 96)
    for causal in {False, queries == keys}:
        result = attention(
            nki_machine.device(q.transpose(1, 2)),
            nki_machine.device(k.transpose(1, 2)),
            nki_machine.device(v),
            causal=causal,
        )
        expected = torch.nn.functional.scaled_dot_product_attention(
            q.double(), k.double(), v.double(), is_causal=causal
        )
        assert _error(result, expected) < 4e-3


def test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = 4 * _random(300, 700), _random(1, 700)
    wide = x.double()
    result = _load("aws/nki-softmax.py", monkeypatch).softmax(nki_machine.device(x))
    assert _error(result, torch.softmax(wide, 1)) < 4e-3
    rmsnorm = _load("aws/nki-rmsnorm.py", monkeypatch).rmsnorm
    result = rmsnorm(nki_machine.device(x), nki_machine.device(weight), eps=1e-3)
    expected = wide * torch.rsqrt((wide**2).mean(1, keepdim=True) + 1e-3) * weight.double()
    assert _error(result, expected) < 4e-3


@pytest.mark.parametrize("shape", [(384, 256), (128, 384), (2304, 128)])
def test_transpose_is_exact(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    x = _random(*shape)
    result = _load("aws/nki-transpose.py", monkeypatch).transpose(nki_machine.device(x))
    assert torch.equal(result.data, x.T)


def test_fp8_product_in_double_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = _load("neuroncore-v3/nki-fp8-double-row.py", monkeypatch).matmul_fp8
    left = (8 * _random(768, 256)).to(torch.float8_e4m3fn)
    right = (8 * _random(768, 1024)).to(torch.float8_e4m3fn)
    rows = _random(256, 1).float().abs() + 0.5
    columns = _random(1, 1024).float().abs() + 0.5
    result = matmul(*map(nki_machine.device, (left, right, rows, columns)))
    expected = left.double().T @ right.double() * rows.double() * columns.double()
    assert _error(result, expected) < 3e-3


@pytest.mark.parametrize(
    "file, right, wrong",
    [
        ("nki-attention.py", "offset=i * 128 - j * block", "offset=j * block - i * 128"),
        ("nki-attention.py", "accumulate=(part > 0)", "accumulate=False"),
        ("nki-attention.py", "data=total, op0=nl.multiply, operand0=shrink",
         "data=total, op0=nl.multiply, operand0=1.0"),
        ("nki-attention.py", "dst=turned, src=turned_psum", "dst=turned_psum, src=turned"),
    ],
)  # fmt: skip
def test_simulation_detects_mistakes(
    file: str, right: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (SAMPLES / "aws" / file).read_text(encoding="utf-8")
    assert right in text
    (tmp_path / file).write_text(text.replace(right, wrong), encoding="utf-8")
    attention = nki_machine.sample(tmp_path / file, monkeypatch).attention
    q, k, v = _random(1, 1024, 64), _random(1, 1024, 64), _random(1, 1024, 64)
    operands = (q.transpose(1, 2), k.transpose(1, 2), v)
    result = attention(*map(nki_machine.device, operands), causal=True)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=True
    )
    assert not _error(result, expected) < 4e-3
