"""Reductions, scans, and products of matrices as sums."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import Any

from torch import fx

from optimizer.search.synthesizers.traced.expression import (
    FLOATS,
    Combine,
    ElementExpression,
    Order,
    call,
    cast,
    computed_in,
    counted,
    literal,
)
from optimizer.search.synthesizers.traced.index import Index, Var, index, read, unflattened
from optimizer.search.synthesizers.traced.lowering import (
    EXPENSIVE,
    Lowering,
    NotLowered,
    OperatorCall,
    Places,
    Value,
    broadcast,
    pointwise,
    rule,
)

LEAST_ROWS = 128  # scans of fewer rows do not fill a GPU with one row per program


def _reduced(op: OperatorCall, combine: Combine, value: Value) -> Value:
    """One reduction of `value` over the dimensions that the node names."""
    dims = _dims(op.argument(1, "dim"), len(value.shape))
    keep = bool(op.argument(2, "keepdim", False)) and "prims" not in str(op.node.target)
    return over(op.lowering, value, dims, combine, keep, computed_in(op.dtype))


def _dims(dims: Any, count: int) -> list[int]:
    if dims is None or dims == []:
        return list(range(count))
    return sorted(d % count for d in ([dims] if isinstance(dims, int) else dims))


def over(
    lowering: Lowering, value: Value, dims: list[int], combine: Combine, keep: bool, dtype: str
) -> Value:
    """The value combined over dimensions, in this dtype."""
    if 0 in value.shape:
        raise NotLowered("a reduction of nothing")
    variables = lowering.variables(value.shape)
    space = tuple(v for d, v in enumerate(variables) if d not in dims and value.shape[d] != 1)
    reduced = tuple(v for d, v in enumerate(variables) if d in dims and v.extent != 1)
    places = tuple(index(v) if v.extent != 1 else Index() for v in variables)
    shape = tuple(
        1 if d in dims else size for d, size in enumerate(value.shape) if keep or d not in dims
    )
    body = cast(value.at(places), dtype)
    return lowering.stage(body, space, shape, dtype, reduced, combine)


@rule("aten.sum.dim_IntList", "aten.sum", "prims.sum")
def _sum(op: OperatorCall) -> Value:
    return _reduced(op, "sum", op.argument(0))


@rule("aten.prod.dim_int", "aten.prod", "prims.prod")
def _prod(op: OperatorCall) -> Value:
    return _reduced(op, "prod", op.argument(0))


@rule("aten.amax", "prims.amax", "aten.max")
def _amax(op: OperatorCall) -> Value:
    return _reduced(op, "max", op.argument(0))


@rule("aten.amin", "prims.amin", "aten.min")
def _amin(op: OperatorCall) -> Value:
    return _reduced(op, "min", op.argument(0))


@rule("aten.cumsum", "aten.cumprod")
def _scan(op: OperatorCall) -> Value:
    value = op.tensor(0)
    dim = op.argument(1) % max(len(op.shape), 1)
    if not op.shape or op.shape[dim] == 1:
        return broadcast(value, op.shape, op.dtype)
    combine: Combine = "sum" if "cumsum" in str(op.node.target) else "prod"
    return scanned(op.lowering, broadcast(value, op.shape, op.dtype), dim, combine)


def scanned(lowering: Lowering, value: Value, dim: int, combine: Combine) -> Value:
    """The running combination along a dimension of more than one element."""
    if 0 in value.shape:
        raise NotLowered("a scan of nothing")
    if lowering.leaves_to_torch and prod(value.shape) // value.shape[dim] < LEAST_ROWS:
        raise NotLowered("a scan of few rows")
    variables = lowering.variables(value.shape)
    places = tuple(index(v) if v.extent != 1 else Index() for v in variables)
    space = tuple(v for v in variables if v.extent != 1)
    if space[-1] is variables[dim] and value.at(places).cost >= EXPENSIVE:
        value = lowering.materialized(value)  # compilers vectorize nothing else inside of a scan
    body = cast(value.at(places), computed_in(value.dtype))
    return lowering.stage(
        body, space, value.shape, value.dtype, combine=combine, scanned=variables[dim]
    )


@rule("aten.mean.dim", "aten.mean")
def _mean(op: OperatorCall) -> Value:
    total = _reduced(op, "sum", op.tensor(0))
    count = prod(op.tensor(0).shape) / max(prod(op.shape), 1)
    return pointwise("mul", [total, 1.0 / count], op.shape, computed_in(op.dtype), op.dtype)


@rule("aten.linalg_vector_norm")
def _vector_norm(op: OperatorCall) -> Value:
    value, inner = op.tensor(0), computed_in(op.dtype)
    order = float(op.argument(1, "ord", 2))
    dims = _dims(op.argument(2, "dim"), len(value.shape))
    keep = bool(op.argument(3, "keepdim", False))
    size = pointwise("abs", [value], value.shape, inner, inner)
    if order in (inf, -inf):
        return over(op.lowering, size, dims, "max" if order > 0 else "min", keep, inner)
    if order == 1:
        return over(op.lowering, size, dims, "sum", keep, inner)
    if order != 2:
        raise NotLowered(f"a vector norm of order {order:g}")
    squares = pointwise("mul", [size, size], value.shape, inner, inner)
    total = over(op.lowering, squares, dims, "sum", keep, inner)
    return pointwise("sqrt", [total], op.shape, inner, op.dtype)


@rule("prims.var")
def _var(op: OperatorCall) -> Value:
    """Two passes: the mean, then the squares of the differences from it."""
    value, correction = op.tensor(0), float(op.argument(2))
    dims, inner = _dims(op.argument(1), len(value.shape)), computed_in(op.dtype)
    count = prod(value.shape[d] for d in dims)
    total = over(op.lowering, value, dims, "sum", True, inner)
    mean = pointwise("mul", [total, 1.0 / count], total.shape, inner, inner)
    apart = pointwise("sub", [value, mean], value.shape, inner, inner)
    squared = pointwise("mul", [apart, apart], value.shape, inner, inner)
    squares = over(op.lowering, squared, dims, "sum", False, inner)
    left = max(count - correction, 0.0)
    scale = 1.0 / left if left else inf
    return pointwise("mul", [squares, scale], op.shape, inner, op.dtype)


@rule("aten.argmax", "aten.argmin")
def _arg(op: OperatorCall) -> Value:
    value, dim = op.tensor(0), op.argument(1, "dim")
    combine: Combine = "max" if "argmax" in str(op.node.target) else "min"
    if dim is None:
        own = value
        flat = (prod(own.shape),)
        value = Value(flat, own.dtype, lambda p: own.at(unflattened(p[0], own.shape)))
        return extreme_place(op.lowering, value, 0, combine, keep=False)[1]
    keep = len(op.shape) == len(value.shape)
    return extreme_place(op.lowering, value, dim % len(value.shape), combine, keep)[1]


@rule("aten.max.dim", "aten.min.dim")
def _extreme_and_place(op: OperatorCall) -> tuple[Value, Value]:
    value, dim = op.tensor(0), op.argument(1)
    combine: Combine = "max" if "aten.max" in str(op.node.target) else "min"
    if not value.shape:
        raise NotLowered(f"{op.node.target} of a number")
    keep = bool(op.argument(2, "keepdim", False))
    return extreme_place(op.lowering, value, dim % len(value.shape), combine, keep)


def extreme_place(
    lowering: Lowering, value: Value, dim: int, combine: Combine, keep: bool
) -> tuple[Value, Value]:
    """The extreme along a dimension, and the first index that holds it or a NaN."""
    inner, size = computed_in(value.dtype), value.shape[dim]
    extreme = over(lowering, value, [dim], combine, True, inner)

    def at(places: Places) -> ElementExpression:
        own = value.at(places)
        same = call("eq", (cast(own, inner), extreme.at(_with(places, dim))), "bool")
        if inner in FLOATS:
            same = call("or", (same, call("isnan", (own,), "bool")), "bool")
        parts = (same, counted(places[dim]), literal(size, "int64"))
        return call("where", parts, "int64")

    place = over(lowering, Value(value.shape, "int64", at), [dim], "min", keep, "int64")
    left = tuple(s for d, s in enumerate(extreme.shape) if keep or d != dim)
    if keep:
        return extreme, place
    return Value(left, inner, lambda p: extreme.at((*p[:dim], Index(), *p[dim:]))), place


def _with(places: Places, dim: int) -> Places:
    return (*places[:dim], Index(), *places[dim + 1 :])


@rule("aten.any.dim", "aten.any", "aten.any.dims")
def _any(op: OperatorCall) -> Value:
    value = op.tensor(0)
    numbers = broadcast(value, value.shape, "int64")
    if value.dtype != "bool":
        numbers = Value(
            value.shape,
            "int64",
            lambda p: cast(call("ne", (value.at(p), literal(0, value.dtype)), "bool"), "int64"),
        )
    dims = _dims(op.argument(1, "dim"), len(value.shape))
    keep = len(op.shape) == len(value.shape)
    most = over(op.lowering, numbers, dims, "max", keep, "int64")
    return op.result(lambda p: call("ne", (most.at(p), literal(0, "int64")), "bool"))


def _product(op: OperatorCall, left: Value, right: Value, batch: int) -> Value:
    inner = computed_in(op.dtype)
    space = op.lowering.variables(op.shape)
    (term,) = op.lowering.variables(left.shape[-1:])
    rows: Places = (*map(index, space[:-1]), index(term))
    columns: Places = (*map(index, space[:batch]), index(term), index(space[-1]))
    factors = (cast(left.at(rows), inner), cast(right.at(columns), inner))
    own = {v: Index() for v in (*space, term) if v.extent == 1}
    body = call("mul", factors, inner).substituted(own)
    kept = tuple(v for v in space if v.extent != 1)
    reduced: tuple[Var, ...] = (term,) if term.extent != 1 else ()
    return op.lowering.stage(body, kept, op.shape, inner, reduced, "sum")


@rule("aten.mm")
def _mm(op: OperatorCall) -> Value:
    return _product(op, op.argument(0), op.argument(1), 0)


@rule("aten.bmm")
def _bmm(op: OperatorCall) -> Value:
    return _product(op, op.argument(0), op.argument(1), 1)


@rule("aten.addbmm")
def _addbmm(op: OperatorCall) -> Value:
    """The sum of products over the batch, plus another argument."""
    inner = computed_in(op.dtype)
    left, right = op.tensor(1), op.tensor(2)
    space = op.lowering.variables(op.shape)
    batch, term = op.lowering.variables((left.shape[0], left.shape[2]))
    factors = (
        cast(left.at((index(batch), index(space[0]), index(term))), inner),
        cast(right.at((index(batch), index(term), index(space[1]))), inner),
    )
    every = (*space, batch, term)
    body = call("mul", factors, inner).substituted({v: Index() for v in every if v.extent == 1})
    kept, reduced = ([v for v in of if v.extent != 1] for of in (space, (batch, term)))
    total = op.lowering.stage(body, tuple(kept), op.shape, inner, tuple(reduced), "sum")
    return _scaled_and_added(op, total)


@rule("aten._trilinear")
def _trilinear(op: OperatorCall) -> Value:
    """Three tensors, broadcast along inserted dimensions, multiplied and summed."""
    inner, factors = computed_in(op.dtype), []
    for place in range(3):
        value, put_in = op.tensor(place), op.argument(3 + place)
        rank = len(value.shape) + len(put_in)
        own = [d for d in range(rank) if d not in put_in]
        sizes = [1] * rank
        for d, size in zip(own, value.shape, strict=True):
            sizes[d] = size
        factors.append(Value(tuple(sizes), value.dtype, _without(value, own)))
    rank = len(factors[0].shape)
    whole = tuple(max(f.shape[d] for f in factors) for d in range(rank))
    first = pointwise("mul", factors[:2], whole, inner, inner)
    product = pointwise("mul", [first, factors[2]], whole, inner, inner)
    return over(op.lowering, product, _dims(op.argument(6), rank), "sum", False, inner)


def _without(value: Value, own: list[int]) -> Callable[[Places], ElementExpression]:
    return lambda places: value.at(tuple(places[d] for d in own))


@rule("aten.addmm")
def _addmm(op: OperatorCall) -> Value:
    product = _product(op, op.argument(1), op.argument(2), 0)
    return _scaled_and_added(op, product)


def _scaled_and_added(op: OperatorCall, product: Value) -> Value:
    """beta times the first argument and alpha times the product."""
    inner, parts = computed_in(op.dtype), []
    for value, name in ((product, "alpha"), (op.tensor(0), "beta")):
        factor = op.node.kwargs.get(name, 1)
        if not isinstance(factor, int | float):
            raise NotLowered(f"{op.node.target} with a factor that is no number")
        scaled = pointwise("mul", [value, factor], op.shape, inner, inner)
        parts.append(value if factor == 1 else scaled)
    return pointwise("add", parts, op.shape, inner, op.dtype)


# -- sorting, and values selected from a sorted row


def _order(
    lowering: Lowering, value: Value, dim: int, descending: bool, first: int | None = None
) -> Value:
    """The indices that sort a dimension; only the first `first` ones if given."""
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
    """The sorted elements and their indices; a stable sort."""
    value = _held(lowering, value)
    order = _order(lowering, value, dim, descending, first)
    size = value.shape[dim]

    def at(places: Places) -> ElementExpression:
        place = read(order.at(places), 0, size - 1)
        return value.at((*places[:dim], place, *places[dim + 1 :]))

    return Value(value.shape, value.dtype, at), order


def _held(lowering: Lowering, value: Value) -> Value:
    """The value in memory, because it is read twice."""
    places = tuple(map(index, lowering.variables(value.shape)))
    held = 0 in value.shape or value.at(places).name == "load"
    return value if held else lowering.materialized(value)


def _row(op: OperatorCall, place: int, default: int = -1) -> tuple[Value, int]:
    """The first argument with at least one dimension, and the dimension that a later argument
    names."""
    value = op.tensor(0)
    if not value.shape:
        own = value
        value = Value((1,), own.dtype, lambda p: own.at(()))
    dim = op.argument(place, "dim", default)
    return value, dim % len(value.shape)


def _constant(of: ElementExpression) -> Callable[[Places], ElementExpression]:
    return lambda _: of


def _given(node: fx.Node, parts: tuple[Value, Value]) -> tuple[Value, ...]:
    """The parts in the shapes and dtypes of the node's results; None if torch omits the result."""
    made = []
    for value, meta in zip(parts, node.meta["val"], strict=True):
        shape, dtype = tuple(map(int, meta.shape)), str(meta.dtype).removeprefix("torch.")
        if len(shape) == len(value.shape):
            made.append(Value(shape, dtype, value.at))
        else:
            made.append(Value(shape, dtype, _constant(value.at((Index(),)))))
    return tuple(made)


