"""Gathers, scatters, concatenation and padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from optimizer.search.synthesizers.traced.expression import (
    FLOATS,
    Combine,
    ElementExpression,
    Stage,
    call,
    cast,
    computed_in,
    counted,
    literal,
)
from optimizer.search.synthesizers.traced.index import Index, bounds, index, read, unflattened
from optimizer.search.synthesizers.traced.lowering import (
    Lowering,
    NotLowered,
    OperatorCall,
    Places,
    Value,
    broadcast,
    pointwise,
    rule,
    shape_and_dtype,
)


def place_from(value: ElementExpression, size: int) -> Index:
    """An index that is read from a tensor; negative ones count from the end."""
    if value.name == "counted":
        low, high = bounds(value.indices[0])
        if low >= 0 and high < size:
            return value.indices[0]
    number = cast(value, "int64")
    below = call("lt", (number, literal(0, "int64")), "bool")
    wrapped = call("add", (number, literal(size, "int64")), "int64")
    return read(call("where", (below, wrapped, number), "int64"), 0, size - 1)


@rule("aten.gather")
def _gather(op: OperatorCall) -> Value:
    value, chosen = op.tensor(0), op.tensor(2)
    dim = op.argument(1)
    if not op.shape:
        raise NotLowered("a gather without dimensions")
    dim = dim % len(op.shape)

    def at(places: Places) -> ElementExpression:
        place = place_from(chosen.at(places), value.shape[dim])
        return value.at((*places[:dim], place, *places[dim + 1 :]))

    return op.result(at)


@rule("aten.index_select")
def _index_select(op: OperatorCall) -> Value:
    value, chosen = op.tensor(0), op.tensor(2)
    dim = op.argument(1)
    dim = dim % len(op.shape)

    def at(places: Places) -> ElementExpression:
        place = place_from(chosen.at((places[dim],)), value.shape[dim])
        return value.at((*places[:dim], place, *places[dim + 1 :]))

    return op.result(at)


@rule("aten.embedding")
def _embedding(op: OperatorCall) -> Value:
    table, chosen = op.tensor(0), op.tensor(1)

    def at(places: Places) -> ElementExpression:
        place = place_from(chosen.at(places[:-1]), table.shape[0])
        return table.at((place, places[-1]))

    return op.result(at)


@rule("aten.index.Tensor")
def _indexed(op: OperatorCall) -> Value:
    """Neighbouring index tensors replace their dimensions in place; separated ones come first."""
    value, chosen = op.tensor(0), op.argument(1)
    used = [d for d, part in enumerate(chosen) if part is not None]
    if used != list(range(used[0], used[-1] + 1)) or chosen[used[0]].dtype == "bool":
        raise NotLowered("aten.index with a mask or with gaps")
    ranks = [len(chosen[d].shape) for d in used]
    first, rank = used[0], max(ranks)
    common = op.shape[first : first + rank]

    def at(places: Places) -> ElementExpression:
        inner = places[first : first + rank]
        own = [
            place_from(broadcast(chosen[d], common, "int64").at(inner), value.shape[d])
            for d in used
        ]
        return value.at((*places[:first], *own, *places[first + rank :]))

    return op.result(at)


@rule("aten.cat")
def _cat(op: OperatorCall) -> Value:
    parts = [p for p in op.argument(0) if p.shape != (0,)]
    dim = op.argument(1, "dim", 0) % len(op.shape)

    def at(places: Places) -> ElementExpression:
        value: ElementExpression | None = None
        end = op.shape[dim]
        for part in reversed(parts):
            start = end - part.shape[dim]
            own = within(places[dim] - start, part.shape[dim])
            here = cast(part.at((*places[:dim], own, *places[dim + 1 :])), op.dtype)
            behind = call("ge", (counted(places[dim]), literal(end, "int64")), "bool")
            value = here if value is None else call("where", (behind, value, here), op.dtype)
            end = start
        assert value is not None
        return value

    return op.result(at)


@rule("aten.slice_scatter")
def _slice_scatter(op: OperatorCall) -> Value:
    """A tensor with one slice replaced by another tensor."""
    value, source = op.tensor(0), op.tensor(1)
    dim = op.argument(2, "dim", 0) % len(op.shape)
    if op.argument(5, "step", 1) != 1:
        raise NotLowered("aten.slice_scatter with a step")
    size, held = op.shape[dim], source.shape[dim]
    start = op.argument(3, "start", 0) or 0
    start = min(max(start + size if start < 0 else start, 0), size)

    def at(places: Places) -> ElementExpression:
        own = (*places[:dim], within(places[dim] - start, held), *places[dim + 1 :])
        number = counted(places[dim])
        inside = call("ge", (number, literal(start, "int64")), "bool")
        before = call("lt", (number, literal(start + held, "int64")), "bool")
        parts = (cast(source.at(own), op.dtype), cast(value.at(places), op.dtype))
        return call("where", (call("and", (inside, before), "bool"), *parts), op.dtype)

    return op.result(at) if held else value


@rule("aten.constant_pad_nd")
def _pad(op: OperatorCall) -> Value:
    value, sides = op.tensor(0), op.argument(1)
    fill = literal(op.argument(2, "value", 0), op.dtype)
    before = [0] * (len(op.shape) - len(sides) // 2) + list(reversed(sides[::2]))

    def at(places: Places) -> ElementExpression:
        own = tuple(p - b for p, b in zip(places, before, strict=True))
        return guarded(value, own, fill)

    return op.result(at)


# -- indices that may be out of bounds


def within(place: Index, size: int) -> Index:
    """The index, clamped to the bounds."""
    low, high = bounds(place)
    if low >= 0 and high < size:
        return place
    number = counted(place)
    least = call("max", (number, literal(0, "int64")), "int64")
    return read(call("min", (least, literal(size - 1, "int64")), "int64"), 0, size - 1)


def guarded(value: Value, places: Places, fill: ElementExpression) -> ElementExpression:
    """The element at these indices, `fill` if one of them is out of bounds."""
    inside: ElementExpression | None = None
    for place, size in zip(places, value.shape, strict=True):
        low, high = bounds(place)
        tests = [("ge", 0)] * (low < 0) + [("lt", size)] * (high >= size)
        for name, limit in tests:
            test = call(name, (counted(place), literal(limit, "int64")), "bool")
            inside = test if inside is None else call("and", (inside, test), "bool")
    own = tuple(within(p, size) for p, size in zip(places, value.shape, strict=True))
    element = cast(value.at(own), fill.dtype)
    return element if inside is None else call("where", (inside, element, fill), fill.dtype)


# -- scatters

_COMBINED: dict[str, Combine] = {
    **dict.fromkeys(("sum", "add", "mean"), "sum"),
    **dict.fromkeys(("prod", "multiply"), "prod"),
    "amax": "max",
    "amin": "min",
}
_LARGEST = {"int64": (1 << 63) - 1, "int32": (1 << 31) - 1, "int16": (1 << 15) - 1}
_LARGEST |= {"int8": 127, "uint8": 255}


def _put(
    lowering: Lowering,
    base: Value,
    dtype: str,
    shape: Sequence[int],
    at: Callable[[Places], Places],
    steps: Sequence[tuple[Value | float, Combine | None]],
) -> Value:
    """`base`, updated by each step in turn: for every index of `shape`, the step's value is written
    to or combined with the element at `at`."""
    inner = computed_in(dtype)
    base = broadcast(base, base.shape, inner)
    if 0 in base.shape or 0 in shape:
        return base
    filled = lowering.materialized(base)
    buffer = lowering.stages[-1].out
    for source, combine in steps:
        variables = lowering.variables(shape)
        places = tuple(index(v) if v.extent != 1 else Index() for v in variables)
        own = tuple(place for place, size in zip(at(places), base.shape, strict=True) if size != 1)
        body = broadcast(source, tuple(shape), inner).at(places)
        space = tuple(v for v in variables if v.extent != 1)
        lowering.stages.append(Stage(buffer, space, body, combine=combine, at=own))
    return filled


def _reduced(
    lowering: Lowering,
    base: Value,
    dtype: str,
    shape: Sequence[int],
    at: Callable[[Places], Places],
    source: Value | float,
    how: str,
    with_base: bool = True,
) -> Value:
    """`base` combined with the elements of a source. Without `with_base`, elements of `base` that
    the source reaches are replaced instead."""
    combine = _COMBINED[how]
    steps: list[tuple[Value | float, Combine | None]] = [(source, combine)]
    if not with_base:
        steps.insert(0, (_neutral(combine, computed_in(dtype)), None))
    total = _put(lowering, base, dtype, shape, at, steps)
    if how != "mean":
        return total
    if dtype not in FLOATS:
        raise NotLowered("a mean of integers where they are put")
    ones: list[tuple[Value | float, Combine | None]] = [(1.0, "sum")]
    start = broadcast(float(with_base), base.shape, "float32")
    count = _put(lowering, start, "float32", shape, at, ones)
    count = pointwise("max", [count, 1.0], base.shape, "float32", "float32")
    inner = computed_in(dtype)
    return pointwise("div", [total, count], base.shape, inner, inner)


def _neutral(combine: Combine, dtype: str) -> float:
    if combine in ("sum", "prod"):
        return int(combine == "prod")
    if dtype in FLOATS:
        return float("-inf") if combine == "max" else float("inf")
    most = _LARGEST.get(dtype, 1)
    if combine == "min":
        return most
    return 0 if dtype in ("uint8", "bool") else -most - 1


def _along(value: Value, dim: int, chosen: Value) -> Callable[[Places], Places]:
    """Indices in which the one of dimension `dim` is read from another tensor, by element."""

    def at(places: Places) -> Places:
        place = place_from(chosen.at(places), value.shape[dim])
        return (*places[:dim], place, *places[dim + 1 :])

    return at


def _rows(value: Value, dim: int, chosen: Value) -> Callable[[Places], Places]:
    """Indices in which the one of dimension `dim` is read from a vector."""

    def at(places: Places) -> Places:
        place = place_from(chosen.at((places[dim],)), value.shape[dim])
        return (*places[:dim], place, *places[dim + 1 :])

    return at


def _with_dims(op: OperatorCall, place: int = 0) -> Value:
    """An argument, as a vector if it is a scalar."""
    value = op.tensor(place)
    if value.shape:
        return value
    return Value((1,), value.dtype, lambda p: value.at(()))


def _shaped(node: fx.Node, value: Value) -> Value:
    """The value in the shape and dtype of the node's result."""
    shape, dtype = shape_and_dtype(node)
    if shape:
        return broadcast(value, shape, dtype)
    return Value(shape, dtype, lambda _: cast(value.at((Index(),)), dtype))


