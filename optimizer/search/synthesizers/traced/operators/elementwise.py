"""Elementwise operators."""

from __future__ import annotations

from typing import Any

from torch import fx

from optimizer.search.synthesizers.traced.expression import (
    FLOATS,
    ElementExpression,
    call,
    cast,
    computed_in,
    counted,
)
from optimizer.search.synthesizers.traced.index import bounds, index
from optimizer.search.synthesizers.traced.lowering import (
    RULES,
    Lowering,
    NotLowered,
    OperatorCall,
    Places,
    Rule,
    Value,
    broadcast,
    pointwise,
    promoted,
    rule,
)

_SAME = ["abs", "neg", "floor", "ceil", "trunc", "round", "sign"]
_FLOATING = ["exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal"]
_FLOATING += ["tanh", "erf", "erfc", "sigmoid"]
_FLOATING += ["sin", "cos", "tan", "atan", "asin", "acos", "log10"]
_FLOATING += ["sinh", "cosh", "asinh", "acosh", "atanh", "lgamma", "digamma", "erfinv"]
_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "maximum": "max", "minimum": "min"}
_OF_BOOLEANS = {"add": "or", "mul": "and", "max": "or", "min": "and"}
_COMPARED = ["eq", "ne", "lt", "le", "gt", "ge"]
_LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor"}
_BITS = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
_SHIFTS = {
    **dict.fromkeys(("bitwise_left_shift.Tensor_Scalar", "__lshift__.Scalar"), "shift_left"),
    **dict.fromkeys(("bitwise_right_shift.Tensor_Scalar", "__rshift__.Scalar"), "shift_right"),
}


def _unary(name: str, floating: bool) -> Rule:
    def rule(op: OperatorCall) -> Value:
        value = op.tensor(0)
        inner = computed_in(op.dtype if floating else value.dtype)
        return pointwise(name, [value], op.shape, inner, op.dtype)

    return rule


def _binary(name: str, *, compares: bool = False) -> Rule:
    def rule(op: OperatorCall) -> Value:
        values = [op.argument(0), op.argument(1)]
        scale = op.argument(2, "alpha", 1)
        inner = promoted(op.node, values)
        if inner == "bool" and not compares:
            if scale != 1 or name not in _OF_BOOLEANS:
                raise NotLowered(f"{name} of booleans")
            return pointwise(_OF_BOOLEANS[name], values, op.shape, inner, op.dtype)
        if scale != 1:
            scaled = broadcast(values[1], op.shape, inner)
            values[1] = pointwise("mul", [scaled, scale], op.shape, inner, inner)
        return pointwise(name, values, op.shape, inner, op.dtype)

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
def _div(op: OperatorCall) -> Value:
    values = [op.argument(0), op.argument(1)]
    if op.dtype not in FLOATS:
        raise NotLowered("a division of integers")
    return pointwise("div", values, op.shape, computed_in(op.dtype), op.dtype)


def _short(node: fx.Node) -> str:
    """The operator's name without overload and without the underscore of in-place operators."""
    return str(node.target).removeprefix("aten.").partition(".")[0].removesuffix("_")


