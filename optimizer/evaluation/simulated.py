"""A candidate of a command toolchain: its program is run once for each case and seed through files;
its time is what the chip or simulator reports.

There is no reference on such a chip, so there is no speed-up either: a search compares candidates
with one another (`optimizer.search.bench.simulated`). Time from a simulator is marked so and never
mixed with wall time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.records import CaseCheck, CaseTiming, TimingState, Validity
from optimizer.evaluation.toolchains.base import Compiled, Metric
from optimizer.evaluation.toolchains.command import CommandRun, CommandToolchain

_VALIDITY: dict[str, Validity] = {
    "crashed": "crashed",
    "timed_out": "timed_out",
    "output": "incorrect",
}


@dataclass(frozen=True)
class Simulated:
    """What the runs of one case came to; `message` is empty when it is right."""

    checks: tuple[CaseCheck, ...]
    validity: Validity
    timing: CaseTiming | None = None
    metrics: dict[str, Metric] | None = None
    message: str = ""
    log: str = ""


def run_simulated(
    prepared: PreparedCase,
    toolchain: CommandToolchain,
    compiled: Compiled,
    seeds: Sequence[int],
    workdir: Path,
    seconds: float,
) -> Simulated:
    """Every seed of one case; the figures are of the last run."""
    checks: list[CaseCheck] = []
    told = CommandRun()
    for seed in seeds:
        sample = prepared.sample(seed)
        told = toolchain.run(
            compiled, list(sample.tensors), prepared.open.signature, workdir, seconds
        )
        if not told.ok:
            return Simulated(
                tuple(checks), _VALIDITY[told.failure], message=told.message, log=told.log
            )
        errors = tuple(prepared.errors(told.outputs, seed))
        wrong = [error for error in errors if not error.ok]
        message = wrong[0].told() if wrong else ""
        checks.append(CaseCheck(prepared.name, seed, not wrong, errors, message))
        if wrong:
            return Simulated(
                tuple(checks),
                "incorrect",
                message=f"case {prepared.name}: {message}",
                log=told.log,
            )
    return Simulated(
        tuple(checks), "correct", _timing(prepared.name, told), dict(told.metrics), log=told.log
    )


def cost_of(timing: CaseTiming) -> float | None:
    """What candidates are compared by: cycles, or time where a simulator gives no cycles."""
    return timing.cycles or timing.candidate_us


def _timing(case: str, told: CommandRun) -> CaseTiming:
    state: TimingState = told.timing
    return CaseTiming(case, state, candidate_us=told.time_us, cycles=told.cycles, calls=1)