@rule("aten.scatter.src", "aten.scatter.value", "aten.scatter.reduce", "aten.scatter.value_reduce")
@rule("aten.scatter_add", "aten.scatter_reduce.two")
def _scatter(op: OperatorCall) -> Value:
    value, chosen = _with_dims(op), _with_dims(op, 2)
    dim = op.argument(1) % len(value.shape)
    source: Any = op.argument(3)
    if isinstance(source, Value):
        own = _with_dims(op, 3)
        source = Value(chosen.shape, own.dtype, own.at)
    name = str(op.node.target)
    how = op.argument(4, "reduce", "sum" if "scatter_add" in name else None)
    with_base = bool(op.argument(5, "include_self", True))
    at = _along(value, dim, chosen)
    if how is None:
        return _shaped(
            op.node, _put(op.lowering, value, op.dtype, chosen.shape, at, [(source, None)])
        )
    made = _reduced(op.lowering, value, op.dtype, chosen.shape, at, source, how, with_base)
    return _shaped(op.node, made)


@rule("aten.index_add", "aten.index_copy", "aten.index_reduce")
def _index_rows(op: OperatorCall) -> Value:
    value, source = _with_dims(op), _with_dims(op, 3)
    chosen = _with_dims(op, 2)
    dim = op.argument(1) % len(value.shape)
    name, at = str(op.node.target), _rows(value, dim, chosen)
    if "index_copy" in name:
        return _shaped(
            op.node, _put(op.lowering, value, op.dtype, source.shape, at, [(source, None)])
        )
    how, with_base = "sum", True
    if "index_reduce" in name:
        how = op.argument(4)
        with_base = bool(op.argument(5, "include_self", True))
    elif (scale := op.argument(4, "alpha", 1)) != 1:
        inner = computed_in(op.dtype)
        source = pointwise("mul", [source, scale], source.shape, inner, inner)
    made = _reduced(op.lowering, value, op.dtype, source.shape, at, source, how, with_base)
    return _shaped(op.node, made)


