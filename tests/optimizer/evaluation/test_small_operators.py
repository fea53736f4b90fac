"""A reference of many small operators, whose threads wait for each other in each, is timed on a
quiet machine and gets no figure on a busy one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.loaded_kernel import TimedBlock
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.settings import EvaluationSettings, TimingPolicy
from optimizer.evaluation.timing.measure import TimedSide
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.python import TorchPython

pytestmark = [
    pytest.mark.slow(seconds=20),
    pytest.mark.skipif(sys.platform != "linux", reason="the account is Linux's"),
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one thread waits for no other"),
]

# A gated recurrence: six operators at each of sixteen positions, of 65,536 elements, so that each
# opens a parallel region.
PROBLEM = """
import torch
import torch.nn as nn
import torch.nn.functional as F

batch, length, channels, states = 8, 16, 256, 32


class Model(nn.Module):
    def __init__(self, channels, states):
        super().__init__()
        self.rate = nn.Parameter(torch.rand(channels, states) + 0.5)

    def forward(self, x, gate, b, c):
        step = F.softplus(gate)
        state = x.new_zeros(x.shape[0], x.shape[2], self.rate.shape[1])
        outputs = []
        for position in range(x.shape[1]):
            decay = torch.exp(-step[:, position, :, None] * self.rate)
            drive = (step[:, position] * x[:, position])[:, :, None] * b[:, position, None, :]
            state = decay * state + drive
            outputs.append((state * c[:, position, None, :]).sum(-1))
        return torch.stack(outputs, 1)


def get_inputs():
    by_channel = [torch.randn(batch, length, channels) for _ in range(2)]
    return [*by_channel, *(torch.randn(batch, length, states) for _ in range(2))]


def get_init_inputs():
    return [channels, states]
"""
CPU = EvaluationTarget("x86-64", ("x86-64",), "native", "cpu")
SHARE = 0.05
POLICY = TimingPolicy(block_ms=10.0, min_pairs=4, max_pairs=6, narrow=0.1)


@pytest.fixture(autouse=True)
def all_processors() -> Iterator[None]:
    """A worker of the suite has one of two processors; other workers count as other work here."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    yield
    os.sched_setaffinity(0, own)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[TimedBlock]:
    """The blocks of the evaluation."""
    seen, run = [], TimedSide.run

    def watched(self: TimedSide, *args: int, **kwargs: int) -> TimedBlock:
        seen.append(run(self, *args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(TimedSide, "run", watched)
    return seen


@pytest.fixture
def other_work() -> Iterator[None]:
    """A process per processor."""
    spin = [sys.executable, "-c", "while True: pass"]
    hogs = [subprocess.Popen(spin) for _ in os.sched_getaffinity(0)]
    yield
    for hog in hogs:
        hog.kill()
        hog.wait()


def against_itself(folder: Path) -> Evaluation:
    path = folder / "gated_recurrence.py"
    path.write_text(PROBLEM, encoding="utf-8")
    problem, settings = load_problem(path), EvaluationSettings(timing=POLICY)
    bundle = Bundle({"m.py": PROBLEM}, "m.py", "torch", "Model")
    with Evaluator(problem, CPU, settings) as evaluator:
        return evaluator.evaluate(bundle, TorchPython())


def test_quiet_machine_gives_figure(tmp_path: Path, blocks: list[TimedBlock]) -> None:
    evaluation = against_itself(tmp_path)
    assert evaluation.correct and not evaluation.flags
    busy = [
        block
        for block in blocks
        if block.quiet_mean_ns(SHARE) is None and block.waiting_mean_ns(SHARE) is None
    ]
    unknown = [b for b in busy if b.others_ns is None]
    quiet_machine = [b for b in busy if b.others_ns is not None and b.others_ns < 0.01 * b.wall_ns]
    assert not quiet_machine
    assert len(unknown) <= 12  # at the beginning
    if evaluation.timing == "measured":
        assert evaluation.speedup is not None and 0.7 < evaluation.speedup.value < 1.4
    else:
        assert busy


@pytest.mark.usefixtures("other_work")
def test_other_work_gives_no_figure(tmp_path: Path, blocks: list[TimedBlock]) -> None:
    evaluation = against_itself(tmp_path)
    assert evaluation.correct and evaluation.timing == "repeat"
    assert any((b.others_ns or 0.0) > SHARE * b.wall_ns for b in blocks)
