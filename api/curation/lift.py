"""What showing a skill is worth: outcomes of answers that showed it, beside those that would have
and withheld it.

The interval of the difference of the two rates is Newcombe's, from their Wilson intervals (method
10 of R. G. Newcombe, "Interval estimation for the difference between independent proportions",
Statistics in Medicine 17, 1998).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from api.services import Services
from kb.catalog import skills as store
from kb.scope import ALL_ACCESS

Z = 1.959963984540054  # 95 %, two-sided


@dataclass(frozen=True)
class Bounds:
    low: float
    high: float


def lift_told(services: Services, name: str) -> dict[str, Any]:
    """lift: rate shown minus rate withheld, None where either has no outcome. Raises NotFound."""
    with services.catalog.read() as connection:
        skill = store.get(connection, name, ALL_ACCESS)
        found = store.lift_of(connection, skill.id)
    told: dict[str, Any] = {
        "skill": name,
        "shown": f"helped in {found.shown_wins} of {found.shown} with a known effect",
        "withheld": f"helped in {found.withheld_wins} of {found.withheld} with a known effect",
        "lift": None,
        "low": None,
        "high": None,
    }
    if not found.shown or not found.withheld:
        missing = "shown" if not found.shown else "withheld"
        return {**told, "reason": f"no outcome of an answer that had it {missing}: no lift"}
    shown, withheld = found.shown_wins / found.shown, found.withheld_wins / found.withheld
    one, other = wilson(found.shown_wins, found.shown), wilson(found.withheld_wins, found.withheld)
    down = math.hypot(shown - one.low, other.high - withheld)
    up = math.hypot(one.high - shown, withheld - other.low)
    lift = shown - withheld
    certain = lift - down > 0 or lift + up < 0
    return {
        **told,
        "lift": round(lift, 4),
        "low": round(lift - down, 4),
        "high": round(lift + up, 4),
        "reason": "certain at 95 %" if certain else "the interval holds 0: nothing certain",
    }


def wilson(wins: int, trials: int) -> Bounds:
    """The 95 % score interval of a rate; trials above 0."""
    rate, spread = wins / trials, Z * Z / trials
    centre = (rate + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(rate * (1 - rate) / trials + spread / (4 * trials))
    return Bounds(max(0.0, centre - half), min(1.0, centre + half))
