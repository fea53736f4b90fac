"""How many calls a block holds: as many as its aimed length allows, whatever a block costs."""

from __future__ import annotations

import os
import statistics
from types import SimpleNamespace
from typing import cast

import pytest

from optimizer.evaluation.isolation.runner_process import RunnerProcess
from optimizer.evaluation.loaded_kernel import LoadedKernel, TimedBlock
from optimizer.evaluation.timing.measure import TimedSide, TimingPolicy, measure

CALL_NS, BETWEEN_NS = 150_000, 450_000


class MadeUp(TimedSide):
    """A side whose blocks are made up, each of which costs `fixed_ns` however few calls it has."""

    fixed_ns: int = 0
    lengths: list[int]

    def run(self, seed: int, calls: int, seconds: float, secret: int = 0) -> TimedBlock:
        times = (CALL_NS,) * calls
        self.lengths.append(calls)
        return TimedBlock(
            times=times,
            walls=times,
            spans=((calls, sum(times), 0),),
            refresh_ns=BETWEEN_NS // 2 * calls,
            touch_ns=0,
            total_ns=(CALL_NS + BETWEEN_NS) * calls,
            wall_ns=self.fixed_ns + (CALL_NS + BETWEEN_NS) * calls,
            waited_ns=0,
            delayed_ns=0,
            busy_ns=0,
            threads=(1, 1),
            patched=False,
        )


@pytest.mark.parametrize("fixed_ns", [0, 3_000_000, 30_000_000])
@pytest.mark.parametrize(
    "walls, calls",
    [
        (2.0, 16 / 0.6),  # the wall decides: 16 ms, of which a call takes 0.6
        (100.0, 8 / 0.15),  # the calls' own time does
    ],
)
def test_the_fixed_cost_of_a_block_takes_no_calls_from_it(
    fixed_ns: int, walls: float, calls: float
) -> None:
    runner = SimpleNamespace(pid=os.getpid(), children=list, settings=SimpleNamespace(device="cpu"))
    sides = []
    for name in ("baseline", "candidate"):
        kernel = cast(LoadedKernel, SimpleNamespace(outputs=()))
        side = MadeUp(name, cast(RunnerProcess, runner), kernel, trusted=name == "baseline")
        side.fixed_ns, side.lengths = fixed_ns, []
        sides.append(side)
    policy = TimingPolicy(
        block_ms=8.0, min_pairs=24, narrow=0.0, between=0.018, quiet=100.0, walls=walls
    )
    result = measure(
        "main",
        baseline=sides[0],
        candidate=sides[1],
        policy=policy,
        compare=lambda ours, theirs: None,
        looks=lambda ours, theirs: None,
        seed=1,
        on=lambda *rows: False,
    )
    assert result.timing.state == "measured"
    pairs = sides[0].lengths[-24:]
    assert statistics.mean(pairs) == pytest.approx(calls, rel=0.15)
    assert 0.55 * calls < min(pairs) and max(pairs) < 1.45 * calls
