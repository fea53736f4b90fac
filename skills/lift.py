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

from kb.catalog import skills as store
from kb.catalog.skills import Lift, wilson
from kb.scope import ALL_ACCESS
from retrieval.knowledge_base import KnowledgeBase


@dataclass(frozen=True)
class Difference:
    """Of two rates, with its 95 % interval."""

    value: float
    low: float
    high: float


def lift_told(base: KnowledgeBase, name: str) -> dict[str, Any]:
    """lift: rate shown minus rate withheld, None where either has no outcome. Raises NotFound."""
    with base.catalog.read() as connection:
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
    lift = difference(found)
    certain = lift.low > 0 or lift.high < 0
    return {
        **told,
        "lift": round(lift.value, 4),
        "low": round(lift.low, 4),
        "high": round(lift.high, 4),
        "reason": "certain at 95 %" if certain else "the interval holds 0: nothing certain",
    }


def difference(found: Lift) -> Difference:
    """Rate shown minus rate withheld; both counts above 0."""
    shown, withheld = found.shown_wins / found.shown, found.withheld_wins / found.withheld
    one, other = wilson(found.shown_wins, found.shown), wilson(found.withheld_wins, found.withheld)
    value = shown - withheld
    return Difference(
        value,
        value - math.hypot(shown - one.low, other.high - withheld),
        value + math.hypot(one.high - shown, withheld - other.low),
    )
