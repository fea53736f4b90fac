"""The measurements of a change as evidence rows, and the figures of a text as references to them.

`{{ev:2.speedup_low}}` is a field of the second row, `{{ev:all.speedup_low}}` the lowest bound of
all rows. Texts are stored rendered, with their template. Bounds are rounded outwards.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from kb.catalog.skills import EvidenceRow
from kb.errors import InvalidKnowledge
from kb.ids import derived_id
from kb.problem_terms import canonical_dtype, canonical_op
from optimizer.evaluation.records import CaseTiming, Interval
from skills.curator.gate import gain_of
from skills.curator.records import KernelChange
from skills.trajectories.records import Trajectory, TrajectoryProblem

EvidenceKind = Literal["pair", "simulator"]
REFERENCE = re.compile(r"\{\{ev:([A-Za-z0-9]+)\.([a-z_]+)\}\}")
_ANY_REFERENCE = re.compile(r"\{\{[^}]*\}\}")


def rows_of(
    trajectory: Trajectory, change: KernelChange, kind: EvidenceKind
) -> tuple[EvidenceRow, ...]:
    """One row for each case that both kernels were timed on; otherwise one for the whole change.
    created_at is empty until the rows are stored."""
    parent, child = change.step.parent, change.step.child
    assert child.evaluation is not None
    rows = []
    for timing in child.evaluation.cases:
        gain = gain_of(parent, child, timing.case)
        if gain is not None:
            rows.append(_row(trajectory, change, kind, timing, gain))
    return tuple(rows) or (_row(trajectory, change, kind, None, change.gain),)


def _row(
    trajectory: Trajectory,
    change: KernelChange,
    kind: EvidenceKind,
    timing: CaseTiming | None,
    gain: Interval | None,
) -> EvidenceRow:
    child, subject, proposal = change.step.child, trajectory.subject, change.step.proposal
    evaluation, parent = child.evaluation, change.step.parent.evaluation
    assert evaluation is not None
    name = timing.case if timing is not None else None
    details = {
        "run": trajectory.id,
        "parent": change.step.parent.number,
        "node": child.number,
        "parent_evaluation": parent.key if parent is not None else None,
        "transformation": change.transformation,
        "polarity": change.polarity,
        "validity": evaluation.validity,
        "problem": subject.name,
        "op": canonical_op(subject.op),
        "dtype": canonical_dtype(subject.dtype) if subject.dtype else None,
        "language": change.language,
        "recipe": proposal.recipe if change.parameters else None,
        "sizes": dict(subject.sizes.get(name or _only_case(subject), {})),
        "synthesizer": proposal.synthesizer,
        "origin": proposal.origin,
        **({"reviewed": evaluation.reviewed} if evaluation.reviewed else {}),
    }
    return EvidenceRow(
        id=derived_id("ev", trajectory.id, child.number, name, evaluation.key),
        hardware_id=trajectory.hardware,
        device_id=evaluation.device or None,
        toolchain_id=evaluation.toolchain or None,
        problem_id=subject.sha256 or None,
        case_id=name,
        evaluation_id=evaluation.key,
        kind=kind,
        n=gain.n if gain is not None else 1,
        baseline_us=_before(change, timing),
        measured_us=timing.candidate_us if timing is not None else None,
        speedup=gain.value if gain is not None else None,
        speedup_low=gain.low if gain is not None else None,
        speedup_high=gain.high if gain is not None else None,
        details=details,
        created_at="",
    )


def _only_case(subject: TrajectoryProblem) -> str:
    """The searched case if there is one alone: a failure names no case."""
    searched = subject.cases.get("searched", ())
    return searched[0] if len(searched) == 1 else ""


def _before(change: KernelChange, timing: CaseTiming | None) -> float | None:
    """The parent's time on the case in microseconds; the parent may be the reference."""
    if timing is None:
        return None
    if change.step.parent.proposal is None:
        return timing.baseline_us
    own = change.step.parent.timing(timing.case)
    return own.candidate_us if own is not None else None


# -- figures of a text


def _down(value: float) -> str:
    return f"{math.floor(value * 100) / 100:.2f}"


def _up(value: float) -> str:
    return f"{math.ceil(value * 100) / 100:.2f}"


def _sizes(details: Mapping[str, Any]) -> str:
    sizes = [f"{name}={value:.12g}" for name, value in sorted(details.get("sizes", {}).items())]
    return ", ".join(sizes) or "sizes not recorded"


_FIELDS: Mapping[str, Callable[[EvidenceRow], str | None]] = {
    "speedup": lambda row: None if row.speedup is None else f"{row.speedup:.2f}",
    "speedup_low": lambda row: None if row.speedup_low is None else _down(row.speedup_low),
    "speedup_high": lambda row: None if row.speedup_high is None else _up(row.speedup_high),
    "baseline_us": lambda row: None if row.baseline_us is None else f"{row.baseline_us:.1f}",
    "measured_us": lambda row: None if row.measured_us is None else f"{row.measured_us:.1f}",
    "n": lambda row: str(row.n),
    "case_id": lambda row: row.case_id or "all cases",
    "hardware_id": lambda row: row.hardware_id,
    "kind": lambda row: row.kind,
    "validity": lambda row: str(row.details.get("validity", "")).replace("_", " ") or None,
    "sizes": lambda row: _sizes(row.details),
}
FIELDS = tuple(_FIELDS)


def dangling(template: str, evidence: Sequence[EvidenceRow]) -> list[str]:
    """References of a text that have no figure."""
    missing = []
    for match in _ANY_REFERENCE.finditer(template):
        exact = REFERENCE.fullmatch(match.group())
        if exact is None or _value(exact.group(1), exact.group(2), evidence) is None:
            missing.append(match.group())
    return missing


def render(template: str, evidence: Sequence[EvidenceRow]) -> str:
    """The text with figures in place of references. Raises InvalidKnowledge for a reference without
    one."""

    def put(match: re.Match[str]) -> str:
        value = _value(match.group(1), match.group(2), evidence)
        if value is None:
            raise InvalidKnowledge(
                f"{match.group()} refers to no figure",
                hint=f"There are {len(evidence)} rows with the fields {', '.join(FIELDS)}.",
            )
        return value

    return REFERENCE.sub(put, template)


def _value(row: str, name: str, evidence: Sequence[EvidenceRow]) -> str | None:
    if row == "all":
        return _over_all(name, evidence)
    if name not in _FIELDS or not row.isdigit() or not 1 <= int(row) <= len(evidence):
        return None
    return _FIELDS[name](evidence[int(row) - 1])


def _over_all(name: str, evidence: Sequence[EvidenceRow]) -> str | None:
    """Bounds and counts over all rows; figures are never averaged."""
    lows = [row.speedup_low for row in evidence if row.speedup_low is not None]
    highs = [row.speedup_high for row in evidence if row.speedup_high is not None]
    if name == "speedup_low" and lows:
        return _down(min(lows))
    if name == "speedup_high" and highs:
        return _up(max(highs))
    if name == "n" and evidence:
        return str(sum(row.n for row in evidence))
    return None
