"""Writes the operators of expressions in Triton.

Functions that tl lacks are composed of others, or taken from the chip's own library if that is much
faster, so that the same source runs on NVIDIA, AMD and in the interpreter. Standard library only.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optimizer.search.synthesizers.traced.expression import (
    FLOATS,
    INFIX,
    ElementExpression,
    NotWritten,
)

TYPES: Mapping[str, str] = {
    **{name: f"tl.{name}" for name in ("float32", "float64", "float16", "bfloat16")},
    **{name: f"tl.{name}" for name in ("int8", "uint8", "int16", "int32", "int64")},
    "bool": "tl.int1",
}
_INFIX = {**INFIX, "and": "&", "or": "|", "xor": "^"}
_OWN = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "erf", "floor", "ceil", "abs")
_HELPERS: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("triton_helpers.toml").read_text(encoding="utf-8")
)
_CALLED: Mapping[str, str] = {
    "max": "traced_max",
    "min": "traced_min",
    "tanh": "traced_tanh",
    "log1p": "traced_log1p",
    "expm1": "traced_expm1",
    **{name: f"traced_{name}" for name in ("sinh", "asinh", "acosh", "atanh", "atan", "asin")},
    "acos": "traced_acos",
}
# A helper computes these in float64 for all dtypes.
_PRECISE = ("lgamma", "digamma", "erfinv", "fmod", "hypot")


def written(of: ElementExpression, args: Sequence[str]) -> tuple[str, str]:
    """The source of a call, and the name of the helper that it needs, or "". Raises NotWritten."""
    name, kind = of.name, TYPES[of.dtype]
    if name in _INFIX:
        return f"{args[0]} {_INFIX[name]} {args[1]}", ""
    if name in ("max", "min") and of.dtype not in FLOATS:
        return f"tl.{name}imum({args[0]}, {args[1]})", ""
    if name in _OWN:
        return f"tl.{name}({args[0]})", ""
    helped = _by_helper(of, args)
    if helped is not None:
        return helped
    forms = {
        "cast": f"({args[0]}).to({kind})",
        "neg": f"-{args[0]}",
        "not": f"{args[0]} == 0",
        "square": f"{args[0]} * {args[0]}",
        "reciprocal": f"1.0 / {args[0]}",
        "sigmoid": f"1.0 / (1.0 + tl.exp(-{args[0]}))",
        "trunc": f"tl.where({args[0]} < 0, tl.ceil({args[0]}), tl.floor({args[0]}))",
        "sign": f"({args[0]} > 0).to({kind}) - ({args[0]} < 0).to({kind})",
        "isnan": f"{args[0]} != {args[0]}",
        "isinf": f'tl.abs({args[0]}) == float("inf")',
        "erfc": f"1.0 - tl.erf({args[0]})",
        "cosh": f"0.5 * (tl.exp({args[0]}) + tl.exp(-{args[0]}))",
        "tan": f"tl.sin({args[0]}) / tl.cos({args[0]})",
        "log10": f"tl.log2({args[0]}) * 0.30102999566398120",
        "bits_not": f"~{args[0]}",
        "signbit": f"({args[0]} < 0) | (({args[0]} == 0) & (1.0 / {args[0]} < 0))",
    }
    if name == "where":
        return f"tl.where({', '.join(args)})", ""
    if name not in forms:
        raise NotWritten(f"the operator {name}")
    return forms[name], ""


def _by_helper(of: ElementExpression, args: Sequence[str]) -> tuple[str, str] | None:
    """As `written`, for operators that a helper function computes."""
    name, kind = of.name, TYPES[of.dtype]
    if name == "tanh" and of.dtype == "float64":
        return f"traced_tanh64({args[0]})", "traced_tanh64"
    if name in _CALLED:
        return f"{_CALLED[name]}({', '.join(args)})", _CALLED[name]
    if name == "round":
        magic = 12582912.0 if of.dtype == "float32" else 6755399441055744.0
        return f"traced_round({args[0]}, {magic})", "traced_round"
    if name == "pow":
        return _power(of, args)
    if name in ("fmod", "quotient") and of.dtype not in FLOATS:
        helper = "traced_rest" if name == "fmod" else "traced_quotient"
        return f"{helper}(tl.cast({args[0]}, {kind}), tl.cast({args[1]}, {kind}))", helper
    if name == "erfinv" and of.dtype == "float64":
        raise NotWritten("the inverse error function in float64")
    if name in _PRECISE:
        return f"tl.cast(traced_{name}({', '.join(args)}), {kind})", f"traced_{name}"
    if name == "atan2":
        cast = ", ".join(f"tl.cast({arg}, {kind})" for arg in args)
        return f"traced_atan2({cast})", "traced_atan2"
    return None


def _power(of: ElementExpression, args: Sequence[str]) -> tuple[str, str]:
    if of.dtype not in FLOATS:
        raise NotWritten("a power of integers")
    exponent = of.args[1]
    if exponent.name == "literal":
        return f"traced_pow({args[0]}, {float(exponent.value)!r})", "traced_pow"
    return f"tl.cast(traced_power({', '.join(args)}), {TYPES[of.dtype]})", "traced_power"


def number(value: float | str, dtype: str) -> str:
    """A number as an operand next to a tensor."""
    if dtype == "bool":
        return "True" if value else "False"
    if dtype not in FLOATS:
        return str(int(value))
    real = float(value)
    if real != real or real in (float("inf"), float("-inf")):
        return f'float("{real}")'
    return repr(real)


def helpers(used: Sequence[str]) -> str:
    """The definitions of these helpers and of those that they call."""
    every = {name for helper in used for name in (helper, *_HELPERS[helper].get("needs", ()))}
    return "\n\n".join(row["text"] for name, row in _HELPERS.items() if name in every)