@rule("aten.sort", "aten.sort.stable")
def _sort(op: OperatorCall) -> tuple[Value, ...]:
    stable = "stable" in str(op.node.target)
    value, dim = _row(op, 99 if stable else 1)
    descending = bool(op.argument(99 if stable else 2, "descending", False))
    return _given(op.node, _sorted(op.lowering, value, dim, descending))


@rule("aten.topk")
def _topk(op: OperatorCall) -> tuple[Value, ...]:
    count = op.argument(1)
    value, dim = _row(op, 2)
    largest = bool(op.argument(3, "largest", True))
    return _given(op.node, _sorted(op.lowering, value, dim, largest, count))


@rule("aten.kthvalue")
def _kthvalue(op: OperatorCall) -> tuple[Value, ...]:
    number = op.argument(1)
    value, dim = _row(op, 2)
    parts = _sorted(op.lowering, value, dim, False, number)
    return _one_of_each(op.node, parts, dim, lambda _: Index((), number - 1))


def _one_of_each(
    node: fx.Node, parts: tuple[Value, Value], dim: int, where: Any
) -> tuple[Value, ...]:
    """One index of each row; `where` returns it for the indices of the other dimensions, with 0 in
    the row's own."""
    made = []
    for value, meta in zip(parts, node.meta["val"], strict=True):
        shape, dtype = tuple(map(int, meta.shape)), str(meta.dtype).removeprefix("torch.")
        made.append(Value(shape, dtype, _picked(value, dim, len(shape), where)))
    return tuple(made)


