"""Places that may lie outside of a tensor."""

from __future__ import annotations

from optimizer.search.synthesizers.traced.expression import (
    Expression,
    call,
    cast,
    counted,
    literal,
)
from optimizer.search.synthesizers.traced.index import (
    Index,
    bounds,
    read,
)
from optimizer.search.synthesizers.traced.lowering import (
    Places,
    Value,
)


def within(place: Index, size: int) -> Index:
    """The place, moved to the nearest end where it lies outside."""
    low, high = bounds(place)
    if low >= 0 and high < size:
        return place
    number = counted(place)
    least = call("max", (number, literal(0, "int64")), "int64")
    return read(call("min", (least, literal(size - 1, "int64")), "int64"), 0, size - 1)


def guarded(value: Value, places: Places, fill: Expression) -> Expression:
    """The element at these places, `fill` where one of them lies outside."""
    inside: Expression | None = None
    for place, size in zip(places, value.shape, strict=True):
        low, high = bounds(place)
        tests = [("ge", 0)] * (low < 0) + [("lt", size)] * (high >= size)
        for name, limit in tests:
            test = call(name, (counted(place), literal(limit, "int64")), "bool")
            inside = test if inside is None else call("and", (inside, test), "bool")
    own = tuple(within(p, size) for p, size in zip(places, value.shape, strict=True))
    element = cast(value.at(own), fill.dtype)
    return element if inside is None else call("where", (inside, element, fill), fill.dtype)
