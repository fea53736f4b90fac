"""How Triton writes the operators of expressions.

What tl has no function for is made of others, so that the same text runs on NVIDIA and AMD and in
the interpreter. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optimizer.search.synthesizers.traced.expression import FLOATS, Expression

TYPES: Mapping[str, str] = {
    **{name: f"tl.{name}" for name in ("float32", "float64", "float16", "bfloat16")},
    **{name: f"tl.{name}" for name in ("int8", "uint8", "int16", "int32", "int64")},
    "bool": "tl.int1",
}
INFIX: Mapping[str, str] = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "and": "&",
    "or": "|",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "xor": "^",
    "bits_and": "&",
    "bits_or": "|",
    "bits_xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
}
_OWN = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "erf", "floor", "ceil", "abs")
# Functions that a kernel file defines for itself, each with those that it calls.
HELPERS: Mapping[str, str] = {
    "traced_max": """\
@triton.jit
def traced_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "traced_min": """\
@triton.jit
def traced_min(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "traced_larger": """\
@triton.jit
def traced_larger(a, b):
    return tl.where(a > b, a, b)
""",
    "traced_smaller": """\
@triton.jit
def traced_smaller(a, b):
    return tl.where(a < b, a, b)
""",
    "traced_times": """\
@triton.jit
def traced_times(a, b):
    return a * b
""",
    # The polynomial is that of the Cephes library, tanhf.c.
    "traced_tanh": """\
@triton.jit
def traced_tanh(x):
    a = tl.abs(x)
    z = x * x
    p = -5.70498872745e-3 * z + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    large = 1.0 - 2.0 / (tl.exp(a + a) + 1.0)
    return tl.where(a < 0.625, p * z * x + x, tl.where(x < 0, -large, large))
""",
    "traced_tanh64": """\
@triton.jit
def traced_tanh64(x):
    e = traced_expm1(2.0 * tl.abs(x))
    large = tl.where(tl.abs(x) > 20.0, 1.0, e / (e + 2.0))
    return tl.where(x < 0, -large, large)
""",
    # Kahan: what the rounding of 1 + x, or of exp(x), takes away is put back by a quotient.
    "traced_log1p": """\
@triton.jit
def traced_log1p(x):
    u = 1.0 + x
    plain = (u == 1.0) | (u == float("inf"))
    near = tl.log(u) * (x / tl.where(plain, 1.0, u - 1.0))
    return tl.where(plain, x, near)
""",
    "traced_expm1": """\
@triton.jit
def traced_expm1(x):
    u = tl.exp(x)
    d = u - 1.0
    plain = (d == 0.0) | (u == float("inf"))
    far = tl.abs(x) > 0.5
    near = d * (x / tl.where(plain | far | (u <= 0.0), 1.0, tl.log(u)))
    return tl.where(plain, tl.where(d == 0.0, x, u), tl.where(far, d, near))
""",
    "traced_round": """\
@triton.jit
def traced_round(x, magic: tl.constexpr):
    return tl.where(tl.abs(x) < magic / 4, (x + magic) - magic, x)
""",
    "traced_pow": """\
@triton.jit
def traced_pow(x, y: tl.constexpr):
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    whole: tl.constexpr = y == y // 1
    odd: tl.constexpr = y % 2 == 1
    if odd:
        size = tl.where(x < 0, -size, size)
    if not whole:
        size = tl.where(x < 0, float("nan"), size)
    return size
""",
    "traced_sinh": """\
@triton.jit
def traced_sinh(x):
    e = traced_expm1(tl.abs(x))
    size = tl.where(e == float("inf"), e, 0.5 * (e + e / (e + 1.0)))
    return tl.where(x < 0, -size, size)
""",
    "traced_asinh": """\
@triton.jit
def traced_asinh(x):
    a = tl.abs(x)
    small = tl.where(a > 1.0e4, 1.0, a)
    near = traced_log1p(small + small * small / (1.0 + tl.sqrt(small * small + 1.0)))
    far = tl.log(tl.where(a > 1.0e4, a, 1.0)) + 0.6931471805599453
    size = tl.where(a > 1.0e4, far, near)
    return tl.where(x < 0, -size, tl.where(x != x, x, size))
""",
    "traced_acosh": """\
