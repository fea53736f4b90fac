"""Which changes may become knowledge: those that this product measured, that are correct, faster
beyond noise, honest and new. Informative failures pass as something to avoid. Asks no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kb.catalog.skills import FAILURES
from optimizer.evaluation.records import Evaluation, Interval
from optimizer.evaluation.timing.statistics import bounded, independent_ratio
from skills.curator.records import Decision
from skills.curator.texts import kernel_key
from skills.format.lint import is_name
from skills.trajectories.records import MeasuredKernel, Trajectory, TrajectoryStep

# By how much the lower bound must be off 1, as a ratio. The standard deviation, in log units, of
# two processes that run the same code, as the harness measured it (`BETWEEN` of its block timing,
# `python -m benchmarks.evaluation.checks`). A ratio's interval has it in already; the floor is for
# having looked at many candidates.
NOISE_FLOOR: Mapping[str, float] = {"cpu": 0.018, "gpu": 0.005}
GPU_LANGUAGES = frozenset({"triton", "cuda", "hip"})
UNDERSTOOD = frozenset({"measured", "simulator"})

Polarity = Literal["use", "avoid"]


@dataclass(frozen=True)
class Passed:
    """A change that may be learned from. `evidence` is the kind of the rows that it gives."""

    polarity: Polarity
    evidence: Literal["pair", "simulator"]
    gain: Interval | None


def noise_floor(language: str) -> float:
    """By how much a bound must be off 1 for a language, as a ratio; the larger floor where it runs
    on either kind of device."""
    return NOISE_FLOOR["gpu" if language in GPU_LANGUAGES else "cpu"]


def gain_of(parent: MeasuredKernel, child: MeasuredKernel) -> Interval | None:
    """Child over parent with its 95 % interval; None where either has no bounded figure of the same
    clock.

    Both were timed against the reference in sessions of their own, so their errors are independent.
    The reference itself is 1 by definition.
    """
    own = child.speedup
    if own is None or not bounded(own):
        return None
    if parent.proposal is None:
        return own
    if parent.speedup is None or _timing(parent) != _timing(child):
        return None
    return independent_ratio(own, parent.speedup)


def _timing(side: MeasuredKernel) -> str:
    return side.evaluation.timing if side.evaluation is not None else "none"


def gate(
    trajectory: Trajectory, step: TrajectoryStep, seen: Mapping[str, int]
) -> tuple[Passed | None, Decision]:
    """Whether a change may be learned from, with the decision either way. `seen` holds the code
    (`texts.kernel_key`) of the run's earlier candidates, and the node of each."""
    refused = _untrusted(trajectory, step) or _dishonest(step) or _not_new(step, seen)
    if refused:
        return None, _decision(step, False, refused)
    evaluation = step.child.evaluation
    assert evaluation is not None  # `_untrusted` refuses these
    if evaluation.validity in FAILURES:
        return _failure(step, evaluation)
    passed, count = step.child.checks
    if not evaluation.correct or passed != count or count == 0:
        reason = f"{evaluation.validity}, {passed} of {count} checks passed"
        return None, _decision(step, False, reason)
    return _timed(trajectory, step, evaluation, noise_floor(step.proposal.bundle.language))


def mistrust(trajectory: Trajectory, step: TrajectoryStep) -> str:
    """Why a change may not be learned from whatever it did: not measured here, odd names, flags,
    or the same code as before; empty where it may."""
    return _untrusted(trajectory, step) or _dishonest(step) or _not_new(step, {})


def _decision(step: TrajectoryStep, passed: bool, reason: str, **details: object) -> Decision:
    return Decision("gate", step.child.number, passed, reason, details)


def _untrusted(trajectory: Trajectory, step: TrajectoryStep) -> str:
    """Why nothing in this change counts; empty where it does."""
    child, subject = step.child, trajectory.subject
    if not trajectory.evaluated_here:
        return "its figures are not of this product's harness"
    proposal, evaluation = child.proposal, child.evaluation
    if proposal is None or evaluation is None:
        return "there is no kernel or no evaluation"
    language, values = proposal.bundle.language, proposal.values
    names = [subject.name, subject.op, subject.family, trajectory.hardware, language]
    names += [subject.dtype or "float32", evaluation.key, trajectory.id, *trajectory.lineage]
    names += [proposal.recipe or "none", *values, *(t.case for t in evaluation.timings)]
    names += [name for sizes in subject.sizes.values() for name in sizes]
    names += [value for value in values.values() if isinstance(value, str)]
    odd = next((name for name in names if not is_name(name)), None)
    return "" if odd is None else f"{odd[:40]!r} is no name"


def _dishonest(step: TrajectoryStep) -> str:
    for what, side in (("it", step.child), ("its parent", step.parent)):
        if side.rejected:
            return f"{what} was rejected: {'; '.join(side.flags) or 'an integrity finding'}"
        if side.flags:
            return f"held for a person: {what} was flagged for review: {'; '.join(side.flags)}"
    return ""


def _not_new(step: TrajectoryStep, seen: Mapping[str, int]) -> str:
    key = kernel_key(step.proposal.bundle)
    if step.parent.bundle is not None and kernel_key(step.parent.bundle) == key:
        return "the code is its parent's, but for comments, spacing or names"
    if key in seen:
        return f"the code is that of node {seen[key]}"
    return ""


def _untimed(trajectory: Trajectory, child: Evaluation) -> str:
    """Why there is no figure, and what to do about it."""
    if child.timing != "repeat":
        return f"timing is {child.timing}"
    again = f"run `kernlore trajectories verify {trajectory.id}`"
    if trajectory.id.startswith("run_"):
        again = "search again"
    return f"timing is repeat: the machine was busy. Stop other work and {again}"


def _failure(step: TrajectoryStep, child: Evaluation) -> tuple[Passed | None, Decision]:
    """A lesson only where the parent worked: then the change is what broke it."""
    parent = step.parent.evaluation
    if parent is None or not parent.correct or step.parent.proposal is None:
        return None, _decision(step, False, f"{child.validity}, and no working parent beside it")
    reason = f"{child.validity} where the parent was correct"
    return Passed("avoid", "pair", None), _decision(step, True, reason, polarity="avoid")


def _timed(
    trajectory: Trajectory, step: TrajectoryStep, child: Evaluation, floor: float
) -> tuple[Passed | None, Decision]:
    if child.timing not in UNDERSTOOD:
        return None, _decision(step, False, _untimed(trajectory, child))
    gain = gain_of(step.parent, step.child)
    if gain is None:
        return None, _decision(step, False, "parent and child have no figures of the same clock")
    kind: Literal["pair", "simulator"] = "simulator" if child.timing == "simulator" else "pair"
    figures = {"low": gain.low, "high": gain.high, "floor": floor, "evidence": kind}
    interval = f"[{gain.low:.3f}, {gain.high:.3f}]"
    if gain.low > 1 + floor:
        reason = f"faster than its parent beyond noise: {interval}"
        return Passed("use", kind, gain), _decision(step, True, reason, polarity="use", **figures)
    if gain.high < 1 - floor:
        reason = f"slower than its parent beyond noise: {interval}"
        return Passed("avoid", kind, gain), _decision(
            step, True, reason, polarity="avoid", **figures
        )
    return None, _decision(step, False, f"no certain difference from its parent: {interval}")
