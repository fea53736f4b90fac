"""Which changes may become knowledge: those that this product measured, that are correct, faster
beyond noise, honest and new. Informative failures pass as something to avoid. Asks no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeGuard

from kb.catalog.skills import FAILURES
from skills.curator.reading.normalise import kernel_key
from skills.curator.records import Decision, Measured, Ratio, Side, Step, Trajectory
from skills.lint import is_name

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
    """A change that may be learned from. evidence: kind of the rows that it gives."""

    polarity: Polarity
    evidence: Literal["pair", "simulator"]
    gain: Ratio | None


def noise_floor(language: str) -> float:
    """Of a language that runs on either kind of device: the larger one."""
    return NOISE_FLOOR["gpu" if language in GPU_LANGUAGES else "cpu"]


def gain_of(parent: Side, child: Side) -> Ratio | None:
    """Child over parent with its 95 % interval; None where either has no figure of the same clock.

    Both were timed against the reference in sessions of their own, so their errors are independent
    and add as squares on the log scale. The reference itself is 1 by definition.
    """
    if child.measured is None or not _bounded(child.measured.speedup):
        return None
    if parent.kernel is None:
        return child.measured.speedup
    if parent.measured is None or not _bounded(parent.measured.speedup):
        return None
    if parent.measured.timing != child.measured.timing:
        return None
    return ratio(child.measured.speedup, parent.measured.speedup)


def _bounded(figure: Ratio | None) -> TypeGuard[Ratio]:
    """One pair of blocks has no interval: its bounds are 0 and infinity."""
    return figure is not None and 0 < figure.low <= figure.value <= figure.high < math.inf


def ratio(upper: Ratio, lower: Ratio) -> Ratio:
    """upper / lower of two independent figures."""
    centre = math.log(upper.value) - math.log(lower.value)
    down = math.hypot(math.log(upper.value / upper.low), math.log(lower.high / lower.value))
    up = math.hypot(math.log(upper.high / upper.value), math.log(lower.value / lower.low))
    n = min(upper.n, lower.n)
    return Ratio(math.exp(centre), math.exp(centre - down), math.exp(centre + up), n)


def gate(
    trajectory: Trajectory, step: Step, seen: Mapping[str, int]
) -> tuple[Passed | None, Decision]:
    """seen: codes of the run's earlier candidates, and the node of each."""
    refused = _untrusted(trajectory, step) or _dishonest(step) or _not_new(step, seen)
    if refused:
        return None, _decision(step, False, refused)
    child, kernel = step.child.measured, step.child.kernel
    assert child is not None and kernel is not None  # `_untrusted` refuses these
    if child.validity in FAILURES:
        return _failure(step, child)
    if child.validity != "correct" or child.checks[0] != child.checks[1] or child.checks[1] == 0:
        passed, of = child.checks
        return None, _decision(step, False, f"{child.validity}, {passed} of {of} checks passed")
    return _timed(step, child, noise_floor(kernel.language))


def _decision(step: Step, passed: bool, reason: str, **details: object) -> Decision:
    return Decision("gate", step.child.number, passed, reason, details)


def _untrusted(trajectory: Trajectory, step: Step) -> str:
    """Why nothing in this change can be believed."""
    child, subject = step.child, trajectory.subject
    if not trajectory.evaluated_here:
        return "its figures are not of this product's harness"
    if child.kernel is None or child.measured is None:
        return "there is no kernel or no evaluation"
    kernel = child.kernel
    names = [subject.name, subject.op, subject.family, trajectory.hardware, kernel.language]
    names += [subject.dtype or "float32", child.measured.key, trajectory.id, *trajectory.lineage]
    names += [kernel.recipe or "none", *kernel.values, *(c.case for c in child.measured.cases)]
    names += [name for sizes in subject.sizes.values() for name in sizes]
    names += [v for v in kernel.values.values() if isinstance(v, str)]
    odd = next((name for name in names if not is_name(name)), None)
    return "" if odd is None else f"{odd[:40]!r} is no name"


def _dishonest(step: Step) -> str:
    for what, side in (("it", step.child.measured), ("its parent", step.parent.measured)):
        if side is not None and (side.rejected or side.validity == "rejected"):
            return f"{what} was rejected: {'; '.join(side.flags) or 'an integrity finding'}"
        if side is not None and side.flags:
            return f"held for a person: {what} was flagged for review: {'; '.join(side.flags)}"
    return ""


def _not_new(step: Step, seen: Mapping[str, int]) -> str:
    assert step.child.kernel is not None
    key = kernel_key(step.child.kernel)
    if step.parent.kernel is not None and kernel_key(step.parent.kernel) == key:
        return "the code is its parent's, but for comments, spacing or names"
    if key in seen:
        return f"the code is that of node {seen[key]}"
    return ""


def _failure(step: Step, child: Measured) -> tuple[Passed | None, Decision]:
    """A lesson only where the parent worked: then the change is what broke it."""
    parent = step.parent.measured
    if parent is None or parent.validity != "correct" or step.parent.kernel is None:
        return None, _decision(step, False, f"{child.validity}, and no working parent beside it")
    reason = f"{child.validity} where the parent was correct"
    return Passed("avoid", "pair", None), _decision(step, True, reason, polarity="avoid")


def _timed(step: Step, child: Measured, floor: float) -> tuple[Passed | None, Decision]:
    if child.timing not in UNDERSTOOD:
        return None, _decision(step, False, f"timing is {child.timing}")
    gain = gain_of(step.parent, step.child)
    if gain is None:
        return None, _decision(step, False, "parent and child have no figures of the same clock")
    kind: Literal["pair", "simulator"] = "simulator" if child.timing == "simulator" else "pair"
    told = {"low": gain.low, "high": gain.high, "floor": floor, "evidence": kind}
    interval = f"[{gain.low:.3f}, {gain.high:.3f}]"
    if gain.low > 1 + floor:
        reason = f"faster than its parent beyond noise: {interval}"
        return Passed("use", kind, gain), _decision(step, True, reason, polarity="use", **told)
    if gain.high < 1 - floor:
        reason = f"slower than its parent beyond noise: {interval}"
        return Passed("avoid", kind, gain), _decision(step, True, reason, polarity="avoid", **told)
    return None, _decision(step, False, f"no certain difference from its parent: {interval}")
