"""Operators on elements."""

from __future__ import annotations

from torch import fx

from optimizer.search.synthesizers.traced.expression import (
    FLOATS,
    Expression,
    call,
    cast,
    computed_in,
    counted,
)
from optimizer.search.synthesizers.traced.index import bounds, index
from optimizer.search.synthesizers.traced.lowering import (
    Lowering,
    NotLowered,
    Places,
    Rule,
    Value,
    broadcast,
    pointwise,
    promoted,
    result,
)
from optimizer.search.synthesizers.traced.operators.rules import RULES, rule

_SAME = ["abs", "neg", "floor", "ceil", "trunc", "round", "sign"]
_FLOATING = ["exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal"]
_FLOATING += ["tanh", "erf", "erfc", "sigmoid"]
_FLOATING += ["sin", "cos", "atan", "asin", "acos"]
_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "maximum": "max", "minimum": "min"}
_COMPARED = ["eq", "ne", "lt", "le", "gt", "ge"]
_LOGICAL = {"logical_and": "and", "logical_or": "or", "bitwise_and": "and", "bitwise_or": "or"}


def _unary(name: str, floating: bool) -> Rule:
    def rule(lowering: Lowering, node: fx.Node) -> Value:
        shape, dtype = result(node)
        value = lowering.tensor(node, 0)
        inner = computed_in(dtype if floating else value.dtype)
        return pointwise(name, [value], shape, inner, dtype)

    return rule


def _binary(name: str, *, compares: bool = False) -> Rule:
    def rule(lowering: Lowering, node: fx.Node) -> Value:
        shape, dtype = result(node)
        values = [lowering.argument(node, 0), lowering.argument(node, 1)]
        scale = lowering.argument(node, 2, "alpha", 1)
        inner = promoted(node, values)
        if inner == "bool" and not compares:
            raise NotLowered(f"{name} of booleans")
        if scale != 1:
            scaled = broadcast(values[1], shape, inner)
            values[1] = pointwise("mul", [scaled, scale], shape, inner, inner)
        return pointwise(name, values, shape, inner, dtype)

    return rule


for _name in _SAME:
    RULES[f"aten.{_name}"] = _unary(_name, floating=False)
for _name in _FLOATING:
    RULES[f"aten.{_name}"] = _unary(_name, floating=True)
for _aten, _name in _BINARY.items():
    for _form in ("", ".Tensor", ".Scalar"):
        RULES[f"aten.{_aten}{_form}"] = _binary(_name)
for _name in _COMPARED:
    for _form in (".Tensor", ".Scalar"):
        RULES[f"aten.{_name}{_form}"] = _binary(_name, compares=True)


@rule("aten.div.Tensor", "aten.div.Scalar", "prims.div")
def _div(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    values = [lowering.argument(node, 0), lowering.argument(node, 1)]
    if dtype not in FLOATS:
        raise NotLowered("a division of integers")
    return pointwise("div", values, shape, computed_in(dtype), dtype)


@rule("aten.logical_and", "aten.logical_or", "aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor")
def _logical(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    if dtype != "bool":
        raise NotLowered("bits of integers")
    name = _LOGICAL[str(node.target).removeprefix("aten.").partition(".")[0]]
    values = [lowering.argument(node, 0), lowering.argument(node, 1)]
    return pointwise(name, values, shape, "bool", dtype)


@rule("aten.logical_not", "aten.bitwise_not")
def _not(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    if dtype != "bool":
        raise NotLowered("bits of integers")
    return pointwise("not", [lowering.argument(node, 0)], shape, "bool", dtype)


@rule("aten.isnan", "aten.isinf")
def _tested(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    value = lowering.tensor(node, 0)
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    return pointwise(name, [value], shape, computed_in(value.dtype), dtype)


@rule("aten.where.self")
def _where(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    condition = broadcast(lowering.argument(node, 0), shape, "bool")
    first, second = (broadcast(lowering.argument(node, n), shape, dtype) for n in (1, 2))

    def at(places: Places) -> Expression:
        parts = (condition.at(places), first.at(places), second.at(places))
        return call("where", parts, dtype)

    return Value(shape, dtype, at)


@rule("aten.relu")
def _relu(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    return pointwise("max", [lowering.argument(node, 0), 0], shape, computed_in(dtype), dtype)


@rule("aten.clamp", "aten.clamp.Tensor", "aten.clamp_min", "aten.clamp_max")
def _clamp(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    inner = computed_in(dtype)
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    names = {"clamp_min": ("max",), "clamp_max": ("min",)}.get(name, ("max", "min"))
    value = lowering.tensor(node, 0)
    for number, bound in enumerate(names, 1):
        limit = lowering.argument(node, number, {"max": "min", "min": "max"}[bound])
        if limit is not None:
            value = pointwise(bound, [value, limit], shape, inner, dtype)
    return broadcast(value, shape, dtype)


@rule("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def _pow(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    base, power = lowering.argument(node, 0), lowering.argument(node, 1)
    inner = computed_in(dtype)
    if dtype not in FLOATS:
        raise NotLowered("a power of integers")
    if power == 0.5:
        return pointwise("sqrt", [base], shape, inner, dtype)
    if power in (2, 3, 4):
        parts = broadcast(base, shape, inner)
        value = parts
        for _ in range(int(power) - 1):
            value = pointwise("mul", [value, parts], shape, inner, dtype)
        return value
    return pointwise("pow", [base, power], shape, inner, dtype)


@rule("aten.fmod.Scalar", "aten.remainder.Scalar")
def _remainder(lowering: Lowering, node: fx.Node) -> Value:
    """Of places alone."""
    shape, dtype = result(node)
    value, by = lowering.tensor(node, 0), lowering.argument(node, 1)
    if dtype != "int64" or not isinstance(by, int) or by <= 0:
        raise NotLowered("a remainder of numbers")

    def at(places: Places) -> Expression:
        number = value.at(places)
        if number.name != "counted" or bounds(number.indices[0])[0] < 0:
            raise NotLowered("a remainder of numbers")
        return counted(number.indices[0] % by)

    at(tuple(map(index, lowering.variables(shape))))  # refused here, where torch can take it over
    return Value(shape, dtype, at)


@rule("aten._to_copy", "prims.convert_element_type", "aten.clone", "aten.alias", "aten.detach")
def _copied(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    return broadcast(lowering.argument(node, 0), shape, dtype)


@rule("aten.full", "aten.full_like", "aten.scalar_tensor", "aten.zeros_like", "aten.ones_like")
def _full(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    name = str(node.target).partition(".")[2].removesuffix(".default")
    if name in ("full", "full_like"):
        number = lowering.argument(node, 1)
    elif name == "scalar_tensor":
        number = lowering.argument(node, 0)
    else:
        number = int(name.startswith("ones"))
    return broadcast(number, shape, dtype)


@rule("aten.arange.start_step", "prims.iota")
def _counting(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    if str(node.target).startswith("prims"):
        start, step = node.kwargs.get("start", 0), node.kwargs.get("step", 1)
    else:
        start, step = lowering.argument(node, 0), lowering.argument(node, 2, "step", 1)
    if not isinstance(start, int) or not isinstance(step, int):
        raise NotLowered("a range of fractions")
    return Value(shape, dtype, lambda p: cast(counted(p[0] * step + start), dtype))
