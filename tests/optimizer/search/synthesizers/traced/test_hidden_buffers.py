"""Buffers of a Model outside its state_dict, such as rotary frequencies or a mask: the interface
does not pass them, so a kernel contains them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from optimizer.search.synthesizers.traced import cpp, triton
from optimizer.search.synthesizers.traced.expression import NotWritten, Program
from optimizer.search.synthesizers.traced.synthesizer import LIBRARY, lowered
from tests.optimizer.search.synthesizers.traced.test_traced_kernels import FILE, called, opened

ROTARY = (
    "self.scale = nn.Parameter(torch.randn(12))\n"
    "        frequencies = 1.0 / 100 ** (torch.arange(0, 12, 2) / 12)\n"
    "        self.register_buffer('frequencies', frequencies, persistent=False)\n"
    "        self.register_buffer('unused', torch.ones(3), persistent=False)",
    "angles = torch.arange(x.shape[1])[:, None].float() * self.frequencies.float()\n"
    "        angles = torch.cat([angles, angles], -1)\n"
    "        turned = torch.cat([-x[..., 6:], x[..., :6]], -1)\n"
    "        return (x * angles.cos() + turned * angles.sin()) * self.scale + y",
    "(2, 9, 12)",
    "(12,)",
)
MASKED = (
    "mask = torch.ones(150, 150).tril().bool()\n"
    "        self.register_buffer('mask', mask, persistent=False)",
    "return torch.where(self.mask, x, float('-inf')).softmax(-1) * y",
    "(1, 150, 150)",
    "(150,)",
)
RUNNER = """
import torch
import masked, rotary
for candidate in (masked, rotary):
    model, new = candidate.Model(), candidate.ModelNew()
    new.load_state_dict(model.state_dict())
    inputs = candidate.get_inputs()
    torch.testing.assert_close(new(*inputs), model(*inputs), rtol=2e-5, atol=1e-5)
"""


def source_of(model: tuple[str, str, str, str], dtype: str = "torch.float32") -> str:
    init, forward, shape, second = model
    made = f"torch.randn({second}, dtype={dtype})"
    return FILE.format(init=init, forward=forward, shape=shape, second=made, dtype=dtype)


@pytest.mark.slow
def test_small_buffers_are_in_source_of_a_cpp_kernel(tmp_path: Path) -> None:
    case, given, expected = opened(source_of(ROTARY))
    program = lowered(case)
    assert isinstance(program, Program), program
    (output,) = called(case, program, given, tmp_path)
    torch.testing.assert_close(output.double(), expected[0], rtol=2e-5, atol=1e-5)
    assert "unused" not in (tmp_path / "kernel.cpp").read_text()


def test_model_that_cannot_be_made_with_memory_is_named() -> None:
    init, forward, shape, second = ROTARY
    fails = "\n        assert type(torch.ones(1)).__name__ == 'FakeTensor', 'no memory'"
    source = source_of((init + fails, forward, shape, second))
    case, _, _ = opened(source_of(ROTARY))
    problem = lowered(replace(case, source=source))
    assert isinstance(problem, str) and "no memory" in problem


def test_sixteen_bit_elements_are_written_exactly(tmp_path: Path) -> None:
    init, forward, shape, second = ROTARY
    source = source_of((init + "\n        self.to(torch.bfloat16)", forward, shape, second))
    case, given, expected = opened(source)
    program = lowered(case)
    assert isinstance(program, Program), program
    (output,) = called(case, program, given, tmp_path)
    torch.testing.assert_close(output.double(), expected[0], rtol=2e-5, atol=1e-5)


def test_too_large_buffer_of_a_cpp_kernel_is_named() -> None:
    case, _, _ = opened(source_of(MASKED))
    program = lowered(case)
    assert isinstance(program, Program), program
    with pytest.raises(NotWritten, match=r"mask, a buffer of the Model .* 22500 elements of bool"):
        cpp.write_candidate([(case.signature, program)])


@pytest.mark.slow(seconds=6)
def test_triton_kernels_take_buffers_from_models(tmp_path: Path) -> None:
    """Both in one process, whose imports take longer than the kernels."""
    pytest.importorskip("triton")
    from tests.optimizer.search.synthesizers.traced import test_traced_triton as triton_tests

    for name, model in (("rotary", ROTARY), ("masked", MASKED)):
        case, _, _ = opened(source_of(model))
        program = lowered(case, LIBRARY)
        assert isinstance(program, Program), program
        source = triton.write_candidate([(case.signature, program)], case.source, triton.DEFAULTS)
        assert source.kernels and not source.left
        (tmp_path / f"{name}.py").write_text(source.text, encoding="utf-8")
    triton_tests.interpreted(tmp_path, RUNNER)
