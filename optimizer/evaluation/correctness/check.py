"""Whether a candidate's outputs are right on one case: each seed against its float64 golden, twice
on the same values; and the runs of programs of a command toolchain, which also report their time.

The candidate runs before any expected value is needed, in another process than the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.isolation.runner_process import RunnerDied
from optimizer.evaluation.loaded_kernel import CandidateFailed, LoadedKernel
from optimizer.evaluation.records import (
    CaseCheck,
    CaseTiming,
    Flag,
    TimingState,
    Validity,
    Violation,
)
from optimizer.evaluation.runner.library import MOVEMENT, REFUSED
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.shared_arrays import same_bits
from optimizer.evaluation.timing.statistics import typical
from optimizer.evaluation.toolchains.base import Compiled, Metric
from optimizer.evaluation.toolchains.command import CommandRun, CommandToolchain


@dataclass(frozen=True)
class CaseResult:
    """The checks of one case. `message` is empty if the case is right."""

    checks: tuple[CaseCheck, ...]
    flags: tuple[Flag, ...] = ()
    message: str = ""


def check_case(
    case: PreparedCase, kernel: LoadedKernel, seeds: Sequence[int], settings: EvaluationSettings
) -> CaseResult:
    """Check every seed; the kernel holds the values of the first. Raises the exceptions of the
    kernel."""
    checks: list[CaseCheck] = []
    # For all seeds; memory that is not written to costs nothing.
    copies = [torch.empty_like(output) for output in kernel.outputs]
    for number, seed in enumerate(seeds):
        if number:
            kernel.renew(case.values(seed), settings.call_seconds)
        check = _check_seed(case, kernel, seed, settings, copies)
        checks.append(check)
        if not check.ok:
            return CaseResult(tuple(checks), (), f"case {case.name}: {check.message}")
    flags = _library_flags(case, kernel, seeds[-1], settings)
    message = flags[0].message if flags else ""
    return CaseResult(tuple(checks), tuple(flags), message)


def _check_seed(
    case: PreparedCase,
    kernel: LoadedKernel,
    seed: int,
    settings: EvaluationSettings,
    memory: Sequence[torch.Tensor],
) -> CaseCheck:
    """`memory` may be used for the outputs of the first call."""
    defences = settings.defences
    if not defences.hide_results:
        kernel.reveal(case.expected(seed).reference)
    first = case.taken(kernel.call(settings.call_seconds), memory)
    changed = kernel.inputs_changed(settings.call_seconds)
    if changed and defences.reject_changed_inputs:
        message = f"it changed {', '.join(changed)}, which a candidate may only read"
        return CaseCheck(case.name, seed, False, (), message)
    # If changes are allowed, the reference gets the inputs as the candidate left them.
    changed_inputs = [value.clone() for value in kernel.current] if changed else None
    errors = tuple(case.errors(first, seed, changed_inputs))
    wrong = [error for error in errors if not error.ok]
    if wrong:
        message = wrong[0].in_words()
        if case.values(seed).uneven:
            message += " with values that are uneven along a row: does it read all of them?"
        return CaseCheck(case.name, seed, False, errors, message)
    if defences.repeat_calls:
        again = kernel.call(settings.call_seconds)
        if not all(map(same_bits, first, again)):
            wrong = [e for e in case.errors(again, seed, changed_inputs) if not e.ok]
        if wrong:
            message = f"a second call differs: {wrong[0].in_words()}"
            return CaseCheck(case.name, seed, False, errors, message)
    return CaseCheck(case.name, seed, True, errors)


def _library_flags(
    case: PreparedCase, kernel: LoadedKernel, seed: int, settings: EvaluationSettings
) -> list[Flag]:
    """A flag if the problem forbids libraries and torch's operators did the work: one call is
    logged, and after that the operators fail."""
    if case.problem.policy.library == "allowed" or not settings.defences.trace_operators:
        return []
    working = [name for name in kernel.operators(settings.call_seconds) if name not in MOVEMENT]
    if working:
        message = f"the work is done by torch operators ({', '.join(working[:4])})"
        return [Flag(Violation.LIBRARY, "reject", f"{message}, not by its kernel")]
    if not kernel.forbids:
        return []
    try:
        kernel.forbid_library(settings.call_seconds)
        other = seed + 1  # values that it has not seen
        kernel.renew(case.values(other), settings.call_seconds)
        outputs = kernel.call(settings.call_seconds)
        wrong = [error for error in case.errors(outputs, other) if not error.ok]
        message = f"without torch's operators {wrong[0].in_words()}" if wrong else ""
    except CandidateFailed as failed:
        message = failed.message
        if REFUSED not in message:
            message = f"without torch's operators it fails: {message}"
    except RunnerDied as died:
        message = f"without torch's library it ends: {died}"
        if "SIGILL" in message:
            message = "it calls a function of BLAS, which the problem forbids; a trap ended it"
    return [Flag(Violation.LIBRARY, "reject", message)] if message else []


# -- programs of a command toolchain
#
# The program is run once for each case and seed, with its arrays as files. The chip or simulator
# reports its time. There is no reference there, so there is no speed-up: a search compares
# candidates with one another. Time from a simulator is marked as such and never mixed with wall
# time. If `timing` is `wall`, the program reports the time that it measured, and each timed case is
# run WALL_RUNS times.

WALL_RUNS = 5
_VALIDITY: dict[str, Validity] = {
    "crashed": "crashed",
    "timed_out": "timed_out",
    "output": "incorrect",
}


@dataclass(frozen=True)
class SimulatedCase:
    """The result of one case's runs; `message` is empty if all outputs are right."""

    checks: tuple[CaseCheck, ...]
    validity: Validity
    timing: CaseTiming | None = None
    metrics: dict[str, Metric] | None = None
    message: str = ""
    log: str = ""