@rule("aten.index_put", "aten._unsafe_index_put")
def _index_put(op: OperatorCall) -> Value:
    """Neighbouring index tensors replace their dimensions in place; separated ones come first."""
    value, chosen = op.tensor(0), op.argument(1)
    used = [d for d, part in enumerate(chosen) if part is not None]
    gaps = used != list(range(used[0], used[-1] + 1))
    if gaps or any(chosen[d].dtype in ("bool", "uint8") for d in used):
        raise NotLowered(f"{op.node.target} with a mask or with gaps")
    first, last = used[0], used[-1]
    rank = max(len(chosen[d].shape) for d in used)
    common = _joined_shape([chosen[d].shape for d in used], rank)
    shape = (*value.shape[:first], *common, *value.shape[last + 1 :])

    def at(places: Places) -> Places:
        inner = places[first : first + rank]
        own = (
            place_from(broadcast(chosen[d], common, "int64").at(inner), value.shape[d])
            for d in used
        )
        return (*places[:first], *own, *places[first + rank :])

    combine: Combine | None = "sum" if op.argument(3, "accumulate", False) else None
    source = op.tensor(2)
    return _shaped(op.node, _put(op.lowering, value, op.dtype, shape, at, [(source, combine)]))


def _joined_shape(shapes: Sequence[tuple[int, ...]], rank: int) -> tuple[int, ...]:
    filled = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*filled, strict=True))


