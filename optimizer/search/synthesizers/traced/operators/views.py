"""Views, which are index arithmetic, and operators over windows: pooling and convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, prod
from operator import getitem
from typing import Any

from torch import fx

from optimizer.search.synthesizers.traced.expression import (
    FLOATS,
    ElementExpression,
    call,
    cast,
    computed_in,
    counted,
    literal,
)
from optimizer.search.synthesizers.traced.index import Index, Var, flattened, index, unflattened
from optimizer.search.synthesizers.traced.lowering import (
    Lowering,
    NotLowered,
    Places,
    Value,
    broadcast,
    pointwise,
    rule,
    shape_and_dtype,
)
from optimizer.search.synthesizers.traced.operators.gathers import guarded
from optimizer.search.synthesizers.traced.program import Combine


@rule("aten.view", "aten.reshape", "aten._unsafe_view", "prims.view_of", "aten.view_copy")
def _view(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = shape_and_dtype(node)
    value = lowering.tensor(node, 0)
    return Value(shape, dtype, lambda p: value.at(unflattened(flattened(p, shape), value.shape)))


@rule("aten.expand")
def _expand(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = shape_and_dtype(node)
    return broadcast(lowering.argument(node, 0), shape, dtype)


@rule("aten.repeat")
def _repeat(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = shape_and_dtype(node)
    value = lowering.tensor(node, 0)
    leading = len(shape) - len(value.shape)

    def at(places: Places) -> ElementExpression:
        own = zip(places[leading:], value.shape, strict=True)
        return value.at(tuple(place % size for place, size in own))

    return Value(shape, dtype, at)


@rule("prims.broadcast_in_dim")
def _broadcast_in(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = shape_and_dtype(node)
    value, dims = lowering.tensor(node, 0), lowering.argument(node, 2)

    def at(places: Places) -> ElementExpression:
        own = (places[d] if s != 1 else Index() for d, s in zip(dims, value.shape, strict=True))
        return value.at(tuple(own))

    return Value(shape, dtype, at)


@rule("aten.permute")
def _permute(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = shape_and_dtype(node)
    value = lowering.tensor(node, 0)
    order = [d % len(shape) for d in lowering.argument(node, 1)]
    return Value(
        shape, dtype, lambda p: value.at(tuple(p[order.index(d)] for d in range(len(shape))))
    )


@rule("aten.unsqueeze", "aten.squeeze.dims", "aten.squeeze.dim", "prims.squeeze")
def _ones(lowering: Lowering, node: fx.Node) -> Value:
    """Dimensions of size 1 are added or removed; the others keep their order."""
    shape, dtype = shape_and_dtype(node)
    value = lowering.tensor(node, 0)

    def at(places: Places) -> ElementExpression:
        inner = iter([p for p, size in zip(places, shape, strict=True) if size != 1])
        return value.at(tuple(next(inner) if s != 1 else Index() for s in value.shape))

    return Value(shape, dtype, at)


@rule("aten.slice.Tensor")
def _slice(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = shape_and_dtype(node)
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


def _from(value: Value, dim: int, first: int, alone: bool) -> Callable[[Places], ElementExpression]:
    if alone:
        return lambda p: value.at((*p[:dim], Index((), first), *p[dim:]))
    return lambda p: value.at((*p[:dim], p[dim] + first, *p[dim + 1 :]))


@rule("aten.select.int")
def _select(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = shape_and_dtype(node)
    value = lowering.tensor(node, 0)
    dim, place = lowering.argument(node, 1), lowering.argument(node, 2)
    dim, place = dim % len(value.shape), place % value.shape[dim]
    return Value(shape, dtype, lambda p: value.at((*p[:dim], Index((), place), *p[dim:])))


@rule("aten.diagonal", "aten.diagonal_copy")
def _diagonal(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = shape_and_dtype(node)
    value, rank = lowering.tensor(node, 0), len(shape) + 1
    offset = lowering.argument(node, 1, "offset", 0)
    first = lowering.argument(node, 2, "dim1", 0) % rank
    second = lowering.argument(node, 3, "dim2", 1) % rank

    def at(places: Places) -> ElementExpression:
        others = iter(places[:-1])
        along = {first: places[-1] + max(0, -offset), second: places[-1] + max(0, offset)}
        return value.at(tuple(along[d] if d in along else next(others) for d in range(rank)))

    return Value(shape, dtype, at)


@rule("aten.unfold", "aten.unfold_copy")
def _unfold(lowering: Lowering, node: fx.Node) -> Value:
    """Windows along a dimension; the position in the window becomes the last dimension."""
    shape, dtype = shape_and_dtype(node)
    value, step = lowering.tensor(node, 0), lowering.argument(node, 3)
    dim = lowering.argument(node, 1) % len(value.shape)
    return Value(
        shape,
        dtype,
        lambda p: value.at((*p[:dim], p[dim] * step + p[-1], *p[dim + 1 : -1])),
    )


@rule("aten.flip", "prims.rev")
def _flip(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = shape_and_dtype(node)
    value = lowering.tensor(node, 0)
    turned = {d % len(shape) for d in lowering.argument(node, 1)}

    def at(places: Places) -> ElementExpression:
        own = (
            place * -1 + (size - 1) if d in turned else place
            for d, (place, size) in enumerate(zip(places, shape, strict=True))
        )
        return value.at(tuple(own))

    return Value(shape, dtype, at)


@rule("aten.as_strided", "aten.as_strided_copy")
def _as_strided(lowering: Lowering, node: fx.Node) -> Value:
    """For a tensor that torch holds contiguously and from the start of its storage."""
    shape, dtype = shape_and_dtype(node)
    value, strides = lowering.tensor(node, 0), lowering.argument(node, 2)
    held, offset = node.args[0].meta["val"], lowering.argument(node, 3, "storage_offset") or 0  # type: ignore[union-attr]
    if not held.is_contiguous() or held.storage_offset():
        raise NotLowered("aten.as_strided of memory in another order")

    def at(places: Places) -> ElementExpression:
        place = Index((), offset)
        for part, stride in zip(places, strides, strict=True):
            place = place + part * stride
        return value.at(unflattened(place, value.shape))

    return Value(shape, dtype, at)


# -- windows


@dataclass(frozen=True)
class Walk:
    """Windows over a tensor: `places` are the indices of an element by the variables of `space`,
    the window's position, and of `window`, the position in it. `inside` is false beyond the end of
    windows that are shorter than the others."""

    space: tuple[Var, ...]
    window: tuple[Var, ...]
    places: Places
    inside: ElementExpression | None = None


# Pooling dimension by dimension stores and reloads a result between two passes, which costs as much
# as this many loads; it must be faster by SAVED to be worth it. Measured on an H200; it pays on a
# CPU as well (benchmarks/results/foreign_problems.md).
ROUND_TRIP = 3
SAVED = 1.5


@rule("aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices")
def _max_pool(lowering: Lowering, node: fx.Node) -> tuple[Value, ...]:
    output, spread = node.meta["val"][0], _each(lowering, node, 4, "dilation", 1)
    most = _pooled(lowering, node, output, spread, "max")
    return _most(lowering, node, _walk(lowering, node, output, spread), most)


def _most(lowering: Lowering, node: fx.Node, walk: Walk, most: Value) -> tuple[Value, ...]:
    """The greatest element of each window and, if used, its index in the plane."""
    value = lowering.tensor(node, 0)
    shape = tuple(map(int, node.meta["val"][0].shape))
    if all(user.target is getitem and user.args[1] == 0 for user in node.users):
        return (most,)
    count = 3 if "3d" in str(node.target) else 2
    plane = value.shape[-count:]

    def place(places: Places) -> ElementExpression:
        """The element's index if it is the greatest, else one beyond all indices."""
        own = value.at(places)
        highest = cast(most.at(tuple(map(index, walk.space))), own.dtype)
        reached = call("eq", (own, highest), "bool")
        if own.dtype in FLOATS:
            reached = call("or", (reached, call("isnan", (own,), "bool")), "bool")
        number = counted(flattened(places[-count:], plane))
        return call("where", (reached, number, literal(prod(plane), "int64")), "int64")

    return most, _walked(lowering, Value(value.shape, "int64", place), walk, shape, "min")