@rule("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _rounded_quotient(op: OperatorCall) -> Value:
    values = [op.argument(0), op.argument(1)]
    mode, inner = op.argument(2, "rounding_mode"), computed_in(op.dtype)
    if mode is None:
        return pointwise("div", values, op.shape, inner, op.dtype)
    if inner in FLOATS and mode == "trunc":
        return pointwise("trunc", [_of(inner, op.shape, "div", *values)], op.shape, inner, op.dtype)
    rest = _of(inner, op.shape, "fmod", *values)
    if inner in FLOATS:
        # As torch does: subtract the remainder first, so that the quotient is nearly whole.
        whole = _of(inner, op.shape, "div", _of(inner, op.shape, "sub", values[0], rest), values[1])
        whole = _of(inner, op.shape, "round", whole)
    else:
        whole = _of(inner, op.shape, "quotient", *values)
    if mode == "floor":
        apart = _opposite(rest, values[1], op.shape, inner)
        whole = _of(inner, op.shape, "sub", whole, broadcast(apart, op.shape, inner))
    if inner not in FLOATS:
        return broadcast(whole, op.shape, op.dtype)
    plain = _of(inner, op.shape, "div", *values)  # for division by zero and for infinities
    by_zero = pointwise("eq", [values[1], 0], op.shape, inner, "bool")
    return _chosen(by_zero, plain, whole, op.shape, op.dtype)


@rule(
    *("aten.fmod.Tensor", "aten.fmod.Scalar"),
    *("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor"),
)
def _rest(op: OperatorCall) -> Value:
    value, by = op.argument(0), op.argument(1)
    counting = _counted_rest(op.lowering, value, by, op.shape, op.dtype)
    if counting is not None:
        return counting
    inner = computed_in(op.dtype)
    rest = _of(inner, op.shape, "fmod", value, by)
    if _short(op.node) == "fmod":
        return broadcast(rest, op.shape, op.dtype)
    apart = _opposite(rest, by, op.shape, inner)
    return _chosen(apart, _of(inner, op.shape, "add", rest, by), rest, op.shape, op.dtype)


def _counted_rest(
    lowering: Lowering, value: Value | float, by: Value | float, shape: Any, dtype: str
) -> Value | None:
    """The remainder of an index, as an index; None for other numbers."""
    if not isinstance(value, Value) or dtype != "int64" or not isinstance(by, int) or by <= 0:
        return None
    number = value.at(tuple(map(index, lowering.variables(shape))))
    if number.name != "counted" or bounds(number.indices[0])[0] < 0:
        return None
    return Value(shape, dtype, lambda p: counted(value.at(p).indices[0] % by))


def _of(inner: str, shape: Any, name: str, *values: Value | float) -> Value:
    """An elementwise operator whose result has the dtype that it is computed in."""
    return pointwise(name, values, shape, inner, inner)


def _opposite(rest: Value, by: Value | float, shape: Any, inner: str) -> Value:
    """Whether the remainder is not zero and its sign differs from the divisor's."""
    negative = [pointwise("lt", [v, 0], shape, inner, "bool") for v in (rest, by)]
    signs = pointwise("xor", negative, shape, "bool", "bool")
    left = pointwise("ne", [rest, 0], shape, inner, "bool")
    return pointwise("and", [left, signs], shape, "bool", "bool")


def _chosen(condition: Value, first: Value, second: Value, shape: Any, dtype: str) -> Value:
    """Elements of `first` where the condition holds, else of `second`."""
    parts = [broadcast(v, shape, dtype) for v in (first, second)]
    return Value(
        shape,
        dtype,
        lambda p: call("where", (condition.at(p), *(part.at(p) for part in parts)), dtype),
    )


@rule("aten.logical_and", "aten.logical_or", "aten.logical_xor")
def _logical(op: OperatorCall) -> Value:
    values = [op.argument(0), op.argument(1)]
    return pointwise(_LOGICAL[_short(op.node)], values, op.shape, "bool", op.dtype)


@rule(*(f"aten.{name}.{form}" for name in _BITS for form in ("Tensor", "Scalar")))
def _bitwise(op: OperatorCall) -> Value:
    name = _BITS[_short(op.node)] if op.dtype == "bool" else f"bits_{_BITS[_short(op.node)]}"
    values = [op.argument(0), op.argument(1)]
    return pointwise(name, values, op.shape, op.dtype, op.dtype)


@rule(*(f"aten.{name}" for name in _SHIFTS))
def _shifted(op: OperatorCall) -> Value:
    by = op.argument(1)
    if not isinstance(by, int) or not 0 <= by < 8:
        raise NotLowered("a shift by places that are not known")
    values = [op.argument(0), by]
    return pointwise(
        _SHIFTS[str(op.node.target).removeprefix("aten.")], values, op.shape, op.dtype, op.dtype
    )


@rule("aten.logical_not", "aten.bitwise_not")
def _not(op: OperatorCall) -> Value:
    name = "not" if op.dtype == "bool" else "bits_not"
    return pointwise(name, [op.argument(0)], op.shape, op.dtype, op.dtype)


@rule("aten.isnan", "aten.isinf", "aten.signbit")
def _tested(op: OperatorCall) -> Value:
    value = op.tensor(0)
    if value.dtype not in FLOATS:
        if _short(op.node) != "signbit":
            return broadcast(False, op.shape, op.dtype)
        return pointwise("lt", [value, 0], op.shape, value.dtype, op.dtype)
    return pointwise(_short(op.node), [value], op.shape, computed_in(value.dtype), op.dtype)


@rule("aten.round.decimals")
def _to_decimals(op: OperatorCall) -> Value:
    value, inner = op.tensor(0), computed_in(op.dtype)
    decimals = op.argument(1, "decimals", 0)
    ways = ("mul", "div") if decimals > 0 else ("div", "mul")
    scale = 10.0 ** abs(decimals)
    whole = _of(inner, op.shape, "round", _of(inner, op.shape, ways[0], value, scale))
    return pointwise(ways[1], [whole, scale], op.shape, inner, op.dtype)


@rule("aten.fmax", "aten.fmin")
def _numbers_first(op: OperatorCall) -> Value:
    """The larger or smaller of two numbers; if one of them is NaN, the other one."""
    inner = computed_in(op.dtype)
    first, second = (broadcast(op.argument(n), op.shape, inner) for n in (0, 1))
    best = _of(inner, op.shape, _short(op.node).removeprefix("f"), first, second)
    if inner not in FLOATS:
        return broadcast(best, op.shape, op.dtype)
    without = [pointwise("isnan", [v], op.shape, inner, "bool") for v in (first, second)]
    return _chosen(
        without[0], second, _chosen(without[1], first, best, op.shape, inner), op.shape, op.dtype
    )


@rule("aten.atan2", "aten.hypot")
def _of_two(op: OperatorCall) -> Value:
    values = [op.argument(0), op.argument(1)]
    return pointwise(_short(op.node), values, op.shape, computed_in(op.dtype), op.dtype)


@rule("aten.copysign.Tensor", "aten.copysign.Scalar")
def _signed(op: OperatorCall) -> Value:
    inner = computed_in(op.dtype)
    size = _of(inner, op.shape, "abs", op.argument(0))
    negative = pointwise("signbit", [op.argument(1)], op.shape, inner, "bool")
    return _chosen(negative, _of(inner, op.shape, "neg", size), size, op.shape, op.dtype)


@rule("aten.where.self")
def _where(op: OperatorCall) -> Value:
    condition = broadcast(op.argument(0), op.shape, "bool")
    first, second = (broadcast(op.argument(n), op.shape, op.dtype) for n in (1, 2))

    def at(places: Places) -> ElementExpression:
        parts = (condition.at(places), first.at(places), second.at(places))
        return call("where", parts, op.dtype)

    return op.result(at)


@rule("aten.relu")
def _relu(op: OperatorCall) -> Value:
    return pointwise("max", [op.argument(0), 0], op.shape, computed_in(op.dtype), op.dtype)


@rule("aten.clamp", "aten.clamp.Tensor", "aten.clamp_min", "aten.clamp_max")
@rule("aten.clamp_min.Tensor", "aten.clamp_max.Tensor")
def _clamp(op: OperatorCall) -> Value:
    inner = computed_in(op.dtype)
    name = str(op.node.target).removeprefix("aten.").partition(".")[0]
    names = {"clamp_min": ("max",), "clamp_max": ("min",)}.get(name, ("max", "min"))
    value = op.tensor(0)
    for number, bound in enumerate(names, 1):
        limit = op.argument(number, {"max": "min", "min": "max"}[bound])
        if limit is not None:
            value = pointwise(bound, [value, limit], op.shape, inner, op.dtype)
    return broadcast(value, op.shape, op.dtype)


@rule("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def _pow(op: OperatorCall) -> Value:
    base, power = op.argument(0), op.argument(1)
    inner = computed_in(op.dtype)
    if op.dtype not in FLOATS:
        raise NotLowered("a power of integers")
    if power == 0.5:
        return pointwise("sqrt", [base], op.shape, inner, op.dtype)
    if power in (2, 3, 4):
        parts = broadcast(base, op.shape, inner)
        value = parts
        for _ in range(int(power) - 1):
            value = pointwise("mul", [value, parts], op.shape, inner, op.dtype)
        return value
    return pointwise("pow", [base, power], op.shape, inner, op.dtype)


@rule("aten._to_copy", "prims.convert_element_type", "aten.clone", "aten.alias", "aten.detach")
@rule("aten.lift_fresh_copy", "aten.lift_fresh")
def _copied(op: OperatorCall) -> Value:
    return broadcast(op.argument(0), op.shape, op.dtype)


@rule("aten.copy")
def _copied_over(op: OperatorCall) -> Value:
    """The second argument with the shape and dtype of the first, whose values are overwritten."""
    return broadcast(op.argument(1), op.shape, op.dtype)


@rule("aten.empty_permuted", "aten.empty.memory_format", "aten.empty_like", "aten.new_empty")
def _empty(op: OperatorCall) -> Value:
    """Memory that the graph writes before it reads it: any value will do."""
    return broadcast(0, op.shape, op.dtype)


@rule("aten.full", "aten.full_like", "aten.scalar_tensor", "aten.zeros_like", "aten.ones_like")
def _full(op: OperatorCall) -> Value:
    name = str(op.node.target).partition(".")[2].removesuffix(".default")
    if name in ("full", "full_like"):
        number = op.argument(1)
    elif name == "scalar_tensor":
        number = op.argument(0)
    else:
        number = int(name.startswith("ones"))
    return broadcast(number, op.shape, op.dtype)


@rule("aten.arange.start_step", "prims.iota")
def _counting(op: OperatorCall) -> Value:
    if str(op.node.target).startswith("prims"):
        start, step = op.node.kwargs.get("start", 0), op.node.kwargs.get("step", 1)
    else:
        start, step = op.argument(0), op.argument(2, "step", 1)
    if not isinstance(start, int) or not isinstance(step, int):
        raise NotLowered("a range of fractions")
    return op.result(lambda p: cast(counted(p[0] * step + start), op.dtype))


# -- special functions, and the parts of floats

_POLYNOMIALS = {
    **{f"special_chebyshev_polynomial_{kind}": f"chebyshev_{kind}" for kind in "tuvw"},
    "special_hermite_polynomial_h": "hermite_h",
    "special_hermite_polynomial_he": "hermite_he",
    "special_laguerre_polynomial_l": "laguerre_l",
    "special_legendre_polynomial_p": "legendre_p",
}
_FORMS = ("", ".x_scalar", ".n_scalar")


@rule(*(f"aten.{name}{form}" for name in _POLYNOMIALS for form in _FORMS))
def _polynomial(op: OperatorCall) -> Value:
    name = str(op.node.target).removeprefix("aten.").partition(".")[0]
    values = [op.argument(0), op.argument(1)]
    return pointwise(_POLYNOMIALS[name], values, op.shape, computed_in(op.dtype), op.dtype)


@rule("aten.special_erfcx", "aten.special_spherical_bessel_j0")
def _special(op: OperatorCall) -> Value:
    name = "erfcx" if "erfcx" in str(op.node.target) else "bessel"
    return pointwise(name, [op.argument(0)], op.shape, computed_in(op.dtype), op.dtype)


@rule("aten.frexp.Tensor")
def _parts_of_float(op: OperatorCall) -> tuple[Value, Value]:
    value = op.tensor(0)
    inner = computed_in(value.dtype)
    mantissa = pointwise("mantissa", [value], value.shape, inner, value.dtype)

    def exponent(places: Places) -> ElementExpression:
        return call("exponent", (cast(value.at(places), inner),), "int32")

    return mantissa, Value(value.shape, "int32", exponent)
