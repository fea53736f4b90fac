"""Views, which are index arithmetic, and operators over windows: pooling and convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, prod
from operator import getitem
from typing import Any

from optimizer.search.synthesizers.traced.expression import (
    FLOATS,
    Combine,
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
    OperatorCall,
    Places,
    Value,
    broadcast,
    pointwise,
    rule,
)
from optimizer.search.synthesizers.traced.operators.gathers import guarded


@rule("aten.view", "aten.reshape", "aten._unsafe_view", "prims.view_of", "aten.view_copy")
def _view(op: OperatorCall) -> Value:
    value = op.tensor(0)
    return op.result(lambda p: value.at(unflattened(flattened(p, op.shape), value.shape)))


@rule("aten.expand")
def _expand(op: OperatorCall) -> Value:
    return broadcast(op.argument(0), op.shape, op.dtype)


@rule("aten.repeat")
def _repeat(op: OperatorCall) -> Value:
    value = op.tensor(0)
    leading = len(op.shape) - len(value.shape)

    def at(places: Places) -> ElementExpression:
        own = zip(places[leading:], value.shape, strict=True)
        return value.at(tuple(place % size for place, size in own))

    return op.result(at)


@rule("prims.broadcast_in_dim")
def _broadcast_in(op: OperatorCall) -> Value:
    value, dims = op.tensor(0), op.argument(2)

    def at(places: Places) -> ElementExpression:
        own = (places[d] if s != 1 else Index() for d, s in zip(dims, value.shape, strict=True))
        return value.at(tuple(own))

    return op.result(at)


@rule("aten.permute")
def _permute(op: OperatorCall) -> Value:
    value = op.tensor(0)
    order = [d % len(op.shape) for d in op.argument(1)]
    return op.result(lambda p: value.at(tuple(p[order.index(d)] for d in range(len(op.shape)))))


@rule("aten.unsqueeze", "aten.squeeze.dims", "aten.squeeze.dim", "prims.squeeze")
def _ones(op: OperatorCall) -> Value:
    """Dimensions of size 1 are added or removed; the others keep their order."""
    value = op.tensor(0)

    def at(places: Places) -> ElementExpression:
        inner = iter([p for p, size in zip(places, op.shape, strict=True) if size != 1])
        return value.at(tuple(next(inner) if s != 1 else Index() for s in value.shape))

    return op.result(at)


@rule("aten.slice.Tensor")
def _slice(op: OperatorCall) -> Value:
    value = op.tensor(0)
    dim = op.argument(1, "dim", 0) % len(op.shape)
    start = op.argument(2, "start", 0) or 0
    step = op.argument(4, "step", 1)
    size = value.shape[dim]
    start = min(max(start + size if start < 0 else start, 0), size)
    return op.result(lambda p: value.at((*p[:dim], p[dim] * step + start, *p[dim + 1 :])))


@rule("aten.split_with_sizes", "aten.split.Tensor", "aten.unbind.int")
def _split(op: OperatorCall) -> tuple[Value, ...]:
    value = op.tensor(0)
    whole = "unbind" in str(op.node.target)
    dim = op.argument(1 if whole else 2, "dim", 0) % len(value.shape)
    parts = []
    first = 0
    for part in op.node.meta["val"]:
        shape = tuple(map(int, part.shape))
        parts.append(Value(shape, value.dtype, _from(value, dim, first, whole)))
        first += 1 if whole else shape[dim]
    return tuple(parts)


def _from(value: Value, dim: int, first: int, alone: bool) -> Callable[[Places], ElementExpression]:
    if alone:
        return lambda p: value.at((*p[:dim], Index((), first), *p[dim:]))
    return lambda p: value.at((*p[:dim], p[dim] + first, *p[dim + 1 :]))


@rule("aten.select.int")
def _select(op: OperatorCall) -> Value:
    value = op.tensor(0)
    dim, place = op.argument(1), op.argument(2)
    dim, place = dim % len(value.shape), place % value.shape[dim]
    return op.result(lambda p: value.at((*p[:dim], Index((), place), *p[dim:])))


@rule("aten.diagonal", "aten.diagonal_copy")
def _diagonal(op: OperatorCall) -> Value:
    value, rank = op.tensor(0), len(op.shape) + 1
    offset = op.argument(1, "offset", 0)
    first = op.argument(2, "dim1", 0) % rank
    second = op.argument(3, "dim2", 1) % rank

    def at(places: Places) -> ElementExpression:
        others = iter(places[:-1])
        along = {first: places[-1] + max(0, -offset), second: places[-1] + max(0, offset)}
        return value.at(tuple(along[d] if d in along else next(others) for d in range(rank)))

    return op.result(at)


@rule("aten.unfold", "aten.unfold_copy")
def _unfold(op: OperatorCall) -> Value:
    """Windows along a dimension; the position in the window becomes the last dimension."""
    value, step = op.tensor(0), op.argument(3)
    dim = op.argument(1) % len(value.shape)
    return op.result(lambda p: value.at((*p[:dim], p[dim] * step + p[-1], *p[dim + 1 : -1])))


@rule("aten.flip", "prims.rev")
def _flip(op: OperatorCall) -> Value:
    value = op.tensor(0)
    turned = {d % len(op.shape) for d in op.argument(1)}

    def at(places: Places) -> ElementExpression:
        own = (
            place * -1 + (size - 1) if d in turned else place
            for d, (place, size) in enumerate(zip(places, op.shape, strict=True))
        )
        return value.at(tuple(own))

    return op.result(at)


@rule("aten.as_strided", "aten.as_strided_copy")
def _as_strided(op: OperatorCall) -> Value:
    """For a tensor that torch holds contiguously and from the start of its storage."""
    value, strides = op.tensor(0), op.argument(2)
    held, offset = op.node.args[0].meta["val"], op.argument(3, "storage_offset") or 0  # type: ignore[union-attr]
    if not held.is_contiguous() or held.storage_offset():
        raise NotLowered("aten.as_strided of memory in another order")

    def at(places: Places) -> ElementExpression:
        place = Index((), offset)
        for part, stride in zip(places, strides, strict=True):
            place = place + part * stride
        return value.at(unflattened(place, value.shape))

    return op.result(at)


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
def _max_pool(op: OperatorCall) -> tuple[Value, ...]:
    output, spread = op.node.meta["val"][0], _each(op, 4, "dilation", 1)
    most = _pooled(op, output, spread, "max")
    return _most(op, _walk(op, output, spread), most)


def _most(op: OperatorCall, walk: Walk, most: Value) -> tuple[Value, ...]:
    """The greatest element of each window and, if used, its index in the plane."""
    value = op.tensor(0)
    shape = tuple(map(int, op.node.meta["val"][0].shape))
    if all(user.target is getitem and user.args[1] == 0 for user in op.node.users):
        return (most,)
    count = 3 if "3d" in str(op.node.target) else 2
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

    return most, _walked(op.lowering, Value(value.shape, "int64", place), walk, shape, "min")


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


def _pooled(op: OperatorCall, output: Any, spread: Sequence[int], combine: Combine) -> Value:
    """Pooling over windows: all dimensions at once or, if much less work, one dimension after
    another, in the order of how much each reduces the tensor."""
    value, shape = op.tensor(0), tuple(map(int, output.shape))
    sizes = op.argument(1)
    leading = len(shape) - len(sizes)
    steps = op.argument(2, "stride") or sizes
    padding = _each(op, 3, "padding", 0)
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
        return _walked(op.lowering, value, _walk(op, output, spread), shape, combine)
    for d, between in zip(walked, shapes, strict=True):
        space, window = op.lowering.variables(between), op.lowering.variables([sizes[d]])
        place = index(space[leading + d]) * steps[d] + index(window[0]) * spread[d] - padding[d]
        places = tuple(place if i == leading + d else index(v) for i, v in enumerate(space))
        value = _walked(op.lowering, value, Walk(space, window, places), between, combine)
    return value


@rule("aten.avg_pool2d", "aten.avg_pool3d", "aten.avg_pool1d")
def _avg_pool(op: OperatorCall) -> Value:
    spread = [1] * len(op.argument(1))
    value = _pooled(op, op.node.meta["val"], spread, "sum")
    inner = computed_in(value.dtype)
    sizes = op.argument(1)
    padding = _each(op, 3, "padding", 0)
    padded = op.argument(5, "count_include_pad", True)
    divisor = op.argument(6, "divisor_override")
    cut = op.argument(4, "ceil_mode") or (any(padding) and not padded)
    if divisor or not cut:
        by: Value | float = 1.0 / (divisor or prod(sizes))
    else:
        by = _share(op, padding if padded else [0] * len(padding), inner)
    return pointwise("mul", [value, by], value.shape, inner, value.dtype)


def _share(op: OperatorCall, edge: Sequence[int], dtype: str) -> Value:
    """The reciprocal of the number of positions of each window inside the input, extended by an
    edge of this width. Windows that cross the edge have fewer positions."""
    sizes, inputs = op.argument(1), op.tensor(0).shape
    padding = _each(op, 3, "padding", 0)
    steps = op.argument(2, "stride") or sizes
    leading = len(op.shape) - len(sizes)

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

    return Value(op.shape, dtype, share)


def _each(op: OperatorCall, place: int, name: str, default: int) -> list[int]:
    """An argument with one number per dimension of the window, or one for all."""
    given = op.argument(place, name)
    given = [default] if given in (None, []) else given
    count = len(op.argument(1))
    return list(given) * count if len(given) == 1 else list(given)


def _walk(op: OperatorCall, output: Any, spread: Sequence[int]) -> Walk:
    sizes = op.argument(1)
    steps = op.argument(2, "stride") or sizes
    padding = _each(op, 3, "padding", 0)
    shape = tuple(map(int, output.shape))
    leading = len(shape) - len(sizes)
    space, window = op.lowering.variables(shape), op.lowering.variables(sizes)
    places = (
        *map(index, space[:leading]),
        *(
            index(s) * steps[d] + index(w) * spread[d] - padding[d]
            for d, (s, w) in enumerate(zip(space[leading:], window, strict=True))
        ),
    )
    return Walk(space, window, places)


@rule("aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d")
def _adaptive_mean(op: OperatorCall) -> Value:
    inner = computed_in(op.dtype)
    total = _walked(op.lowering, op.tensor(0), _adaptive(op, op.shape), op.shape, "sum")
    sizes = op.tensor(0).shape

    def share(places: Places) -> ElementExpression:
        product = literal(1, inner)
        for place, size, count in zip(places, sizes, op.shape, strict=True):
            if size != count:
                first, end = _bounds(place, size, count)
                inside = cast(call("sub", (counted(end), counted(first)), "int64"), inner)
                product = call("mul", (product, inside), inner)
        return call("reciprocal", (product,), inner)

    return pointwise("mul", [total, Value(op.shape, inner, share)], op.shape, inner, op.dtype)


@rule("aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d")
def _adaptive_max(op: OperatorCall) -> tuple[Value, ...]:
    shape = tuple(map(int, op.node.meta["val"][0].shape))
    walk = _adaptive(op, shape)
    return _most(op, walk, _walked(op.lowering, op.tensor(0), walk, shape, "max"))


def _adaptive(op: OperatorCall, shape: tuple[int, ...]) -> Walk:
    """Windows that divide a dimension evenly; they overlap and differ in length by one if
    necessary."""
    value = op.tensor(0)
    if 0 in value.shape:
        raise NotLowered("a reduction of nothing")
    sizes = [_widest(size, count) for size, count in zip(value.shape, shape, strict=True)]
    space, window = op.lowering.variables(shape), op.lowering.variables(sizes)
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
def _item(op: OperatorCall) -> Any:
    values, number = op.argument(0), op.argument(1)
    return values[number]


@rule("aten.convolution")
def _convolution(op: OperatorCall) -> Value:
    value, weight, bias, steps, padding, spread, turned, _, groups = (
        op.argument(n) for n in range(9)
    )
    if turned:
        return _transposed(op)
    inner, count = computed_in(op.dtype), len(op.shape) - 2
    steps, padding, spread = (
        list(x) * count if len(x) == 1 else list(x) for x in (steps, padding, spread)
    )
    space = op.lowering.variables(op.shape)
    terms = op.lowering.variables(weight.shape[1:])
    per_group = op.shape[1] // groups
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
    total = _summed(op.lowering, body, space, terms, op.shape)
    return _with_bias(total, bias, op.shape, op.dtype)


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


def _transposed(op: OperatorCall) -> Value:
    """A transposed convolution as a gather: an input affects every `step`-th position only."""
    value, weight, bias, steps, padding, spread, _, _, groups = (op.argument(n) for n in range(9))
    inner, count = computed_in(op.dtype), len(op.shape) - 2
    steps, padding, spread = (
        list(x) * count if len(x) == 1 else list(x) for x in (steps, padding, spread)
    )
    space = op.lowering.variables(op.shape)
    per_group = value.shape[1] // groups
    terms = op.lowering.variables((per_group, *weight.shape[2:]))
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
    total = _summed(op.lowering, body, space, terms, op.shape)
    return _with_bias(total, bias, op.shape, op.dtype)
