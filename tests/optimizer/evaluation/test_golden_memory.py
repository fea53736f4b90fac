"""What goldens take of memory: those of few seeds are kept where arrays are large, and a device
that has no room for them leaves them to the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase

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
def case(tmp_path: Path) -> OpenCase:
    path = tmp_path / "problem.py"
    path.write_text(FILE)
    problem = load_problem(path)
    return OpenCase(problem, problem.cases[0])


@pytest.mark.parametrize(("allowed", "kept"), [(1, 1), (2 * ONE_SEED, 2), (1 << 30, 3)])
def test_goldens_of_so_many_seeds_are_kept_as_may_be(
    case: OpenCase, allowed: int, kept: int
) -> None:
    prepared = PreparedCase(case, "cpu", golden_bytes=allowed)
    first = [prepared.expected(seed) for seed in range(3)]
    assert first[0].bytes == ONE_SEED
    again = [prepared.expected(seed) for seed in (2, 1, 0)][::-1]
    # Going back, each that is computed anew pushes the oldest out.
    assert sum(a is b for a, b in zip(first, again, strict=True)) == kept
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.golden[0], b.golden[0]) and a.bounds[0].allowed == b.bounds[0].allowed


def test_a_device_without_room_leaves_goldens_to_the_processor(
    case: OpenCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ = case.signature, case.flops()  # run the reference too
    reference, tries = case.reference, list[str]()

    def without_room(*given: Any, device: str = "cpu", **named: Any) -> list[torch.Tensor]:
        tries.append(device)
        if device != "cpu":
            raise torch.OutOfMemoryError("the device is full")
        return reference(*given, device=device, **named)

    monkeypatch.setattr(case, "reference", without_room)
    prepared = PreparedCase(case, "cuda")
    right = torch.softmax(prepared.sample(1).tensors[0], -1)
    assert prepared.errors([right], 1)[0].ok
    assert tries[:2] == ["cuda", "cuda"] and {*tries[2:]} == {"cpu"}
    assert not prepared.errors([right * 1.01], 2)[0].ok
    assert tries.count("cuda") == 2
