"""Reductions, scans, and products of matrices as sums."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import Any

from torch import fx

from optimizer.search.synthesizers.traced.expression import (
    FLOATS,
    Expression,
    call,
    cast,
    computed_in,
    counted,
    literal,
)
from optimizer.search.synthesizers.traced.index import (
    Index,
    Var,
    index,
    unflattened,
)
from optimizer.search.synthesizers.traced.lowering import (
    DEAR,
    Lowering,
    NotLowered,
    Places,
    Value,
    broadcast,
    pointwise,
    result,
)
from optimizer.search.synthesizers.traced.operators.rules import rule
from optimizer.search.synthesizers.traced.program import Combine

LEAST_ROWS = 128  # scans of fewer do not fill a GPU where each row is one program's


def _reduced(lowering: Lowering, node: fx.Node, combine: Combine, value: Value) -> Value:
    """One reduction of `value` over the dimensions that the node names."""
    _, dtype = result(node)
    dims = _dims(lowering.argument(node, 1, "dim"), len(value.shape))
    keep = bool(lowering.argument(node, 2, "keepdim", False)) and "prims" not in str(node.target)
    return over(lowering, value, dims, combine, keep, computed_in(dtype))


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
def _sum(lowering: Lowering, node: fx.Node) -> Value:
    return _reduced(lowering, node, "sum", lowering.argument(node, 0))


@rule("aten.prod.dim_int", "aten.prod", "prims.prod")
def _prod(lowering: Lowering, node: fx.Node) -> Value:
    return _reduced(lowering, node, "prod", lowering.argument(node, 0))


@rule("aten.amax", "prims.amax", "aten.max")
def _amax(lowering: Lowering, node: fx.Node) -> Value:
    return _reduced(lowering, node, "max", lowering.argument(node, 0))


@rule("aten.amin", "prims.amin", "aten.min")
def _amin(lowering: Lowering, node: fx.Node) -> Value:
    return _reduced(lowering, node, "min", lowering.argument(node, 0))


@rule("aten.cumsum", "aten.cumprod")
def _scan(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    value = lowering.tensor(node, 0)
    dim = lowering.argument(node, 1) % max(len(shape), 1)
    if not shape or shape[dim] == 1:
        return broadcast(value, shape, dtype)
    combine: Combine = "sum" if "cumsum" in str(node.target) else "prod"
    return scanned(lowering, broadcast(value, shape, dtype), dim, combine)


def scanned(lowering: Lowering, value: Value, dim: int, combine: Combine) -> Value:
    """At each place what is there and before it along a dimension, which has several, combined."""
    if 0 in value.shape:
        raise NotLowered("a scan of nothing")
    if lowering.leaves_to_torch and prod(value.shape) // value.shape[dim] < LEAST_ROWS:
        raise NotLowered("a scan of few rows")
    variables = lowering.variables(value.shape)
    places = tuple(index(v) if v.extent != 1 else Index() for v in variables)
    space = tuple(v for v in variables if v.extent != 1)
    if space[-1] is variables[dim] and value.at(places).cost >= DEAR:
        value = lowering.kept(value)  # compilers compute nothing else side by side in a scan
    body = cast(value.at(places), computed_in(value.dtype))
    return lowering.stage(
        body, space, value.shape, value.dtype, combine=combine, scanned=variables[dim]
    )


@rule("aten.mean.dim", "aten.mean")
def _mean(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    total = _reduced(lowering, node, "sum", lowering.tensor(node, 0))
    count = prod(lowering.tensor(node, 0).shape) / max(prod(shape), 1)
    return pointwise("mul", [total, 1.0 / count], shape, computed_in(dtype), dtype)


@rule("aten.linalg_vector_norm")
def _vector_norm(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    value, inner = lowering.tensor(node, 0), computed_in(dtype)
    order = float(lowering.argument(node, 1, "ord", 2))
    dims = _dims(lowering.argument(node, 2, "dim"), len(value.shape))
    keep = bool(lowering.argument(node, 3, "keepdim", False))
    size = pointwise("abs", [value], value.shape, inner, inner)
    if order in (inf, -inf):
        return over(lowering, size, dims, "max" if order > 0 else "min", keep, inner)
    if order == 1:
        return over(lowering, size, dims, "sum", keep, inner)
    if order != 2:
        raise NotLowered(f"a vector norm of order {order:g}")
    squares = pointwise("mul", [size, size], value.shape, inner, inner)
    total = over(lowering, squares, dims, "sum", keep, inner)
    return pointwise("sqrt", [total], shape, inner, dtype)


@rule("prims.var")
def _var(lowering: Lowering, node: fx.Node) -> Value:
    """In two passes: the mean, then the squares of what differs from it."""
    shape, dtype = result(node)
    value, correction = lowering.tensor(node, 0), float(lowering.argument(node, 2))
    dims, inner = _dims(lowering.argument(node, 1), len(value.shape)), computed_in(dtype)
    count = prod(value.shape[d] for d in dims)
    total = over(lowering, value, dims, "sum", True, inner)
    mean = pointwise("mul", [total, 1.0 / count], total.shape, inner, inner)
    apart = pointwise("sub", [value, mean], value.shape, inner, inner)
    squared = pointwise("mul", [apart, apart], value.shape, inner, inner)
    squares = over(lowering, squared, dims, "sum", False, inner)
    left = max(count - correction, 0.0)
    scale = 1.0 / left if left else inf
    return pointwise("mul", [squares, scale], shape, inner, dtype)


@rule("aten.argmax", "aten.argmin")
def _arg(lowering: Lowering, node: fx.Node) -> Value:
    shape, _ = result(node)
    value, dim = lowering.tensor(node, 0), lowering.argument(node, 1, "dim")
    combine: Combine = "max" if "argmax" in str(node.target) else "min"
    if dim is None:
        own = value
        flat = (prod(own.shape),)
        value = Value(flat, own.dtype, lambda p: own.at(unflattened(p[0], own.shape)))
        return extreme_place(lowering, value, 0, combine, keep=False)[1]
    keep = len(shape) == len(value.shape)
    return extreme_place(lowering, value, dim % len(value.shape), combine, keep)[1]


@rule("aten.max.dim", "aten.min.dim")
def _extreme_and_place(lowering: Lowering, node: fx.Node) -> tuple[Value, Value]:
    value, dim = lowering.tensor(node, 0), lowering.argument(node, 1)
    combine: Combine = "max" if "aten.max" in str(node.target) else "min"
    if not value.shape:
        raise NotLowered(f"{node.target} of a number")
    keep = bool(lowering.argument(node, 2, "keepdim", False))
    return extreme_place(lowering, value, dim % len(value.shape), combine, keep)


def extreme_place(
    lowering: Lowering, value: Value, dim: int, combine: Combine, keep: bool
) -> tuple[Value, Value]:
    """The extreme along a dimension, and the first place that holds it, or NaN."""
    inner, size = computed_in(value.dtype), value.shape[dim]
    extreme = over(lowering, value, [dim], combine, True, inner)

    def at(places: Places) -> Expression:
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
def _any(lowering: Lowering, node: fx.Node) -> Value:
    value = lowering.tensor(node, 0)
    numbers = broadcast(value, value.shape, "int64")
    if value.dtype != "bool":
        numbers = Value(
            value.shape,
            "int64",
            lambda p: cast(call("ne", (value.at(p), literal(0, value.dtype)), "bool"), "int64"),
        )
    shape, dtype = result(node)
    dims = _dims(lowering.argument(node, 1, "dim"), len(value.shape))
    keep = len(shape) == len(value.shape)
    most = over(lowering, numbers, dims, "max", keep, "int64")
    return Value(shape, dtype, lambda p: call("ne", (most.at(p), literal(0, "int64")), "bool"))


def _product(lowering: Lowering, node: fx.Node, left: Value, right: Value, batch: int) -> Value:
    shape, dtype = result(node)
    inner = computed_in(dtype)
    space = lowering.variables(shape)
    (term,) = lowering.variables(left.shape[-1:])
    rows: Places = (*map(index, space[:-1]), index(term))
    columns: Places = (*map(index, space[:batch]), index(term), index(space[-1]))
    factors = (cast(left.at(rows), inner), cast(right.at(columns), inner))
    own = {v: Index() for v in (*space, term) if v.extent == 1}
    body = call("mul", factors, inner).substituted(own)
    kept = tuple(v for v in space if v.extent != 1)
    reduced: tuple[Var, ...] = (term,) if term.extent != 1 else ()
    return lowering.stage(body, kept, shape, inner, reduced, "sum")


@rule("aten.mm")
def _mm(lowering: Lowering, node: fx.Node) -> Value:
    return _product(lowering, node, lowering.argument(node, 0), lowering.argument(node, 1), 0)


@rule("aten.bmm")
def _bmm(lowering: Lowering, node: fx.Node) -> Value:
    return _product(lowering, node, lowering.argument(node, 0), lowering.argument(node, 1), 1)


@rule("aten.addbmm")
def _addbmm(lowering: Lowering, node: fx.Node) -> Value:
    """The sum of products over the batch, and what is added to it."""
    shape, dtype = result(node)
    inner = computed_in(dtype)
    left, right = lowering.tensor(node, 1), lowering.tensor(node, 2)
    space = lowering.variables(shape)
    batch, term = lowering.variables((left.shape[0], left.shape[2]))
    factors = (
        cast(left.at((index(batch), index(space[0]), index(term))), inner),
        cast(right.at((index(batch), index(term), index(space[1]))), inner),
    )
    every = (*space, batch, term)
    body = call("mul", factors, inner).substituted({v: Index() for v in every if v.extent == 1})
    kept, reduced = ([v for v in of if v.extent != 1] for of in (space, (batch, term)))
    total = lowering.stage(body, tuple(kept), shape, inner, tuple(reduced), "sum")
    return _scaled_and_added(lowering, node, total)


@rule("aten._trilinear")
def _trilinear(lowering: Lowering, node: fx.Node) -> Value:
    """Three tensors with dimensions of size 1 put in, multiplied and summed."""
    _, dtype = result(node)
    inner, factors = computed_in(dtype), []
    for place in range(3):
        value, put_in = lowering.tensor(node, place), lowering.argument(node, 3 + place)
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
    return over(lowering, product, _dims(lowering.argument(node, 6), rank), "sum", False, inner)


def _without(value: Value, own: list[int]) -> Callable[[Places], Expression]:
    return lambda places: value.at(tuple(places[d] for d in own))


@rule("aten.addmm")
def _addmm(lowering: Lowering, node: fx.Node) -> Value:
    product = _product(lowering, node, lowering.argument(node, 1), lowering.argument(node, 2), 0)
    return _scaled_and_added(lowering, node, product)


def _scaled_and_added(lowering: Lowering, node: fx.Node, product: Value) -> Value:
    """beta times the first argument and alpha times the product."""
    shape, dtype = result(node)
    inner, parts = computed_in(dtype), []
    for value, name in ((product, "alpha"), (lowering.tensor(node, 0), "beta")):
        factor = node.kwargs.get(name, 1)
        if not isinstance(factor, int | float):
            raise NotLowered(f"{node.target} with a factor that is no number")
        scaled = pointwise("mul", [value, factor], shape, inner, inner)
        parts.append(value if factor == 1 else scaled)
    return pointwise("add", parts, shape, inner, dtype)
