"""The operators that can be lowered, as functions from the values of arguments to values. Importing
this package fills `lowering.RULES`."""

from optimizer.search.synthesizers.traced.lowering import RULES as OPERATORS
from optimizer.search.synthesizers.traced.operators import elementwise, gathers, reductions, views

__all__ = ["OPERATORS", "elementwise", "gathers", "reductions", "views"]
