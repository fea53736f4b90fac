"""Places that tensors hold, and tensors that are joined or padded."""

from __future__ import annotations

from torch import fx

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
    Lowering,
    NotLowered,
    Places,
    Value,
    broadcast,
    result,
)
from optimizer.search.synthesizers.traced.operators.edges import guarded, within
from optimizer.search.synthesizers.traced.operators.rules import rule


def place_from(value: Expression, size: int) -> Index:
    """An index that a tensor holds; negative ones count from the end."""
    if value.name == "counted":
        low, high = bounds(value.indices[0])
        if low >= 0 and high < size:
            return value.indices[0]
    number = cast(value, "int64")
    below = call("lt", (number, literal(0, "int64")), "bool")
    wrapped = call("add", (number, literal(size, "int64")), "int64")
    return read(call("where", (below, wrapped, number), "int64"), 0, size - 1)


@rule("aten.gather")
def _gather(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    value, chosen = lowering.tensor(node, 0), lowering.tensor(node, 2)
    dim = lowering.argument(node, 1)
    if not shape:
        raise NotLowered("a gather without dimensions")
    dim = dim % len(shape)

    def at(places: Places) -> Expression:
        place = place_from(chosen.at(places), value.shape[dim])
        return value.at((*places[:dim], place, *places[dim + 1 :]))

    return Value(shape, dtype, at)


@rule("aten.index_select")
def _index_select(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    value, chosen = lowering.tensor(node, 0), lowering.tensor(node, 2)
    dim = lowering.argument(node, 1)
    dim = dim % len(shape)

    def at(places: Places) -> Expression:
        place = place_from(chosen.at((places[dim],)), value.shape[dim])
        return value.at((*places[:dim], place, *places[dim + 1 :]))

    return Value(shape, dtype, at)


@rule("aten.embedding")
def _embedding(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    table, chosen = lowering.tensor(node, 0), lowering.tensor(node, 1)

    def at(places: Places) -> Expression:
        place = place_from(chosen.at(places[:-1]), table.shape[0])
        return table.at((place, places[-1]))

    return Value(shape, dtype, at)


@rule("aten.index.Tensor")
def _indexed(lowering: Lowering, node: fx.Node) -> Value:
    """Neighbouring index tensors take the place of their dimensions."""
    shape, dtype = result(node)
    value, chosen = lowering.tensor(node, 0), lowering.argument(node, 1)
    used = [d for d, part in enumerate(chosen) if part is not None]
    if used != list(range(used[0], used[-1] + 1)) or chosen[used[0]].dtype == "bool":
        raise NotLowered("aten.index with a mask or with gaps")
    ranks = [len(chosen[d].shape) for d in used]
    first, rank = used[0], max(ranks)
    common = shape[first : first + rank]

    def at(places: Places) -> Expression:
        inner = places[first : first + rank]
        own = [
            place_from(broadcast(chosen[d], common, "int64").at(inner), value.shape[d])
            for d in used
        ]
        return value.at((*places[:first], *own, *places[first + rank :]))

    return Value(shape, dtype, at)


@rule("aten.cat")
def _cat(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    parts = [p for p in lowering.argument(node, 0) if p.shape != (0,)]
    dim = lowering.argument(node, 1, "dim", 0) % len(shape)

    def at(places: Places) -> Expression:
        value: Expression | None = None
        end = shape[dim]
        for part in reversed(parts):
            start = end - part.shape[dim]
            own = within(places[dim] - start, part.shape[dim])
            here = cast(part.at((*places[:dim], own, *places[dim + 1 :])), dtype)
            behind = call("ge", (counted(places[dim]), literal(end, "int64")), "bool")
            value = here if value is None else call("where", (behind, value, here), dtype)
            end = start
        assert value is not None
        return value

    return Value(shape, dtype, at)


@rule("aten.slice_scatter")
def _slice_scatter(lowering: Lowering, node: fx.Node) -> Value:
    """A tensor with another in place of a slice."""
    shape, dtype = result(node)
    value, source = lowering.tensor(node, 0), lowering.tensor(node, 1)
    dim = lowering.argument(node, 2, "dim", 0) % len(shape)
    if lowering.argument(node, 5, "step", 1) != 1:
        raise NotLowered("aten.slice_scatter with a step")
    size, held = shape[dim], source.shape[dim]
    start = lowering.argument(node, 3, "start", 0) or 0
    start = min(max(start + size if start < 0 else start, 0), size)

    def at(places: Places) -> Expression:
        own = (*places[:dim], within(places[dim] - start, held), *places[dim + 1 :])
        number = counted(places[dim])
        inside = call("ge", (number, literal(start, "int64")), "bool")
        before = call("lt", (number, literal(start + held, "int64")), "bool")
        parts = (cast(source.at(own), dtype), cast(value.at(places), dtype))
        return call("where", (call("and", (inside, before), "bool"), *parts), dtype)

    return Value(shape, dtype, at) if held else value


@rule("aten.constant_pad_nd")
def _pad(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    value, sides = lowering.tensor(node, 0), lowering.argument(node, 1)
    fill = literal(lowering.argument(node, 2, "value", 0), dtype)
    before = [0] * (len(shape) - len(sides) // 2) + list(reversed(sides[::2]))

    def at(places: Places) -> Expression:
        own = tuple(p - b for p, b in zip(places, before, strict=True))
        return guarded(value, own, fill)

    return Value(shape, dtype, at)