def _walked(
    lowering: Lowering, value: Value, walk: Walk, shape: tuple[int, ...], combine: Combine
) -> Value:
    """Combine the elements of each window by one loop over its places."""
    inner = computed_in(value.dtype)
    start = {"max": -inf, "min": inf, "sum": 0, "prod": 1}[combine]
    if inner not in FLOATS and start in (inf, -inf):
        start = (1 << 62) if start > 0 else -(1 << 62)
    fill = literal(start, inner)
    body = cast(guarded(value, walk.places, fill), inner)
    if walk.inside is not None:
        body = call("where", (walk.inside, body, fill), inner)
    own = {v: Index() for v in (*walk.space, *walk.window) if v.extent == 1}
    kept = tuple(v for v in walk.space if v.extent != 1)
    reduced = tuple(v for v in walk.window if v.extent != 1)
    return lowering.stage(body.substituted(own), kept, shape, inner, reduced, combine)


def _pooled(
    lowering: Lowering, node: fx.Node, output: Any, spread: Sequence[int], combine: Combine
) -> Value:
    """Pooling over windows: all dimensions at once or, if much less work, one dimension after
    another, in the order of how much each reduces the tensor."""
    value, shape = lowering.tensor(node, 0), tuple(map(int, output.shape))
    sizes = lowering.argument(node, 1)
    leading = len(shape) - len(sizes)
    steps = lowering.argument(node, 2, "stride") or sizes
    padding = _each(lowering, node, 3, "padding", 0)
    walks = zip(sizes, steps, padding, strict=True)
    walked = [d for d, walk in enumerate(walks) if walk != (1, 1, 0)]
    walked.sort(key=lambda d: shape[leading + d] / value.shape[leading + d])
    shapes = [
        tuple(n if i - leading in walked[last:] else shape[i] for i, n in enumerate(value.shape))
        for last in range(1, len(walked) + 1)
    ]
    apart = sum(prod(s) * (sizes[d] + ROUND_TRIP) for d, s in zip(walked, shapes, strict=True))
    whole = prod(shape) * (prod(sizes) + ROUND_TRIP)
    if apart * SAVED > whole:
        return _walked(lowering, value, _walk(lowering, node, output, spread), shape, combine)
    for d, between in zip(walked, shapes, strict=True):
        space, window = lowering.variables(between), lowering.variables([sizes[d]])
        place = index(space[leading + d]) * steps[d] + index(window[0]) * spread[d] - padding[d]
        places = tuple(place if i == leading + d else index(v) for i, v in enumerate(space))
        value = _walked(lowering, value, Walk(space, window, places), between, combine)
    return value


