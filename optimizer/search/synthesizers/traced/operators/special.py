"""Special functions and what floats are made of."""

from __future__ import annotations

from torch import fx

from optimizer.search.synthesizers.traced.expression import Expression, call, cast, computed_in
from optimizer.search.synthesizers.traced.lowering import (
    Lowering,
    Places,
    Value,
    pointwise,
    result,
)
from optimizer.search.synthesizers.traced.operators.rules import rule

_POLYNOMIALS = {
    **{f"special_chebyshev_polynomial_{kind}": f"chebyshev_{kind}" for kind in "tuvw"},
    "special_hermite_polynomial_h": "hermite_h",
    "special_hermite_polynomial_he": "hermite_he",
    "special_laguerre_polynomial_l": "laguerre_l",
    "special_legendre_polynomial_p": "legendre_p",
}
_FORMS = ("", ".x_scalar", ".n_scalar")


@rule(*(f"aten.{name}{form}" for name in _POLYNOMIALS for form in _FORMS))
def _polynomial(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    values = [lowering.argument(node, 0), lowering.argument(node, 1)]
    return pointwise(_POLYNOMIALS[name], values, shape, computed_in(dtype), dtype)


@rule("aten.special_erfcx", "aten.special_spherical_bessel_j0")
def _special(lowering: Lowering, node: fx.Node) -> Value:
    shape, dtype = result(node)
    name = "erfcx" if "erfcx" in str(node.target) else "bessel"
    return pointwise(name, [lowering.argument(node, 0)], shape, computed_in(dtype), dtype)


@rule("aten.frexp.Tensor")
def _parts_of_float(lowering: Lowering, node: fx.Node) -> tuple[Value, Value]:
    value = lowering.tensor(node, 0)
    inner = computed_in(value.dtype)
    mantissa = pointwise("mantissa", [value], value.shape, inner, value.dtype)

    def exponent(places: Places) -> Expression:
        return call("exponent", (cast(value.at(places), inner),), "int32")

    return mantissa, Value(value.shape, "int32", exponent)
