"""Gain over the candidates of a run as coordinates of a drawing, which the page draws in its own
colours. A candidate without a figure has no place on the axis of the gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WIDTH, HEIGHT = 900, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 14, 58
LANE = HEIGHT - 34  # where candidates without a figure are drawn


@dataclass(frozen=True)
class CandidateMark:
    """A candidate. `kind` is right, rough, wrong or untimed; `low` and `high` are the ends of its
    interval.
    """

    number: int
    kind: str
    label: str
    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class GainChart:
    """Marks, the line of the best so far, and the labels of both axes (text, place)."""

    marks: list[CandidateMark]
    best: str
    one: float
    gains: list[tuple[str, float]]
    numbers: list[tuple[str, float]]
    kinds: list[str] = field(default_factory=list)
    width: int = WIDTH
    height: int = HEIGHT
    lane: int = LANE


def gain_chart(rows: Sequence[Mapping[str, Any]]) -> GainChart | None:
    """The chart of the candidates' rows, or None without a candidate."""
    tried = [row for row in rows if row["number"] > 0]
    if not tried:
        return None
    values = [1.0]
    for row in tried:
        if row["interval"]:
            values += [row["interval"]["low"], row["interval"]["high"]]
        elif row["rough_gain"]:
            values.append(row["rough_gain"])
    low, high = float(min(values)) / 1.08, float(max(values)) * 1.08
    last = max(int(row["number"]) for row in tried)

    def x(number: int) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * number / max(1, last), 1)

    def y(value: float) -> float:
        share = math.log(value / low) / math.log(high / low)
        return float(round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share, 1))

    marks, best, reached = [], [f"M{x(0)} {y(1.0)}"], 1.0
    for row in tried:
        mark = _mark(row, x(row["number"]), y)
        marks.append(mark)
        if mark.kind == "right" and row["interval"]["value"] > reached:
            best.append(f"H{mark.x}V{mark.y}")
            reached = row["interval"]["value"]
    best.append(f"H{x(last)}")
    step = max(1, math.ceil(last / 12))
    return GainChart(
        marks,
        "".join(best),
        y(1.0),
        [(f"{value:g}x", y(value)) for value in _ticks(low, high)],
        [(str(n), x(n)) for n in range(0, last + 1, step)],
        [kind for kind in KINDS if any(mark.kind == kind for mark in marks)],
    )


@dataclass(frozen=True)
class RoofChart:
    """Marks by their shares of two ceilings; `x` and `y` are the places of 100 %, `ticks` are
    (text, place across, place up)."""

    marks: list[CandidateMark]
    x: float
    y: float
    ticks: list[tuple[str, float, float]]
    width: int = WIDTH
    height: int = HEIGHT + 60


def roof_chart(rows: Sequence[Mapping[str, Any]]) -> RoofChart | None:
    """The chart of the candidates with both shares, or None without any."""
    placed = [row for row in rows if row["shares"]]
    if not placed:
        return None
    top = float(max(105.0, *(1.05 * s for row in placed for s in row["shares"].values())))
    height = HEIGHT + 60

    def x(share: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * share / top, 1)

    def y(share: float) -> float:
        return round(height - 44 - (height - 44 - TOP) * share / top, 1)

    marks = []
    for row in placed:
        compute, memory = row["shares"]["compute"], row["shares"]["memory"]
        name = f"candidate {row['number']}" if row["number"] else "the reference"
        label = f"{name}: {compute:.0f} % of the matrix peak, {memory:.0f} % of the bandwidth"
        kind = "right" if row["number"] else "untimed"
        marks.append(CandidateMark(row["number"], kind, label, x(compute), y(memory)))
    ticks = [(f"{share} %", x(share), y(share)) for share in range(0, 101, 25)]
    return RoofChart(marks, x(100), y(100), ticks)


KINDS = ("right", "rough", "wrong", "untimed")


def _mark(row: Mapping[str, Any], x: float, y: Any) -> CandidateMark:
    number = row["number"]
    if row["interval"]:
        at = row["interval"]
        label = f"candidate {number}: {at['value']:.2f}x [{at['low']:.2f}, {at['high']:.2f}]"
        return CandidateMark(number, "right", label, x, y(at["value"]), y(at["low"]), y(at["high"]))
    if row["rough_gain"]:
        label = f"candidate {number}: {row['rough']}"
        return CandidateMark(number, "rough", label, x, y(row["rough_gain"]))
    kind = "untimed" if row["verdict"] in ("correct", "unmeasured") else "wrong"
    return CandidateMark(number, kind, f"candidate {number}: {row['verdict']}", x, LANE)


def _ticks(low: float, high: float) -> list[float]:
    """At most about six round values of a logarithmic axis."""
    steps = [0.1, 0.25, 0.5, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128]
    fine = (0.8, 0.9, 1.1) if high / low > 2.5 else ()
    inside = [step for step in steps if low <= step <= high and step not in fine]
    return inside[:: max(1, math.ceil(len(inside) / 7))] if len(inside) > 7 else inside
