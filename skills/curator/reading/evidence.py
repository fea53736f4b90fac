"""A change's measurements as evidence rows, and the figures of a text as references to them.

`{{ev:2.speedup_low}}` is a field of the second row, `{{ev:all.speedup_low}}` the lowest bound of
all. A text is stored rendered, its template beside it. Bounds are rounded outwards.
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
from skills.curator.reading.gate import gain_of
from skills.curator.records import CaseFigure, Change, Measured, Ratio, Side, Subject, Trajectory

EvidenceKind = Literal["pair", "simulator"]
REFERENCE = re.compile(r"\{\{ev:([A-Za-z0-9]+)\.([a-z_]+)\}\}")
_ANY_REFERENCE = re.compile(r"\{\{[^}]*\}\}")


def rows_of(trajectory: Trajectory, change: Change, kind: EvidenceKind) -> tuple[EvidenceRow, ...]:
    """One row for each case that both sides were timed on; else one for the whole.

    created_at is empty: whoever stores the rows dates them.
    """
    child = change.step.child.measured
    assert child is not None
    timed = [(case, _case_gain(change, case)) for case in child.cases]
    found = [(case, gain) for case, gain in timed if gain is not None]
    if not found:
        return (_row(trajectory, change, kind, None, change.gain),)
    return tuple(_row(trajectory, change, kind, case, gain) for case, gain in found)


def _case_gain(change: Change, case: CaseFigure) -> Ratio | None:
    parent, child = change.step.parent, change.step.child
    if case.speedup is None:
        return None
    return gain_of(_only(parent, case.case), _only(child, case.case))


def _only(side: Side, name: str) -> Side:
    """The side as if the case were all that was timed."""
    if side.measured is None:
        return side
    case = next((c for c in side.measured.cases if c.case == name), None)
    figure = case.speedup if case is not None else None
    narrowed = Measured(**{**vars(side.measured), "speedup": figure})
    return Side(side.number, side.kernel, narrowed)


def _row(
    trajectory: Trajectory,
    change: Change,
    kind: EvidenceKind,
    case: CaseFigure | None,
    gain: Ratio | None,
) -> EvidenceRow:
    child, subject = change.step.child.measured, trajectory.subject
    assert child is not None and change.step.child.kernel is not None
    name = case.case if case is not None else None
    parent = change.step.parent.measured
    details = {
        "run": trajectory.id,
        "parent": change.step.parent.number,
        "node": change.step.child.number,
        "parent_evaluation": parent.key if parent is not None else None,
        "transformation": change.transformation,
        "polarity": change.polarity,
        "validity": child.validity,
        "problem": subject.name,
        "op": canonical_op(subject.op),
        "dtype": canonical_dtype(subject.dtype) if subject.dtype else None,
        "language": change.step.child.kernel.language,
        "recipe": change.step.child.kernel.recipe if change.parameters else None,
        "sizes": dict(subject.sizes.get(name or _only_case(subject), {})),
        "synthesizer": change.step.synthesizer,
        "origin": change.step.origin,
        **({"reviewed": child.reviewed} if child.reviewed else {}),
    }
    return EvidenceRow(
        id=derived_id("ev", trajectory.id, change.step.child.number, name, child.key),
        hardware_id=trajectory.hardware,
        device_id=child.device or None,
        toolchain_id=child.toolchain or None,
        problem_id=subject.sha256 or None,
        case_id=name,
        evaluation_id=child.key,
        kind=kind,
        n=gain.n if gain is not None else 1,
        baseline_us=_before(change, case),
        measured_us=case.candidate_us if case is not None else None,
        speedup=gain.value if gain is not None else None,
        speedup_low=gain.low if gain is not None else None,
        speedup_high=gain.high if gain is not None else None,
        details=details,
        created_at="",
    )


def _only_case(subject: Subject) -> str:
    """A failure tells no case; where just one is searched, it was that."""
    searched = subject.cases.get("searched", ())
    return searched[0] if len(searched) == 1 else ""


def _before(change: Change, case: CaseFigure | None) -> float | None:
    """Time of the parent on the case; of the reference where that is the parent."""
    if case is None:
        return None
    if change.step.parent.kernel is None:
        return case.baseline_us
    parent = change.step.parent.measured
    cases = parent.cases if parent is not None else ()
    return next((c.candidate_us for c in cases if c.case == case.case), None)


# -- figures of a text


def _down(value: float) -> str:
    return f"{math.floor(value * 100) / 100:.2f}"


def _up(value: float) -> str:
    return f"{math.ceil(value * 100) / 100:.2f}"


def _sizes(details: Mapping[str, Any]) -> str:
    told = [f"{name}={value:.12g}" for name, value in sorted(details.get("sizes", {}).items())]
    return ", ".join(told) or "sizes not recorded"


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
    """References of a text that lead to no figure."""
    found = []
    for match in _ANY_REFERENCE.finditer(template):
        exact = REFERENCE.fullmatch(match.group())
        if exact is None or _value(exact.group(1), exact.group(2), evidence) is None:
            found.append(match.group())
    return found


def render(template: str, evidence: Sequence[EvidenceRow]) -> str:
    """The text with its figures put in. Raises InvalidKnowledge for one that nobody measured."""

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
    """What can be said of all rows together without averaging: bounds and counts."""
    lows = [row.speedup_low for row in evidence if row.speedup_low is not None]
    highs = [row.speedup_high for row in evidence if row.speedup_high is not None]
    if name == "speedup_low" and lows:
        return _down(min(lows))
    if name == "speedup_high" and highs:
        return _up(max(highs))
    if name == "n" and evidence:
        return str(sum(row.n for row in evidence))
    return None
