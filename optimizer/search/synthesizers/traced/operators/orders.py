"""Orders of elements: sorting, and what is taken from a sorted row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from optimizer.search.synthesizers.traced.expression import (
    FLOATS,
    Expression,
    call,
    cast,
    counted,
    literal,
)
from optimizer.search.synthesizers.traced.index import Index, index, read, unflattened
from optimizer.search.synthesizers.traced.lowering import (
    Lowering,
    NotLowered,
    Places,
    Value,
    broadcast,
    result,
)
from optimizer.search.synthesizers.traced.operators.reductions import extreme_place, over, scanned
from optimizer.search.synthesizers.traced.operators.rules import rule
from optimizer.search.synthesizers.traced.program import Order


def _order(
    lowering: Lowering, value: Value, dim: int, descending: bool, first: int | None = None
) -> Value:
    """The places of the elements along a dimension in their order; the `first` ones, or all."""
    if 0 in value.shape or first == 0:
        raise NotLowered("an order of nothing")
    if value.shape[dim] == 1:
        return broadcast(0, value.shape, "int64")
    variables = lowering.variables(value.shape)
    space = tuple(v for v in variables if v.extent != 1)
    places = tuple(index(v) if v.extent != 1 else Index() for v in variables)
    order = Order(variables[dim], descending, first or value.shape[dim])
    return lowering.stage(value.at(places), space, value.shape, "int64", order=order)


def _sorted(
    lowering: Lowering, value: Value, dim: int, descending: bool, first: int | None = None
) -> tuple[Value, Value]:
    """The elements in their order, and their places; a stable sort."""
    value = _held(lowering, value)
    order = _order(lowering, value, dim, descending, first)
    size = value.shape[dim]

    def at(places: Places) -> Expression:
        place = read(order.at(places), 0, size - 1)
        return value.at((*places[:dim], place, *places[dim + 1 :]))

    return Value(value.shape, value.dtype, at), order


def _held(lowering: Lowering, value: Value) -> Value:
    """The value in memory: it is read twice."""
    places = tuple(map(index, lowering.variables(value.shape)))
    held = 0 in value.shape or value.at(places).name == "load"
    return value if held else lowering.kept(value)


def _row(lowering: Lowering, node: fx.Node, place: int, default: int = -1) -> tuple[Value, int]:
    """The first argument with at least one dimension, and the dimension that another one names."""
    value = lowering.tensor(node, 0)
    if not value.shape:
        own = value
        value = Value((1,), own.dtype, lambda p: own.at(()))
    dim = lowering.argument(node, place, "dim", default)
    return value, dim % len(value.shape)


def _constant(of: Expression) -> Callable[[Places], Expression]:
    return lambda _: of


def _given(node: fx.Node, parts: tuple[Value, Value]) -> tuple[Value, ...]:
    """The parts in the shapes and dtypes that torch gives them, of which one may have none."""
    made = []
    for value, meta in zip(parts, node.meta["val"], strict=True):
        shape, dtype = tuple(map(int, meta.shape)), str(meta.dtype).removeprefix("torch.")
        if len(shape) == len(value.shape):
            made.append(Value(shape, dtype, value.at))
        else:
            made.append(Value(shape, dtype, _constant(value.at((Index(),)))))
    return tuple(made)


@rule("aten.sort", "aten.sort.stable")
def _sort(lowering: Lowering, node: fx.Node) -> tuple[Value, ...]:
    stable = "stable" in str(node.target)
    value, dim = _row(lowering, node, 99 if stable else 1)
    descending = bool(lowering.argument(node, 99 if stable else 2, "descending", False))
    return _given(node, _sorted(lowering, value, dim, descending))


@rule("aten.topk")
def _topk(lowering: Lowering, node: fx.Node) -> tuple[Value, ...]:
    count = lowering.argument(node, 1)
    value, dim = _row(lowering, node, 2)
    largest = bool(lowering.argument(node, 3, "largest", True))
    return _given(node, _sorted(lowering, value, dim, largest, count))


@rule("aten.kthvalue")
def _kthvalue(lowering: Lowering, node: fx.Node) -> tuple[Value, ...]:
    number = lowering.argument(node, 1)
    value, dim = _row(lowering, node, 2)
    parts = _sorted(lowering, value, dim, False, number)
    return _one_of_each(node, parts, dim, lambda _: Index((), number - 1))


def _one_of_each(
    node: fx.Node, parts: tuple[Value, Value], dim: int, where: Any
) -> tuple[Value, ...]:
    """One place of each row: `where` gives it for the places of the other dimensions, with 0 in the
    row's own."""
    made = []
    for value, meta in zip(parts, node.meta["val"], strict=True):
        shape, dtype = tuple(map(int, meta.shape)), str(meta.dtype).removeprefix("torch.")
        made.append(Value(shape, dtype, _picked(value, dim, len(shape), where)))
    return tuple(made)


