"""What each operator computes, as values over places; `OPERATORS` has all of them."""

from optimizer.search.synthesizers.traced.operators import elementwise, gathers, reductions, views
from optimizer.search.synthesizers.traced.operators import elementwise as special
from optimizer.search.synthesizers.traced.operators import gathers as scatters
from optimizer.search.synthesizers.traced.operators import reductions as orders
from optimizer.search.synthesizers.traced.operators import views as windows
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