@triton.jit
def traced_acosh(x):
    t = tl.where(x > 1.0e4, 1.0, x - 1.0)
    near = traced_log1p(t + tl.sqrt(t * (t + 2.0)))
    far = tl.log(tl.where(x > 1.0e4, x, 1.0)) + 0.6931471805599453
    return tl.where(x > 1.0e4, far, near)
""",
    "traced_atanh": """\
@triton.jit
def traced_atanh(x):
    a = tl.abs(x)
    size = 0.5 * traced_log1p(2.0 * a / (1.0 - a))
    return tl.where(x < 0, -size, size)
""",
    # The polynomial is that of the Cephes library, atanf.c, which is for float32.
    "traced_atan": """\
@triton.jit
def traced_atan(x):
    a = tl.abs(x)
    large, middle = a > 2.414213562373095, a > 0.4142135623730950
    u = tl.where(large, -1.0 / tl.where(large, a, 1.0), tl.where(middle, (a - 1.0) / (a + 1.0), a))
    base = tl.where(large, 1.5707963267948966, tl.where(middle, 0.7853981633974483, 0.0))
    z = u * u
    p = 8.05374449538e-2 * z - 1.38776856032e-1
    p = p * z + 1.99777106478e-1
    p = p * z - 3.33329491539e-1
    size = base + (p * z * u + u)
    return tl.where(x < 0, -size, size)
""",
    "traced_asin": """\
@triton.jit
def traced_asin(x):
    a = tl.abs(x)
    half = traced_atan(tl.sqrt((1.0 - a) / (1.0 + a)))
    inner = tl.where(a < 0.5, x, 0.0)
    near = traced_atan(inner / tl.sqrt((1.0 - inner) * (1.0 + inner)))
    far = 1.5707963267948966 - 2.0 * half
    return tl.where(a < 0.5, near, tl.where(x < 0, -far, far))
""",
}
NEEDS: Mapping[str, tuple[str, ...]] = {
    "traced_tanh64": ("traced_expm1",),
    "traced_sinh": ("traced_expm1",),
    "traced_asinh": ("traced_log1p",),
    "traced_acosh": ("traced_log1p",),
    "traced_atanh": ("traced_log1p",),
    "traced_asin": ("traced_atan",),
}
_CALLED: Mapping[str, str] = {
    "max": "traced_max",
    "min": "traced_min",
    "tanh": "traced_tanh",
    "log1p": "traced_log1p",
    "expm1": "traced_expm1",
    **{name: f"traced_{name}" for name in ("sinh", "asinh", "acosh", "atanh", "atan", "asin")},
}
# Operators that have no form here: they stay with torch.
UNWRITTEN = frozenset(("lgamma", "digamma", "erfinv", "fmod", "quotient", "atan2", "hypot", "acos"))


class NotWritten(Exception):
    """What has no form in Triton. The message names it."""


def written(of: Expression, args: Sequence[str]) -> tuple[str, str]:
    """The text of a call, and the helper that it needs, empty where it needs none. Raises
    NotWritten."""
    name, kind = of.name, TYPES[of.dtype]
    if name in INFIX:
        return f"{args[0]} {INFIX[name]} {args[1]}", ""
    if name in ("max", "min") and of.dtype not in FLOATS:
        return f"tl.{name}imum({args[0]}, {args[1]})", ""
    if name == "tanh" and of.dtype == "float64":
        return f"traced_tanh64({args[0]})", "traced_tanh64"
    if name in _CALLED:
        return f"{_CALLED[name]}({', '.join(args)})", _CALLED[name]
    if name in _OWN:
        return f"tl.{name}({args[0]})", ""
    if name == "round":
        magic = 12582912.0 if of.dtype == "float32" else 6755399441055744.0
        return f"traced_round({args[0]}, {magic})", "traced_round"
    if name == "pow":
        return _power(of, args), "traced_pow"
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


def _power(of: Expression, args: Sequence[str]) -> str:
    exponent = of.args[1]
    if exponent.name != "literal" or of.dtype not in FLOATS:
        raise NotWritten("a power whose exponent is no number")
    return f"traced_pow({args[0]}, {float(exponent.value)!r})"


def number(value: float | str, dtype: str) -> str:
    """A number as Triton writes it beside a tensor."""
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
    every = {name for helper in used for name in (helper, *NEEDS.get(helper, ()))}
    return "\n\n".join(HELPERS[name] for name in HELPERS if name in every)
