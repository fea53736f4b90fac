"""Memory of goldens: those of large arrays are cached for few seeds, and computed on the CPU if the
device has too little memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Problem

FILE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)


def get_inputs():
    return [torch.randn(64, 100)]


def get_init_inputs():
    return []
"""
ONE_SEED = 64 * 100 * (8 + 4 + 8)  # the golden, the reference's result, the units of errors


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    path = tmp_path / "problem.py"
    path.write_text(FILE)
    return load_problem(path)


@pytest.mark.parametrize(("allowed", "cached"), [(1, 1), (2 * ONE_SEED, 2), (1 << 30, 3)])
def test_the_number_of_cached_goldens_depends_on_memory(
    problem: Problem, allowed: int, cached: int
) -> None:
    prepared = PreparedCase(problem, problem.cases[0], "cpu", golden_bytes=allowed)
    first = [prepared.expected(seed) for seed in range(3)]
    assert first[0].bytes == ONE_SEED
    again = [prepared.expected(seed) for seed in (2, 1, 0)][::-1]
    # In reverse order, each one that is computed again evicts the oldest.
    assert sum(a is b for a, b in zip(first, again, strict=True)) == cached
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.golden[0], b.golden[0]) and a.bounds[0].allowed == b.bounds[0].allowed


def test_without_device_memory_goldens_are_computed_on_the_cpu(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = PreparedCase(problem, problem.cases[0], "cpu")
    _ = case.signature, case.flops  # run the reference too
    monkeypatch.setattr(case, "_golden_device", "cuda")
    reference, tries = case.reference, list[str]()

    def full_device(*given: Any, device: str = "cpu", **named: Any) -> list[torch.Tensor]:
        tries.append(device)
        if device != "cpu":
            raise torch.OutOfMemoryError("the device is full")
        return reference(*given, device=device, **named)

    monkeypatch.setattr(case, "reference", full_device)
    right = torch.softmax(case.values(1).tensors[0], -1)
    assert case.errors([right], 1)[0].ok
    assert tries[:2] == ["cuda", "cuda"] and {*tries[2:]} == {"cpu"}
    assert not case.errors([right * 1.01], 2)[0].ok
    assert tries.count("cuda") == 2
