"""Reductions, and products of matrices as sums."""

from __future__ import annotations

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
)
from optimizer.search.synthesizers.traced.lowering import (
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


def _reduced(lowering: Lowering, node: fx.Node, combine: Combine, value: Value) -> Value:
    """One reduction of `value` over the dimensions that the node names."""
    _, dtype = result(node)
    dims = _dims(lowering.argument(node, 1, "dim"), len(value.shape))
    keep = bool(lowering.argument(node, 2, "keepdim", False)) and "prims" not in str(node.target)
    return _over(lowering, value, dims, combine, keep, computed_in(dtype))


def _dims(dims: Any, count: int) -> list[int]:
    if dims is None or dims == []:
        return list(range(count))
    return sorted(d % count for d in ([dims] if isinstance(dims, int) else dims))


def _over(
    lowering: Lowering, value: Value, dims: list[int], combine: Combine, keep: bool, dtype: str
) -> Value:
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


@rule("aten.amax", "prims.amax")
def _amax(lowering: Lowering, node: fx.Node) -> Value:
    return _reduced(lowering, node, "max", lowering.argument(node, 0))


@rule("aten.amin", "prims.amin")
def _amin(lowering: Lowering, node: fx.Node) -> Value:
    return _reduced(lowering, node, "min", lowering.argument(node, 0))


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
        return _over(lowering, size, dims, "max" if order > 0 else "min", keep, inner)
    if order == 1:
        return _over(lowering, size, dims, "sum", keep, inner)
    if order != 2:
        raise NotLowered(f"a vector norm of order {order:g}")
    squares = pointwise("mul", [size, size], value.shape, inner, inner)
    total = _over(lowering, squares, dims, "sum", keep, inner)
    return pointwise("sqrt", [total], shape, inner, dtype)


@rule("prims.var")
def _var(lowering: Lowering, node: fx.Node) -> Value:
    """In two passes: the mean, then the squares of what differs from it."""
    shape, dtype = result(node)
    value, correction = lowering.tensor(node, 0), float(lowering.argument(node, 2))
    dims, inner = _dims(lowering.argument(node, 1), len(value.shape)), computed_in(dtype)
    count = prod(value.shape[d] for d in dims)
    total = _over(lowering, value, dims, "sum", True, inner)
    mean = pointwise("mul", [total, 1.0 / count], total.shape, inner, inner)
    apart = pointwise("sub", [value, mean], value.shape, inner, inner)
    squared = pointwise("mul", [apart, apart], value.shape, inner, inner)
    squares = _over(lowering, squared, dims, "sum", False, inner)
    left = max(count - correction, 0.0)
    scale = 1.0 / left if left else inf
    return pointwise("mul", [squares, scale], shape, inner, dtype)


@rule("aten.argmax", "aten.argmin")
def _arg(lowering: Lowering, node: fx.Node) -> Value:
    """The first place that holds the extreme value, or NaN."""
    shape, _ = result(node)
    value, dim = lowering.tensor(node, 0), lowering.argument(node, 1, "dim")
    if dim is None:
        raise NotLowered("argmax over all dimensions")
    dim = dim % len(value.shape)
    combine: Combine = "max" if "argmax" in str(node.target) else "min"
    inner, size = computed_in(value.dtype), value.shape[dim]
    extreme = _over(lowering, value, [dim], combine, True, inner)

    def at(places: Places) -> Expression:
        own = value.at(places)
        same = call("eq", (cast(own, inner), extreme.at(_with(places, dim))), "bool")
        if inner in FLOATS:
            same = call("or", (same, call("isnan", (own,), "bool")), "bool")
        parts = (same, counted(places[dim]), literal(size, "int64"))
        return call("where", parts, "int64")

    first = Value(value.shape, "int64", at)
    keep = len(shape) == len(value.shape)
    return _over(lowering, first, [dim], "min", keep, "int64")


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
    most = _over(lowering, numbers, dims, "max", keep, "int64")
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


@rule("aten.addmm")
def _addmm(lowering: Lowering, node: fx.Node) -> Value:
    if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("beta", 1) != 1:
        raise NotLowered("aten.addmm with factors")
    shape, dtype = result(node)
    product = _product(lowering, node, lowering.argument(node, 1), lowering.argument(node, 2), 0)
    added = [product, lowering.argument(node, 0)]
    return pointwise("add", added, shape, computed_in(dtype), dtype)