def run_simulated(
    case: PreparedCase,
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
    signature = case.signature
    numbers = case.numbers if toolchain.template.scalars else {}
    for seed in seeds:
        tensors = list(case.values(seed).tensors)
        outcome = toolchain.run(compiled, tensors, signature, workdir, seconds, numbers)
        if not outcome.ok:
            checks.append(CaseCheck(case.name, seed, False, (), outcome.message))
            message = f"case {case.name}: {outcome.message}"
            validity = _VALIDITY[outcome.failure]
            return SimulatedCase(tuple(checks), validity, message=message, log=outcome.log)
        errors = tuple(case.errors(outcome.outputs, seed))
        wrong = [error for error in errors if not error.ok]
        message = wrong[0].in_words() if wrong else ""
        checks.append(CaseCheck(case.name, seed, not wrong, errors, message))
        if wrong:
            message = f"case {case.name}: {message}"
            return SimulatedCase(tuple(checks), "incorrect", message=message, log=outcome.log)
        if outcome.timing == "measured" and outcome.time_us is not None:
            times.append(outcome.time_us)
    while times and case.case.timed and len(times) < WALL_RUNS:
        again = toolchain.run(compiled, tensors, signature, workdir, seconds, numbers)
        if not again.ok or again.time_us is None:
            message = again.message or "a repeated run reported no time"
            return SimulatedCase(
                tuple(checks), _VALIDITY.get(again.failure, "incorrect"), message=message
            )
        times.append(again.time_us)
    return SimulatedCase(
        tuple(checks),
        "correct",
        _timing(case.name, outcome, times),
        dict(outcome.metrics),
        log=outcome.log,
    )


def cost_of(timing: CaseTiming) -> float | None:
    """The cost that candidates are compared by: a simulator's cycles or other count, or
    microseconds if it gives neither. Cycles of real hardware are no time, because clocks change."""
    if timing.state != "simulator":
        return timing.candidate_us
    return timing.count or timing.cycles or timing.candidate_us


def _timing(case: str, outcome: CommandRun, times: Sequence[float]) -> CaseTiming:
    state: TimingState = outcome.timing
    reason = "; ".join(outcome.notes) if state == "none" else ""
    timing = CaseTiming(
        case,
        state,
        candidate_us=outcome.time_us,
        calls=1,
        cycles=outcome.cycles,
        reason=reason,
        count=outcome.count,
        counted=outcome.counted,
    )
    if not times:
        return timing
    centre, spread = typical(times)
    return replace(timing, candidate_us=centre, calls=len(times), spread=spread)