@rule("aten.avg_pool2d", "aten.avg_pool3d", "aten.avg_pool1d")
def _avg_pool(lowering: Lowering, node: fx.Node) -> Value:
    spread = [1] * len(lowering.argument(node, 1))
    value = _pooled(lowering, node, node.meta["val"], spread, "sum")
    inner = computed_in(value.dtype)
    sizes = lowering.argument(node, 1)
    padding = _each(lowering, node, 3, "padding", 0)
    padded = lowering.argument(node, 5, "count_include_pad", True)
    divisor = lowering.argument(node, 6, "divisor_override")
    cut = lowering.argument(node, 4, "ceil_mode") or (any(padding) and not padded)
    if divisor or not cut:
        by: Value | float = 1.0 / (divisor or prod(sizes))
    else:
        by = _share(lowering, node, padding if padded else [0] * len(padding), inner)
    return pointwise("mul", [value, by], value.shape, inner, value.dtype)


def _share(lowering: Lowering, node: fx.Node, edge: Sequence[int], dtype: str) -> Value:
    """The reciprocal of the number of positions of each window inside the input, extended by an
    edge of this width. Windows that cross the edge have fewer positions."""
    shape, _ = shape_and_dtype(node)
    sizes, inputs = lowering.argument(node, 1), lowering.tensor(node, 0).shape
    padding = _each(lowering, node, 3, "padding", 0)
    steps = lowering.argument(node, 2, "stride") or sizes
    leading = len(shape) - len(sizes)

    def share(places: Places) -> ElementExpression:
        product = literal(1, dtype)
        for d, size in enumerate(sizes):
            start = places[leading + d] * steps[d] - padding[d]
            last = literal(inputs[leading + d] + edge[d], "int64")
            end = call("min", (counted(start + size), last), "int64")
            first = call("max", (counted(start), literal(-edge[d], "int64")), "int64")
            inside = cast(call("sub", (end, first), "int64"), dtype)
            product = call("mul", (product, inside), dtype)
        return call("reciprocal", (product,), dtype)

    return Value(shape, dtype, share)


