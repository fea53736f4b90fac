"""Candidates of a command toolchain: the program is run once for each case and seed through files,
and its time is what the chip or simulator reports.

There is no reference on such a chip, so there is no speed-up either: a search compares candidates
with one another. Time from a simulator is marked so and never mixed with wall time.
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
class SimulatedCase:
    """The result of one case's runs; `message` is empty when all outputs are right."""

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
    *,
    seeds: Sequence[int],
    workdir: Path,
    seconds: float,
) -> SimulatedCase:
    """Run the program on every seed of one case. The figures are those of the last run. `seconds`
    is the deadline of one run."""
    checks: list[CaseCheck] = []
    outcome = CommandRun()
    for seed in seeds:
        sample = prepared.sample(seed)
        outcome = toolchain.run(
            compiled, list(sample.tensors), prepared.open.signature, workdir, seconds
        )
        if not outcome.ok:
            return SimulatedCase(
                tuple(checks), _VALIDITY[outcome.failure], message=outcome.message, log=outcome.log
            )
        errors = tuple(prepared.errors(outcome.outputs, seed))
        wrong = [error for error in errors if not error.ok]
        message = wrong[0].in_words() if wrong else ""
        checks.append(CaseCheck(prepared.name, seed, not wrong, errors, message))
        if wrong:
            return SimulatedCase(
                tuple(checks),
                "incorrect",
                message=f"case {prepared.name}: {message}",
                log=outcome.log,
            )
    return SimulatedCase(
        tuple(checks),
        "correct",
        _timing(prepared.name, outcome),
        dict(outcome.metrics),
        log=outcome.log,
    )


def cost_of(timing: CaseTiming) -> float | None:
    """The cost by which candidates are compared: cycles, or microseconds where a simulator gives no
    cycles."""
    return timing.cycles or timing.candidate_us


def _timing(case: str, outcome: CommandRun) -> CaseTiming:
    state: TimingState = outcome.timing
    return CaseTiming(case, state, candidate_us=outcome.time_us, cycles=outcome.cycles, calls=1)
