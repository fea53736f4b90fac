"""How Triton writes the operators of expressions.

What tl has no function for is made of others, or is the chip's own library's where that is much
faster, so that the same text runs on NVIDIA and AMD and in the interpreter. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optimizer.search.synthesizers.traced.expression import FLOATS, Expression
from optimizer.search.synthesizers.traced.program import NotWritten

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
    "traced_plus": """\
@triton.jit
def traced_plus(a, b):
    return a + b
""",
    "traced_times": """\
@triton.jit
def traced_times(a, b):
    return a * b
""",
    # Sums of exponentials about their maxima; an infinite one is not taken from itself.
    "traced_powers": """\
@triton.jit
def traced_powers(a, x, b, y):
    top = traced_max(a, b)
    about = tl.where(tl.abs(top) == float("inf"), 0.0, top)
    return top, x * tl.exp(a - about) + y * tl.exp(b - about)
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
    # What a chip's own library computes best; it is not there in the interpreter.
    "traced_library": """\
from triton.language.extra import libdevice  # noqa: E402

TRACED_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
""",
    # Kahan: what the rounding of 1 + x, or of exp(x), takes away is put back by a quotient.
    "traced_log1p": """\
@triton.jit
def traced_log1p(x):
    if TRACED_INTERPRETED:
        u = 1.0 + x
        plain = (u == 1.0) | (u == float("inf"))
        near = tl.log(u) * (x / tl.where(plain, 1.0, u - 1.0))
        value = tl.where(plain, x, near)
    else:
        value = libdevice.log1p(x)
    return value
""",
    "traced_expm1": """\
@triton.jit
def traced_expm1(x):
    if TRACED_INTERPRETED:
        u = tl.exp(x)
        d = u - 1.0
        plain = (d == 0.0) | (u == float("inf"))
        far = tl.abs(x) > 0.5
        near = d * (x / tl.where(plain | far | (u <= 0.0), 1.0, tl.log(u)))
        value = tl.where(plain, tl.where(d == 0.0, x, u), tl.where(far, d, near))
    else:
        value = libdevice.expm1(x)
    return value
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
    # The polynomials are those of the Cephes library, atan.c for float64 and atanf.c.
    "traced_atan": """\
