"""The gate: which changes may become knowledge. They were measured by this product, are correct,
certainly faster and new, and have no open integrity flag. An informative failure passes as a change
to avoid. Asks no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kb.catalog.skills.evidence import FAILURES
from optimizer.evaluation.records import Interval
from optimizer.evaluation.timing.statistics import bounded, independent_ratio
from skills.curator.comparison import kernel_key
from skills.curator.records import Decision, Polarity
from skills.format.lint import is_name
from skills.trajectories.records import (
    EvaluationSummary,
    MeasuredKernel,
    Trajectory,
    TrajectoryStep,
)

# How far the lower bound must be from 1, as a ratio. It is the standard deviation, in log units,
# between two processes that run the same code, as the harness measured it (`BETWEEN` of its block
# timing, `python -m benchmarks.evaluation.checks`). A ratio's interval contains it already; the
# floor allows for the many candidates that are looked at.
NOISE_FLOOR: Mapping[str, float] = {"cpu": 0.018, "gpu": 0.005}
GPU_LANGUAGES = frozenset({"triton", "cuda", "hip"})
TIMED = frozenset({"measured", "simulator"})


@dataclass(frozen=True)
class GatePass:
    """A change that may be learned from. `evidence` is the kind of its evidence rows."""

    polarity: Polarity
    evidence: Literal["pair", "simulator"]
    gain: Interval | None


def gate(
    trajectory: Trajectory, step: TrajectoryStep, seen: Mapping[str, int]
) -> tuple[GatePass | None, Decision]:
    """Whether a change may be learned from, with the decision. `seen` maps the code of the run's
    earlier candidates (`comparison.kernel_key`) to their nodes."""

    def decided(
        passed: GatePass | None, reason: str, **details: object
    ) -> tuple[GatePass | None, Decision]:
        return passed, Decision("gate", step.child.number, passed is not None, reason, details)

    refused = reason_to_distrust(trajectory, step, seen)
    if refused:
        return decided(None, refused)
    child, parent = step.child.evaluation, step.parent.evaluation
    assert child is not None  # `reason_to_distrust` refuses these
    if child.validity in FAILURES:
        # A lesson only if the parent worked: then the change is what broke it.
        if parent is None or not parent.correct or step.parent.proposal is None:
            return decided(None, f"{child.validity}, and no working parent beside it")
        reason = f"{child.validity} where the parent was correct"
        return decided(GatePass("avoid", "pair", None), reason, polarity="avoid")
    passed, count = child.checks
    if not child.correct or passed != count or count == 0:
        return decided(None, f"{child.validity}, {passed} of {count} checks passed")
    if child.timing not in TIMED:
        return decided(None, _untimed(trajectory, child))
    gain = gain_of(step.parent, step.child)
    if gain is None:
        return decided(None, "parent and child have no figures of the same clock")
    floor = noise_floor(step.proposal.bundle.language)
    kind: Literal["pair", "simulator"] = "simulator" if child.timing == "simulator" else "pair"
    figures = {"low": gain.low, "high": gain.high, "floor": floor, "evidence": kind}
    interval = f"[{gain.low:.3f}, {gain.high:.3f}]"
    if gain.low > 1 + floor:
        reason = f"faster than its parent beyond noise: {interval}"
        return decided(GatePass("use", kind, gain), reason, polarity="use", **figures)
    if gain.high < 1 - floor:
        reason = f"slower than its parent beyond noise: {interval}"
        return decided(GatePass("avoid", kind, gain), reason, polarity="avoid", **figures)
    return decided(None, f"no certain difference from its parent: {interval}")


def noise_floor(language: str) -> float:
    """The distance from 1 that a bound needs, as a ratio; that of a CPU for a language that also
    runs on one."""
    return NOISE_FLOOR["gpu" if language in GPU_LANGUAGES else "cpu"]


def gain_of(
    parent: MeasuredKernel, child: MeasuredKernel, case: str | None = None
) -> Interval | None:
    """Child over parent with its 95 % interval, on one case if given; None if either has no bounded
    figure of the same clock.

    Each was timed against the reference in its own session, so their errors are independent. The
    reference itself is 1 by definition.
    """
    own = _speedup(child, case)
    if own is None or not bounded(own):
        return None
    if parent.proposal is None:
        return own
    other = _speedup(parent, case)
    if other is None or parent.evaluation is None or child.evaluation is None:
        return None
    same_clock = parent.evaluation.timing == child.evaluation.timing
    return independent_ratio(own, other) if same_clock else None


def _speedup(kernel: MeasuredKernel, case: str | None) -> Interval | None:
    if case is None:
        return kernel.speedup
    timing = kernel.timing(case)
    return timing.speedup if timing is not None else None


def reason_to_distrust(
    trajectory: Trajectory, step: TrajectoryStep, seen: Mapping[str, int]
) -> str:
    """Reason to distrust a change independently of its effect, or "": it was not measured here, has
    odd names or integrity flags, or its code is not new."""
    child, subject = step.child, trajectory.subject
    if not trajectory.evaluated_here:
        return "its figures are not of this product's harness"
    proposal, evaluation = child.proposal, child.evaluation
    if proposal is None or evaluation is None:
        return "there is no kernel or no evaluation"
    language, values = proposal.bundle.language, proposal.values
    names = [subject.name, subject.op, subject.family, trajectory.hardware, language]
    names += [subject.dtype or "float32", evaluation.key, trajectory.id, *trajectory.lineage]
    names += [proposal.recipe or "none", *values, *(timing.case for timing in evaluation.cases)]
    names += [name for sizes in subject.sizes.values() for name in sizes]
    names += [value for value in values.values() if isinstance(value, str)]
    odd = next((name for name in names if not is_name(name)), None)
    if odd is not None:
        return f"{odd[:40]!r} is no name"
    return _integrity(step) or _repeated(step, seen)


def _integrity(step: TrajectoryStep) -> str:
    for name, kernel in (("it", step.child), ("its parent", step.parent)):
        evaluation = kernel.evaluation
        if evaluation is None:
            continue
        flags = "; ".join(evaluation.flags)
        if evaluation.rejected or evaluation.validity == "rejected":
            return f"{name} was rejected: {flags or 'an integrity finding'}"
        if flags:
            return f"held for a person: {name} was flagged for review: {flags}"
    return ""


def _repeated(step: TrajectoryStep, seen: Mapping[str, int]) -> str:
    key = kernel_key(step.proposal.bundle)
    if step.parent.bundle is not None and kernel_key(step.parent.bundle) == key:
        return "the code is its parent's, but for comments, spacing or names"
    if key in seen:
        return f"the code is that of node {seen[key]}"
    return ""


def _untimed(trajectory: Trajectory, child: EvaluationSummary) -> str:
    """The reason for a missing figure, and the remedy."""
    if child.timing != "repeat":
        return f"timing is {child.timing}"
    again = f"run `kernlore trajectories verify {trajectory.id}`"
    if trajectory.id.startswith("run_"):
        again = "search again"
    return f"timing is repeat: the machine was busy. Stop other work and {again}"