def _picked(value: Value, dim: int, rank: int, where: Any) -> Any:
    def at(places: Places) -> Expression:
        own = list(places)
        if rank != len(value.shape):
            own.insert(dim, Index())
        own[dim] = Index()
        own[dim] = where(tuple(own))
        return value.at(tuple(own))

    return at


@rule("aten.median.dim", "aten.nanmedian.dim")
def _median(lowering: Lowering, node: fx.Node) -> tuple[Value, ...]:
    value, dim = _row(lowering, node, 1)
    parts = _sorted(lowering, value, dim, False)
    where = _middle(lowering, value, dim, skips="nan" in str(node.target))
    return _one_of_each(node, parts, dim, where)


@rule("aten.median", "aten.nanmedian")
def _median_of_all(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    own = lowering.tensor(node, 0)
    count = 1
    for size in own.shape:
        count *= size
    flat = Value((count,), own.dtype, lambda p: own.at(unflattened(p[0], own.shape)))
    ordered, _ = _sorted(lowering, flat, 0, False)
    where = _middle(lowering, flat, 0, skips="nan" in str(node.target))
    return Value(shape, dtype, lambda _: ordered.at((where((Index(),)),)))


def _middle(lowering: Lowering, value: Value, dim: int, skips: bool) -> Any:
    """Where the lower one of the middle elements of a sorted row is; the first NaN, which stand at
    the end, unless the median `skips` these."""
    size = value.shape[dim]
    if value.dtype not in FLOATS:
        return lambda _: Index((), (size - 1) // 2)

    def is_number(places: Places) -> Expression:
        number = call("not", (call("isnan", (value.at(places),), "bool"),), "bool")
        return cast(number, "int64")

    count = over(lowering, Value(value.shape, "int64", is_number), [dim], "sum", True, "int64")

    def where(places: Places) -> Index:
        numbers = count.at(places)
        if skips:
            less = call("sub", (numbers, literal(1, "int64")), "int64")
            most = call("max", (less, literal(0, "int64")), "int64")
            return read(most, 0, size - 1) // 2
        whole = call("lt", (numbers, literal(size, "int64")), "bool")
        middle = literal((size - 1) // 2, "int64")
        return read(call("where", (whole, numbers, middle), "int64"), 0, size - 1)

    return where


@rule("aten.mode")
def _mode(lowering: Lowering, node: fx.Node) -> tuple[Value, ...]:
    """The first element of the longest run of a sorted row."""
    value, dim = _row(lowering, node, 1)
    ordered, order = _sorted(lowering, value, dim, False)
    if value.shape[dim] == 1:
        return _one_of_each(node, (ordered, order), dim, lambda _: Index())
    ordered = lowering.kept(ordered)

    def begins(places: Places) -> Expression:
        """The place itself where a run begins there, else 0."""
        before = (*places[:dim], _before(places[dim]), *places[dim + 1 :])
        same = call("eq", (ordered.at(places), ordered.at(before)), "bool")
        return call("where", (same, literal(0, "int64"), counted(places[dim])), "int64")

    first = scanned(lowering, Value(value.shape, "int64", begins), dim, "max")

    def length(places: Places) -> Expression:
        return call("sub", (counted(places[dim]), first.at(places)), "int64")

    longest = Value(value.shape, "int64", length)
    _, place = extreme_place(lowering, longest, dim, "max", True)
    size = value.shape[dim]
    return _one_of_each(node, (ordered, order), dim, lambda p: read(place.at(p), 0, size - 1))


def _before(place: Index) -> Index:
    number = call("sub", (counted(place), literal(1, "int64")), "int64")
    least = call("max", (number, literal(0, "int64")), "int64")
    return read(least, 0)


@rule("aten.cummax", "aten.cummin")
def _running_extreme(lowering: Lowering, node: fx.Node) -> tuple[Value, ...]:
    """The extreme so far, and the last place that held it."""
    value, dim = _row(lowering, node, 1)
    if value.shape[dim] == 1:
        return _given(node, (value, broadcast(0, value.shape, "int64")))
    extreme = scanned(lowering, value, dim, "max" if "cummax" in str(node.target) else "min")

    def reached(places: Places) -> Expression:
        own = value.at(places)
        same = call("eq", (own, cast(extreme.at(places), own.dtype)), "bool")
        if own.dtype in FLOATS:
            same = call("or", (same, call("isnan", (own,), "bool")), "bool")
        return call("where", (same, counted(places[dim]), literal(0, "int64")), "int64")

    place = scanned(lowering, Value(value.shape, "int64", reached), dim, "max")
    return _given(node, (extreme, place))


@rule("aten.logcumsumexp")
def _running_sum_of_exponentials(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    if not shape:
        return lowering.tensor(node, 0)
    value, dim = _row(lowering, node, 1)
    if value.shape[dim] == 1:
        return broadcast(value, shape, dtype)
    return broadcast(scanned(lowering, value, dim, "logaddexp"), shape, dtype)
