"""Views: arithmetic on places alone."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from optimizer.search.synthesizers.traced.expression import (
    Expression,
)
from optimizer.search.synthesizers.traced.index import (
    Index,
    flattened,
    unflattened,
)
from optimizer.search.synthesizers.traced.lowering import (
    Lowering,
    NotLowered,
    Places,
    Value,
    broadcast,
    result,
)
from optimizer.search.synthesizers.traced.operators.rules import rule


@rule("aten.view", "aten.reshape", "aten._unsafe_view", "prims.view_of", "aten.view_copy")
def _view(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    value = lowering.tensor(node, 0)
    return Value(shape, dtype, lambda p: value.at(unflattened(flattened(p, shape), value.shape)))


@rule("aten.expand")
def _expand(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    return broadcast(lowering.argument(node, 0), shape, dtype)


@rule("aten.repeat")
def _repeat(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    value = lowering.tensor(node, 0)
    ahead = len(shape) - len(value.shape)

    def at(places: Places) -> Expression:
        own = zip(places[ahead:], value.shape, strict=True)
        return value.at(tuple(place % size for place, size in own))

    return Value(shape, dtype, at)


@rule("prims.broadcast_in_dim")
def _broadcast_in(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    value, dims = lowering.tensor(node, 0), lowering.argument(node, 2)

    def at(places: Places) -> Expression:
        own = (places[d] if s != 1 else Index() for d, s in zip(dims, value.shape, strict=True))
        return value.at(tuple(own))

    return Value(shape, dtype, at)


@rule("aten.permute")
def _permute(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    value = lowering.tensor(node, 0)
    order = [d % len(shape) for d in lowering.argument(node, 1)]
    return Value(
        shape, dtype, lambda p: value.at(tuple(p[order.index(d)] for d in range(len(shape))))
    )


@rule("aten.unsqueeze", "aten.squeeze.dims", "aten.squeeze.dim", "prims.squeeze")
def _ones(lowering: Lowering, node: fx.Node) -> Value:
    """Dimensions of size 1 come or go: the others keep their order."""
    shape, dtype = result(node)
    value = lowering.tensor(node, 0)

    def at(places: Places) -> Expression:
        inner = iter([p for p, size in zip(places, shape, strict=True) if size != 1])
        return value.at(tuple(next(inner) if s != 1 else Index() for s in value.shape))

    return Value(shape, dtype, at)


@rule("aten.slice.Tensor")
def _slice(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    value = lowering.tensor(node, 0)
    dim = lowering.argument(node, 1, "dim", 0) % len(shape)
    start = lowering.argument(node, 2, "start", 0) or 0
    step = lowering.argument(node, 4, "step", 1)
    size = value.shape[dim]
    start = min(max(start + size if start < 0 else start, 0), size)
    return Value(shape, dtype, lambda p: value.at((*p[:dim], p[dim] * step + start, *p[dim + 1 :])))


@rule("aten.split_with_sizes", "aten.split.Tensor", "aten.unbind.int")
def _split(lowering: Lowering, node: fx.Node) -> tuple[Value, ...]:
    value = lowering.tensor(node, 0)
    whole = "unbind" in str(node.target)
    dim = lowering.argument(node, 1 if whole else 2, "dim", 0) % len(value.shape)
    parts = []
    first = 0
    for part in node.meta["val"]:
        shape = tuple(map(int, part.shape))
        parts.append(Value(shape, value.dtype, _from(value, dim, first, whole)))
        first += 1 if whole else shape[dim]
    return tuple(parts)


def _from(value: Value, dim: int, first: int, alone: bool) -> Callable[[Places], Expression]:
    if alone:
        return lambda p: value.at((*p[:dim], Index((), first), *p[dim:]))
    return lambda p: value.at((*p[:dim], p[dim] + first, *p[dim + 1 :]))


@rule("aten.select.int")
def _select(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    value = lowering.tensor(node, 0)
    dim, place = lowering.argument(node, 1), lowering.argument(node, 2)
    dim, place = dim % len(value.shape), place % value.shape[dim]
    return Value(shape, dtype, lambda p: value.at((*p[:dim], Index((), place), *p[dim:])))


@rule("aten.diagonal", "aten.diagonal_copy")
def _diagonal(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    value, rank = lowering.tensor(node, 0), len(shape) + 1
    offset = lowering.argument(node, 1, "offset", 0)
    first = lowering.argument(node, 2, "dim1", 0) % rank
    second = lowering.argument(node, 3, "dim2", 1) % rank

    def at(places: Places) -> Expression:
        others = iter(places[:-1])
        along = {first: places[-1] + max(0, -offset), second: places[-1] + max(0, offset)}
        return value.at(tuple(along[d] if d in along else next(others) for d in range(rank)))

    return Value(shape, dtype, at)


@rule("aten.unfold", "aten.unfold_copy")
def _unfold(lowering: Lowering, node: fx.Node) -> Value:
    """Windows along a dimension, whose places come last."""
    shape, dtype = result(node)
    value, step = lowering.tensor(node, 0), lowering.argument(node, 3)
    dim = lowering.argument(node, 1) % len(value.shape)
    return Value(
        shape,
        dtype,
        lambda p: value.at((*p[:dim], p[dim] * step + p[-1], *p[dim + 1 : -1])),
    )


@rule("aten.flip", "prims.rev")
def _flip(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    value = lowering.tensor(node, 0)
    turned = {d % len(shape) for d in lowering.argument(node, 1)}

    def at(places: Places) -> Expression:
        own = (
            place * -1 + (size - 1) if d in turned else place
            for d, (place, size) in enumerate(zip(places, shape, strict=True))
        )
        return value.at(tuple(own))

    return Value(shape, dtype, at)


@rule("aten.as_strided", "aten.as_strided_copy")
def _as_strided(lowering: Lowering, node: fx.Node) -> Value:
    """Of a tensor that torch too holds in contiguous memory, from its beginning."""
    shape, dtype = result(node)
    value, strides = lowering.tensor(node, 0), lowering.argument(node, 2)
    held, offset = node.args[0].meta["val"], lowering.argument(node, 3, "storage_offset") or 0  # type: ignore[union-attr]
    if not held.is_contiguous() or held.storage_offset():
        raise NotLowered("aten.as_strided of memory in another order")

    def at(places: Places) -> Expression:
        place = Index((), offset)
        for part, stride in zip(places, strides, strict=True):
            place = place + part * stride
        return value.at(unflattened(place, value.shape))

    return Value(shape, dtype, at)