@triton.jit
def traced_atan(x):
    a = tl.abs(x)
    large, middle = a > 2.414213562373095, a > 0.4142135623730950
    u = tl.where(large, -1.0 / tl.where(large, a, 1.0), tl.where(middle, (a - 1.0) / (a + 1.0), a))
    base = large.to(x.dtype) * 1.5707963267948966
    base += (middle & (a <= 2.414213562373095)).to(x.dtype) * 0.7853981633974483
    z = u * u
    if x.dtype == tl.float64:
        p = -8.750608600031904122785e-1 * z - 1.615753718733365076637e1
        p = p * z - 7.500855792314704667340e1
        p = p * z - 1.228866684490136173410e2
        p = p * z - 6.485021904942025371773e1
        q = z + 2.485846490142306297962e1
        q = q * z + 1.650270098316988542046e2
        q = q * z + 4.328810604912902668951e2
        q = q * z + 4.853903996359136964868e2
        p = p / (q * z + 1.945506571482613964425e2)
    else:
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
    # The functions below are computed in float64, and their callers take what they need of it.
    "traced_power": """\
@triton.jit
def traced_power(a, b):
    x, y = tl.broadcast(tl.cast(a, tl.float64), tl.cast(b, tl.float64))
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    size = tl.where((tl.abs(x) == 1.0) & (tl.abs(y) == float("inf")), 1.0, size)
    whole = y == tl.floor(y)
    odd = whole & (y - 2.0 * tl.floor(y * 0.5) == 1.0)
    signed = tl.where(odd, -size, tl.where(whole | (x == 0.0), size, float("nan")))
    negative = (x < 0) | ((x == 0.0) & (1.0 / x < 0))
    return tl.where((y == 0.0) | (x == 1.0), 1.0, tl.where(negative, signed, size))
""",
    # Each quotient is cut to a whole number of 53 bits, so what is left is exact where the quotient
    # of two float32 is below 2^80; beyond it, it is rounded.
    "traced_fmod": """\
@triton.jit
def traced_fmod(a, b):
    x, y = tl.broadcast(tl.cast(a, tl.float64), tl.abs(tl.cast(b, tl.float64)))
    size = tl.abs(x)
    rest = size
    for _ in tl.static_range(3):
        rest = tl.fma(-tl.floor(rest / y), y, rest)
        rest = tl.where(rest < 0, rest + y, rest)
    rest = tl.where(rest >= y, rest - y, rest)
    rest = tl.where((y == float("inf")) & (size < y), size, rest)
    return tl.where(x < 0, -rest, rest)
""",
    "traced_quotient": """\
@triton.jit
def traced_quotient(a, b):
    a, b = tl.broadcast(a, b)
    return tl.where(b == 0, 0, a // tl.where(b == 0, 1, b))
""",
    "traced_rest": """\
@triton.jit
def traced_rest(a, b):
    a, b = tl.broadcast(a, b)
    return tl.where(b == 0, 0, a - traced_quotient(a, b) * b)
""",
    "traced_hypot": """\
@triton.jit
def traced_hypot(a, b):
    x, y = tl.broadcast(tl.abs(tl.cast(a, tl.float64)), tl.abs(tl.cast(b, tl.float64)))
    large, small = tl.where(x > y, x, y), tl.where(x > y, y, x)
    share = small / tl.where(large == 0.0, 1.0, large)
    size = tl.where(x + y == x + y, large * tl.sqrt(1.0 + share * share), x + y)
    return tl.where((x == float("inf")) | (y == float("inf")), float("inf"), size)
""",
    "traced_atan2": """\
@triton.jit
def traced_atan2(y, x):
    y, x = tl.broadcast(y, x)
    a, b = tl.abs(y), tl.abs(x)
    alike = (a == b) & (a + b != 0.0)  # both may be infinite
    steep = a > b
    share = tl.where(steep, b, a) / tl.where(a + b == 0.0, 1.0, tl.where(steep, a, b))
    angle = traced_atan(tl.where(alike, 1.0, share))
    angle = tl.where(steep, 1.5707963267948966 - angle, angle)
    behind = (x < 0) | ((x == 0) & (1.0 / x < 0))
    angle = tl.where(behind, 3.141592653589793 - angle, angle)
    return tl.where((y < 0) | ((y == 0) & (1.0 / y < 0)), -angle, angle)
""",
    "traced_acos": """\
@triton.jit
def traced_acos(x):
    return 2.0 * traced_atan(tl.sqrt((1.0 - x) / (1.0 + x)))
""",
    # Stirling's series from 15 on, the recurrence before it, and for what is below a half the
    # reflection: Abramowitz and Stegun, 6.1.15, 6.1.17 and 6.1.41.
    "traced_lgamma": """\
@triton.jit
def traced_lgamma(a):
    x = tl.cast(a, tl.float64)
    low = x < 0.5
    t = tl.where(low, 1.0 - x, x)
    steps = tl.where(x == x, 1.0, x)
    for _ in tl.static_range(15):
        steps = tl.where(t < 15.0, steps * t, steps)
        t = tl.where(t < 15.0, t + 1.0, t)
    s = 1.0 / (t * t)
    p = s * 8.41750841750841751e-4 - 5.95238095238095238e-4
    p = p * s + 7.93650793650793651e-4
    p = p * s - 2.77777777777777778e-3
    p = p * s + 8.33333333333333333e-2
    up = (t - 0.5) * tl.log(t) - t + 0.91893853320467274 + p / t - tl.log(steps)
    sine = tl.abs(tl.sin(3.141592653589793 * (x - tl.floor(x + 0.5))))
    down = tl.where(sine == 0.0, float("inf"), tl.log(3.141592653589793 / sine) - up)
    return tl.where(tl.abs(x) == float("inf"), float("inf"), tl.where(low, down, up))
""",
    # The recurrence up to 10, then the asymptotic series; negative numbers by reflection.
    # Abramowitz and Stegun, 6.3.5, 6.3.7 and 6.3.18.
    "traced_digamma": """\
@triton.jit
def traced_digamma(a):
    x = tl.cast(a, tl.float64)
    low = x < 0
    part = x - tl.where(low, tl.ceil(x), tl.floor(x))
    turned = 3.141592653589793 * part
    t = tl.where(low, 1.0 - x, x)
    y = tl.where(low & (part != 0.0), -3.141592653589793 * tl.cos(turned) / tl.sin(turned), 0.0)
    y = tl.where(low & (part == 0.0), float("nan"), y)
    for _ in tl.static_range(10):
        y = tl.where(t < 10.0, y - 1.0 / t, y)
        t = tl.where(t < 10.0, t + 1.0, t)
    z = 1.0 / (t * t)
    p = 8.33333333333333333333e-2
    p = p * z - 2.10927960927960927961e-2
    p = p * z + 7.57575757575757575758e-3
    p = p * z - 4.16666666666666666667e-3
    p = p * z + 3.96825396825396825397e-3
    p = p * z - 8.33333333333333333333e-3
    p = p * z + 8.33333333333333333333e-2
    value = y + tl.log(t) - 0.5 / t - z * p
    return tl.where(x == 0.0, -1.0 / x, value)
""",
    # M. Giles, Approximating the erfinv function (GPU Computing Gems, 2011), then two Newton steps.
    "traced_erfinv": """\
@triton.jit
def traced_erfinv(a):
    x = tl.cast(a, tl.float64)
    inside = tl.abs(x) < 1.0
    u = tl.where(inside, x, 0.0)
    w = -tl.log((1.0 - u) * (1.0 + u))
    near, far = w - 2.5, tl.sqrt(w) - 3.0
    p = 2.81022636e-08 * near + 3.43273939e-07
    p = p * near - 3.5233877e-06
    p = p * near - 4.39150654e-06
    p = p * near + 0.00021858087
    p = p * near - 0.00125372503
    p = p * near - 0.00417768164
    p = p * near + 0.246640727
    p = p * near + 1.50140941
    q = -0.000200214257 * far + 0.000100950558
    q = q * far + 0.00134934322
    q = q * far - 0.00367342844
    q = q * far + 0.00573950773
    q = q * far - 0.0076224613
    q = q * far + 0.00943887047
    q = q * far + 1.00167406
    q = q * far + 2.83297682
    y = tl.where(w < 5.0, p, q) * u
    for _ in tl.static_range(2):
        y = y - (tl.erf(y) - u) * 0.886226925452758 * tl.exp(y * y)
    edge = tl.where(tl.abs(x) == 1.0, x * float("inf"), float("nan"))
    return tl.where(inside, y, edge)
""",
}
NEEDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("traced_log1p", "traced_expm1"), ("traced_library",)),
    **dict.fromkeys(("traced_tanh64", "traced_sinh"), ("traced_library", "traced_expm1")),
    **dict.fromkeys(
        ("traced_asinh", "traced_acosh", "traced_atanh"), ("traced_library", "traced_log1p")
    ),
    **dict.fromkeys(("traced_asin", "traced_acos", "traced_atan2"), ("traced_atan",)),
    "traced_rest": ("traced_quotient",),
    "traced_powers": ("traced_max",),
}
_CALLED: Mapping[str, str] = {
    "max": "traced_max",
    "min": "traced_min",
    "tanh": "traced_tanh",
    "log1p": "traced_log1p",
    "expm1": "traced_expm1",
    **{name: f"traced_{name}" for name in ("sinh", "asinh", "acosh", "atanh", "atan", "asin")},
    "acos": "traced_acos",
}
# Computed in float64 by a helper, whatever the dtype.
_PRECISE = ("lgamma", "digamma", "erfinv", "fmod", "hypot")


def written(of: Expression, args: Sequence[str]) -> tuple[str, str]:
    """The text of a call, and the helper that it needs, empty where it needs none. Raises
    NotWritten."""
    name, kind = of.name, TYPES[of.dtype]
    if name in INFIX:
        return f"{args[0]} {INFIX[name]} {args[1]}", ""
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


def _by_helper(of: Expression, args: Sequence[str]) -> tuple[str, str] | None:
    """As `written`, for what a function of the kernel's file computes."""
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


def _power(of: Expression, args: Sequence[str]) -> tuple[str, str]:
    if of.dtype not in FLOATS:
        raise NotWritten("a power of integers")
    exponent = of.args[1]
    if exponent.name == "literal":
        return f"traced_pow({args[0]}, {float(exponent.value)!r})", "traced_pow"
    return f"tl.cast(traced_power({', '.join(args)}), {TYPES[of.dtype]})", "traced_power"


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
