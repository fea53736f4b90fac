"""Fresh values are the same wherever they are made, and what draws them cannot be replaced."""

from __future__ import annotations

import random

import pytest
import torch

from optimizer.evaluation.runner import memory
from optimizer.evaluation.runner.clocks import as_started, replaced
from optimizer.evaluation.runner.memory import ValueShift, refresh

SIZES = [1, 3, 7, 100_001, 5, 60_000, 17]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rounded", [True, False])
def test_values_do_not_depend_on_how_the_work_is_shared_out(
    dtype: torch.dtype, rounded: bool
) -> None:
    """The supervisor makes them again with another number of threads than a runner."""
    values, move = torch.randn(sum(SIZES), dtype=dtype), ValueShift(1 - 7 / 256, 0.3123456, rounded)
    whole = move.of(values)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = move.of(values)
    finally:
        torch.set_num_threads(threads)
    parts = torch.cat([move.of(part) for part in values.split_with_sizes(SIZES)])
    assert torch.equal(whole, alone) and torch.equal(whole, parts)
    assert torch.equal(whole, move.of(values, torch.empty_like(values)))


@pytest.mark.parametrize("rounded", [True, False])
def test_a_default_device_that_a_candidate_left_changes_nothing(rounded: bool) -> None:
    bank = torch.randn(3_000)
    first, second = torch.empty(5_000), torch.empty(5_000)
    refresh([first], [bank], seed=5, call=1, rounded=rounded)
    with torch.device("meta"):
        refresh([second], [bank], seed=5, call=1, rounded=rounded)
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["random", "getrandbits", "randrange"])
def test_a_replaced_generator_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started, original = as_started(), getattr(random.Random, name)
    assert not replaced(started)
    monkeypatch.setattr(random.Random, name, lambda self, *of: original(self, *of), raising=False)
    assert replaced(started)
    assert not replaced(started, harness=False)


def test_a_replaced_function_or_code_of_the_runner_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = as_started()
    with monkeypatch.context() as changed:
        changed.setattr(memory, "_turn", lambda *of: None)
        assert replaced(started)
    assert not replaced(started)
    monkeypatch.setattr(memory._turn, "__code__", (lambda flat, bank, chosen, move: None).__code__)
    assert replaced(started)
