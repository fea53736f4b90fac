"""What each operator computes, as values over places; `OPERATORS` has all of them."""

from optimizer.search.synthesizers.traced.operators import (
    elementwise,
    gathers,
    orders,
    reductions,
    scatters,
    special,
    views,
    windows,
)
from optimizer.search.synthesizers.traced.operators.rules import RULES as OPERATORS

__all__ = [
    "OPERATORS",
    "elementwise",
    "gathers",
    "orders",
    "reductions",
    "scatters",
    "special",
    "views",
    "windows",
]
