"""Candidates of a command toolchain: the program is run once for each case and seed through files,
and its time is what the chip or simulator reports.

There is no reference on such a chip, so there is no speed-up either: a search compares candidates
with one another. Time from a simulator is marked so and never mixed with wall time. Where `timing`
is `wall`, the program reports the time that it measured itself, and each timed case is run
WALL_RUNS times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.records import CaseCheck, CaseTiming, TimingState, Validity
from optimizer.evaluation.timing.statistics import typical
from optimizer.evaluation.toolchains.base import Compiled, Metric
from optimizer.evaluation.toolchains.command import CommandRun, CommandToolchain

WALL_RUNS = 5  # of a timed case, whose time is measured by the program itself
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
    times: list[float] = []
    signature = prepared.open.signature
    constants = prepared.constants if toolchain.template.scalars else {}
    for seed in seeds:
        tensors = list(prepared.sample(seed).tensors)
        outcome = toolchain.run(compiled, tensors, signature, workdir, seconds, constants)
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
        if outcome.timing == "measured" and outcome.time_us is not None:
            times.append(outcome.time_us)
    while times and prepared.open.case.timed and len(times) < WALL_RUNS:
        again = toolchain.run(compiled, tensors, signature, workdir, seconds, constants)
        if not again.ok or again.time_us is None:
            message = again.message or "a repeated run reported no time"
            return SimulatedCase(
                tuple(checks), _VALIDITY.get(again.failure, "incorrect"), message=message
            )
        times.append(again.time_us)
    return SimulatedCase(
        tuple(checks),
        "correct",
        _timing(prepared.name, outcome, times),
        dict(outcome.metrics),
        log=outcome.log,
    )


def cost_of(timing: CaseTiming) -> float | None:
    """The cost by which candidates are compared: cycles, or microseconds where a simulator gives no
    cycles. Cycles of real hardware are no time, because clocks change."""
    if timing.state != "simulator":
        return timing.candidate_us
    return timing.cycles or timing.candidate_us


def _timing(case: str, outcome: CommandRun, times: Sequence[float]) -> CaseTiming:
    state: TimingState = outcome.timing
    reason = "; ".join(outcome.notes) if state == "none" else ""
    timing = CaseTiming(
        case, state, candidate_us=outcome.time_us, cycles=outcome.cycles, calls=1, reason=reason
    )
    if not times:
        return timing
    centre, spread = typical(times)
    return replace(timing, candidate_us=centre, calls=len(times), spread=spread)
