"""How sure a rate is."""

from __future__ import annotations

import math
from dataclasses import dataclass

Z95 = 1.959963984540054  # of the normal distribution, 95 % two-sided


@dataclass(frozen=True)
class Bounds:
    low: float
    high: float


def wilson(wins: int, trials: int) -> Bounds:
    """Wilson's 95 % score interval of a rate; all of it, 0 to 1, without trials.

    Wilson 1927, "Probable inference, the law of succession, and statistical inference", JASA 22.
    """
    if trials == 0:
        return Bounds(0.0, 1.0)
    rate, spread = wins / trials, Z95 * Z95 / trials
    centre = (rate + spread / 2) / (1 + spread)
    half = Z95 / (1 + spread) * math.sqrt(rate * (1 - rate) / trials + spread / (4 * trials))
    return Bounds(max(0.0, centre - half), min(1.0, centre + half))