def _each(lowering: Lowering, node: fx.Node, place: int, name: str, default: int) -> list[int]:
    """An argument with one number per dimension of the window, or one for all."""
    given = lowering.argument(node, place, name)
    given = [default] if given in (None, []) else given
    count = len(lowering.argument(node, 1))
    return list(given) * count if len(given) == 1 else list(given)


def _walk(lowering: Lowering, node: fx.Node, output: Any, spread: Sequence[int]) -> Walk:
    sizes = lowering.argument(node, 1)
    steps = lowering.argument(node, 2, "stride") or sizes
    padding = _each(lowering, node, 3, "padding", 0)
    shape = tuple(map(int, output.shape))
    leading = len(shape) - len(sizes)
    space, window = lowering.variables(shape), lowering.variables(sizes)
    places = (
        *map(index, space[:leading]),
        *(
            index(s) * steps[d] + index(w) * spread[d] - padding[d]
            for d, (s, w) in enumerate(zip(space[leading:], window, strict=True))
        ),
    )
    return Walk(space, window, places)


@rule("aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d")
def _adaptive_mean(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = shape_and_dtype(node)
    inner = computed_in(dtype)
    total = _walked(
        lowering, lowering.tensor(node, 0), _adaptive(lowering, node, shape), shape, "sum"
    )
    sizes = lowering.tensor(node, 0).shape

    def share(places: Places) -> ElementExpression:
        product = literal(1, inner)
        for place, size, count in zip(places, sizes, shape, strict=True):
            if size != count:
                first, end = _bounds(place, size, count)
                inside = cast(call("sub", (counted(end), counted(first)), "int64"), inner)
                product = call("mul", (product, inside), inner)
        return call("reciprocal", (product,), inner)

    return pointwise("mul", [total, Value(shape, inner, share)], shape, inner, dtype)


@rule("aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d")
def _adaptive_max(lowering: Lowering, node: fx.Node) -> tuple[Value, ...]:
    shape = tuple(map(int, node.meta["val"][0].shape))
    walk = _adaptive(lowering, node, shape)
    return _most(
        lowering, node, walk, _walked(lowering, lowering.tensor(node, 0), walk, shape, "max")
    )


def _adaptive(lowering: Lowering, node: fx.Node, shape: tuple[int, ...]) -> Walk:
    """Windows that divide a dimension evenly; they overlap and differ in length by one if
    necessary."""
    value = lowering.tensor(node, 0)
    if 0 in value.shape:
        raise NotLowered("a reduction of nothing")
    sizes = [_widest(size, count) for size, count in zip(value.shape, shape, strict=True)]
    space, window = lowering.variables(shape), lowering.variables(sizes)
    places, inside = [], None
    for s, w, size, count in zip(space, window, value.shape, shape, strict=True):
        first, end = _bounds(index(s), size, count)
        places.append(first + index(w) if w.extent != 1 else first)
        if size % count:
            within = call("lt", (counted(first + index(w)), counted(end)), "bool")
            inside = within if inside is None else call("and", (inside, within), "bool")
    return Walk(space, window, tuple(places), inside)


def _bounds(place: Index, size: int, count: int) -> tuple[Index, Index]:
    """Start and end of the window at this position, of `count` windows over `size`."""
    if size % count == 0:
        first = place * (size // count)
        return first, first + size // count
    return place * size // count, (place * size + (size + count - 1)) // count


def _widest(size: int, count: int) -> int:
    starts = ((p * size // count, -((-(p + 1) * size) // count)) for p in range(count))
    return max(end - first for first, end in starts)


@rule("<built-in function getitem>")
def _item(lowering: Lowering, node: fx.Node) -> Any:
    values, number = lowering.argument(node, 0), lowering.argument(node, 1)
    return values[number]


@rule("aten.convolution")
def _convolution(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = shape_and_dtype(node)
    value, weight, bias, steps, padding, spread, turned, _, groups = (
        lowering.argument(node, n) for n in range(9)
    )
    if turned:
        return _transposed(lowering, node)
    inner, count = computed_in(dtype), len(shape) - 2
    steps, padding, spread = (
        list(x) * count if len(x) == 1 else list(x) for x in (steps, padding, spread)
    )
    space = lowering.variables(shape)
    terms = lowering.variables(weight.shape[1:])
    per_group = shape[1] // groups
    group = index(space[1]) // per_group if groups > 1 else Index()
    channel = group * weight.shape[1] + index(terms[0])
    places: Places = (
        index(space[0]),
        channel,
        *(
            index(s) * steps[d] + index(w) * spread[d] - padding[d]
            for d, (s, w) in enumerate(zip(space[2:], terms[1:], strict=True))
        ),
    )
    element = guarded(value, places, literal(0, inner))
    factor = cast(weight.at((index(space[1]), *map(index, terms))), inner)
    body = call("mul", (element, factor), inner)
    total = _summed(lowering, body, space, terms, shape)
    return _with_bias(total, bias, shape, dtype)


def _summed(
    lowering: Lowering,
    body: ElementExpression,
    space: Sequence[Var],
    terms: Sequence[Var],
    shape: tuple[int, ...],
) -> Value:
    """The sums of a convolution: `body` summed over `terms` for every index of `space`."""
    own = {v: Index() for v in (*space, *terms) if v.extent == 1}
    kept = tuple(v for v in space if v.extent != 1)
    reduced = tuple(v for v in terms if v.extent != 1)
    return lowering.stage(body.substituted(own), kept, shape, body.dtype, reduced, "sum")


def _with_bias(total: Value, bias: Value | None, shape: tuple[int, ...], dtype: str) -> Value:
    """The sums of a convolution plus the bias of each channel."""
    if bias is None:
        return total
    inner = computed_in(dtype)
    added = Value(shape, inner, lambda p: cast(bias.at((p[1],)), inner))
    return pointwise("add", [total, added], shape, inner, dtype)


def _transposed(lowering: Lowering, node: fx.Node) -> Value:
    """A transposed convolution as a gather: an input affects every `step`-th position only."""
    shape, dtype = shape_and_dtype(node)
    value, weight, bias, steps, padding, spread, _, _, groups = (
        lowering.argument(node, n) for n in range(9)
    )
    inner, count = computed_in(dtype), len(shape) - 2
    steps, padding, spread = (
        list(x) * count if len(x) == 1 else list(x) for x in (steps, padding, spread)
    )
    space = lowering.variables(shape)
    per_group = value.shape[1] // groups
    terms = lowering.variables((per_group, *weight.shape[2:]))
    group = index(space[1]) // weight.shape[1] if groups > 1 else Index()
    channel = group * per_group + index(terms[0])
    places, reached = [index(space[0]), channel], None
    for d, (s, w) in enumerate(zip(space[2:], terms[1:], strict=True)):
        spot = index(s) + padding[d] - index(w) * spread[d]
        places.append(spot // steps[d])
        if steps[d] > 1:
            rest = counted(spot % steps[d])
            hit = call("eq", (rest, literal(0, "int64")), "bool")
            reached = hit if reached is None else call("and", (reached, hit), "bool")
    zero = literal(0, inner)
    element = cast(guarded(value, tuple(places), literal(0, value.dtype)), inner)
    if reached is not None:
        element = call("where", (reached, element, zero), inner)
    within_group = index(space[1]) % weight.shape[1] if groups > 1 else index(space[1])
    factor = cast(weight.at((channel, within_group, *map(index, terms[1:]))), inner)
    body = call("mul", (element, factor), inner)
    total = _summed(lowering, body, space, terms, shape)
    return _with_bias(total, bias, shape, dtype)
