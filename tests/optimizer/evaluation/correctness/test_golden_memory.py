"""Memory of goldens: those of large arrays are cached for few seeds, and computed by slices, or on
the CPU, if the device has too little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kb.errors import InvalidRequest
from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.slices import golden_in_slices
from optimizer.evaluation.problem.spec import Problem
from tests.problem_files import model_text

FILE = model_text("torch.softmax(x, -1)", "torch.randn(64, 100)")
ONE_SEED = 64 * 100 * (8 + 4 + 8)  # golden, result of the reference, units of errors


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    path = tmp_path / "problem.py"
    path.write_text(FILE)
    return load_problem(path)


@pytest.mark.parametrize(("allowed", "cached"), [(1, 1), (2 * ONE_SEED, 2), (1 << 30, 3)])
def test_number_of_cached_goldens_depends_on_memory(
    problem: Problem, allowed: int, cached: int
) -> None:
    prepared = PreparedCase(problem, problem.cases[0], "cpu", golden_bytes=allowed)
    first = [prepared.expected(seed) for seed in range(3)]
    assert first[0].bytes == ONE_SEED
    again = [prepared.expected(seed) for seed in (2, 1, 0)][::-1]
    # In reverse order, each recomputed golden evicts the oldest.
    assert sum(a is b for a, b in zip(first, again, strict=True)) == cached
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.golden[0], b.golden[0]) and a.bounds[0].allowed == b.bounds[0].allowed


def test_goldens_without_device_memory_are_computed_on_cpu(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = PreparedCase(problem, problem.cases[0], "cpu")
    _ = case.signature, case.flops  # the reference too
    monkeypatch.setattr(case, "_golden_device", "cuda")
    reference, tries = case.reference, list[str]()

    def full_device(*given: Any, device: str = "cpu", **named: Any) -> list[torch.Tensor]:
        tries.append(device)
        if device != "cpu":
            raise torch.OutOfMemoryError("the device is full")
        return reference(*given, device=device, **named)

    monkeypatch.setattr(case, "reference", full_device)
    monkeypatch.setattr(case, "_moved_once", list)
    right = torch.softmax(case.values(1).tensors[0], -1)
    assert case.errors([right], 1)[0].ok
    assert tries[:2] == ["cuda", "cuda"] and {*tries[2:]} == {"cpu"}
    assert not case.errors([right * 1.01], 2)[0].ok
    assert tries.count("cuda") == 2


# -- slices

F = torch.nn.functional
ROWS = 40


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


APART: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "softmax": (lambda x: x.softmax(-1), (randn(ROWS, 30),)),
    "a product with a square factor": (lambda a, b: a @ b, (randn(ROWS, ROWS), randn(ROWS, ROWS))),
    "a product of batches": (torch.bmm, (randn(ROWS, 3, 5), randn(ROWS, 5, 4))),
    "a convolution": (lambda x, w: F.conv2d(x, w), (randn(ROWS, 2, 6, 6), randn(3, 2, 3, 3))),
    "a shared bias": (lambda x, b: x + b, (randn(ROWS, 4), randn(4))),
    "indices": (lambda x: x.argmax(-1), (randn(ROWS, 9),)),
    "two outputs": (lambda x: x.max(-1)[:], (randn(ROWS, 9),)),
    "bfloat16": (lambda x: x.float().relu().to(x.dtype), (randn(ROWS, 50).bfloat16(),)),
    "an odd number of rows": (lambda x: x.cumsum(-1), (randn(ROWS + 3, 50),)),
}
TOGETHER: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "softmax of columns": (lambda x: x.softmax(0), (randn(ROWS, 30),)),
    "a running sum": (lambda x: x.cumsum(0), (randn(ROWS, 30),)),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), (randn(ROWS, 3),)),
    "a shift by rows": (lambda x: x.roll(20, 0), (randn(ROWS, 30),)),
    "a shift by a slice": (lambda x: x + x.flip(0), (randn(ROWS, 30),)),
    "a fixed row": (lambda x: x - x[:1], (randn(ROWS, 30),)),
    "a table of fixed length": (lambda x: x + torch.arange(ROWS)[:, None], (randn(ROWS, 30),)),
    "a small term in bfloat16": (
        lambda x: (x.float() + 1e-3 * x.float().mean(0)).to(x.dtype),
        (randn(ROWS, 400).abs().bfloat16(),),
    ),
    "a sum": (lambda x: x.sum(), (randn(ROWS, 30),)),
    "few rows": (lambda x: x.relu(), (randn(3, 30),)),
}


def run_of(model: Callable[..., Any]) -> Callable[..., list[torch.Tensor]]:
    def run(inputs: Sequence[torch.Tensor], dtype: torch.dtype | None) -> list[torch.Tensor]:
        given = [v.to(dtype) if dtype and v.is_floating_point() else v for v in inputs]
        try:
            result = model(*given)
        except RuntimeError as error:
            raise InvalidRequest(str(error)) from error
        return [*result] if isinstance(result, tuple) else [result]

    return run


@pytest.mark.parametrize("name", APART)
def test_goldens_by_slices_equal_whole_ones(name: str) -> None:
    model, inputs = APART[name]
    run = run_of(model)
    sliced = golden_in_slices(run, inputs, run(inputs, None), 50)
    assert sliced is not None
    for golden, whole in zip(sliced.goldens, run(inputs, torch.float64), strict=True):
        assert golden.dtype == whole.dtype and golden.shape == whole.shape
        torch.testing.assert_close(golden, whole, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", TOGETHER)
def test_dependent_rows_are_not_computed_by_slices(name: str) -> None:
    model, inputs = TOGETHER[name]
    run = run_of(model)
    assert golden_in_slices(run, inputs, run(inputs, None), 1) is None


def test_device_too_small_for_golden_computes_it_by_slices(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = OpenCase(problem, problem.cases[0])
    inputs, state = case.drawn(1)
    whole = case.reference(inputs, state, dtype=torch.float64)
    [moved] = case.sensitivities(inputs, state, whole)
    forward, calls = case._forward, list[tuple[int, str]]()

    def small_device(part: Any, state: Any, dtype: Any, device: str, noise: int) -> Any:
        if dtype is not None:
            calls.append((len(part[0]), device))
            if len(part[0]) > 10:
                raise torch.OutOfMemoryError("the device is full")
        return forward(part, state, dtype, "cpu", noise)

    monkeypatch.setattr(case, "_forward", small_device)
    [golden] = case.reference(inputs, state, dtype=torch.float64, device="cuda")
    assert torch.equal(golden, whole[0])
    assert {device for _, device in calls} == {"cuda"} and calls[-1] == (4, "cuda")
    calls.clear()
    [sensitive] = case.sensitivities(inputs, state, [golden])  # of the first slice
    assert calls == [(4, "cpu")] and 0 < sensitive < 3 * moved