def _picked(value: Value, dim: int, rank: int, where: Any) -> Any:
    def at(places: Places) -> ElementExpression:
        own = list(places)
        if rank != len(value.shape):
            own.insert(dim, Index())
        own[dim] = Index()
        own[dim] = where(tuple(own))
        return value.at(tuple(own))

    return at


@rule("aten.median.dim", "aten.nanmedian.dim")
def _median(op: OperatorCall) -> tuple[Value, ...]:
    value, dim = _row(op, 1)
    parts = _sorted(op.lowering, value, dim, False)
    where = _middle(op.lowering, value, dim, skips="nan" in str(op.node.target))
    return _one_of_each(op.node, parts, dim, where)


@rule("aten.median", "aten.nanmedian")
def _median_of_all(op: OperatorCall) -> Value:
    own = op.tensor(0)
    count = 1
    for size in own.shape:
        count *= size
    flat = Value((count,), own.dtype, lambda p: own.at(unflattened(p[0], own.shape)))
    ordered, _ = _sorted(op.lowering, flat, 0, False)
    where = _middle(op.lowering, flat, 0, skips="nan" in str(op.node.target))
    return op.result(lambda _: ordered.at((where((Index(),)),)))


def _middle(lowering: Lowering, value: Value, dim: int, skips: bool) -> Any:
    """The rank of the lower middle element of a sorted row. NaNs are sorted to the end: the rank of
    the first NaN, unless the median skips NaNs."""
    size = value.shape[dim]
    if value.dtype not in FLOATS:
        return lambda _: Index((), (size - 1) // 2)

    def is_number(places: Places) -> ElementExpression:
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
def _mode(op: OperatorCall) -> tuple[Value, ...]:
    """The first element of the longest run of equal elements of a sorted row."""
    value, dim = _row(op, 1)
    ordered, order = _sorted(op.lowering, value, dim, False)
    if value.shape[dim] == 1:
        return _one_of_each(op.node, (ordered, order), dim, lambda _: Index())
    ordered = op.lowering.materialized(ordered)

    def begins(places: Places) -> ElementExpression:
        """The index itself if a run begins there, else 0."""
        before = (*places[:dim], _before(places[dim]), *places[dim + 1 :])
        same = call("eq", (ordered.at(places), ordered.at(before)), "bool")
        return call("where", (same, literal(0, "int64"), counted(places[dim])), "int64")

    first = scanned(op.lowering, Value(value.shape, "int64", begins), dim, "max")

    def length(places: Places) -> ElementExpression:
        return call("sub", (counted(places[dim]), first.at(places)), "int64")

    longest = Value(value.shape, "int64", length)
    _, place = extreme_place(op.lowering, longest, dim, "max", True)
    size = value.shape[dim]
    return _one_of_each(op.node, (ordered, order), dim, lambda p: read(place.at(p), 0, size - 1))


def _before(place: Index) -> Index:
    number = call("sub", (counted(place), literal(1, "int64")), "int64")
    least = call("max", (number, literal(0, "int64")), "int64")
    return read(least, 0)


@rule("aten.cummax", "aten.cummin")
def _running_extreme(op: OperatorCall) -> tuple[Value, ...]:
    """The running extreme, and the last index that held it."""
    value, dim = _row(op, 1)
    if value.shape[dim] == 1:
        return _given(op.node, (value, broadcast(0, value.shape, "int64")))
    extreme = scanned(op.lowering, value, dim, "max" if "cummax" in str(op.node.target) else "min")

    def reached(places: Places) -> ElementExpression:
        own = value.at(places)
        same = call("eq", (own, cast(extreme.at(places), own.dtype)), "bool")
        if own.dtype in FLOATS:
            same = call("or", (same, call("isnan", (own,), "bool")), "bool")
        return call("where", (same, counted(places[dim]), literal(0, "int64")), "int64")

    place = scanned(op.lowering, Value(value.shape, "int64", reached), dim, "max")
    return _given(op.node, (extreme, place))


@rule("aten.logcumsumexp")
def _running_sum_of_exponentials(op: OperatorCall) -> Value:
    if not op.shape:
        return op.tensor(0)
    value, dim = _row(op, 1)
    if value.shape[dim] == 1:
        return broadcast(value, op.shape, op.dtype)
    return broadcast(scanned(op.lowering, value, dim, "logaddexp"), op.shape, op.dtype)