@rule("aten.put")
def _put_flat(op: OperatorCall) -> Value:
    value, chosen = op.tensor(0), op.tensor(1)
    source = op.tensor(2)
    count = 1
    for size in value.shape:
        count *= size

    def at(places: Places) -> Places:
        return unflattened(place_from(chosen.at(places), count), value.shape)

    own = Value(
        chosen.shape,
        source.dtype,
        lambda p: source.at(p if source.shape == chosen.shape else _moved(p, chosen, source)),
    )
    combine: Combine | None = "sum" if op.argument(3, "accumulate", False) else None
    made = _put(op.lowering, value, op.dtype, chosen.shape, at, [(own, combine)])
    return broadcast(made, value.shape, op.dtype)


def _moved(places: Places, shaped: Value, to: Value) -> Places:
    place = Index()
    for part, size in zip(places, shaped.shape, strict=True):
        place = place * size + part
    return unflattened(place, to.shape)


@rule("aten.as_strided_scatter")
def _as_strided_scatter(op: OperatorCall) -> Value:
    """For a tensor that torch holds contiguously and from the start of its storage."""
    value, source = op.tensor(0), op.tensor(1)
    strides, offset = op.argument(3), op.argument(4, "storage_offset") or 0
    held = op.node.args[0].meta["val"]  # type: ignore[union-attr]
    if not held.is_contiguous() or held.storage_offset():
        raise NotLowered("aten.as_strided_scatter into memory in another order")

    def at(places: Places) -> Places:
        place = Index((), offset)
        for part, stride in zip(places, strides, strict=True):
            place = place + part * stride
        return unflattened(place, value.shape)

    made = _put(op.lowering, value, op.dtype, source.shape, at, [(source, None)])
    return broadcast(made, value.shape, op.dtype)
