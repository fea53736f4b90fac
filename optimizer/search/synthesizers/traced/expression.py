"""Expressions for one element of a kernel's result: calls of a closed set of operators over loaded
elements, numbers and loop variables.

Equal expressions are one object, so that shared parts are written once. Floats of 16 bits are
computed as float32. Standard library only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal

from optimizer.search.synthesizers.traced.index import Index, Var, substituted, variables

# The operators, with the rough cost of a call in additions, which decides whether a value that is
# used twice is stored or computed again.
COSTS: Mapping[str, int] = {
    **dict.fromkeys(("add", "sub", "mul", "neg", "abs", "min", "max", "square"), 1),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "where"), 1),
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "sign", "isnan", "isinf", "cast"), 1),
    **dict.fromkeys(("div", "sqrt", "rsqrt", "reciprocal"), 4),
    **dict.fromkeys(("exp", "log", "tanh", "erf", "sigmoid", "expm1", "log1p", "exp2"), 10),
    **dict.fromkeys(("sin", "cos", "pow", "log2", "atan", "asin", "acos", "erfc"), 20),
    **dict.fromkeys(("tan", "sinh", "cosh", "asinh", "acosh", "atanh", "log10", "atan2"), 20),
    **dict.fromkeys(("hypot", "fmod", "quotient"), 10),  # a quotient of integers, towards zero
    **dict.fromkeys(("lgamma", "digamma", "erfinv", "erfcx", "bessel"), 40),
    **dict.fromkeys(("mantissa", "exponent"), 10),
    **dict.fromkeys(("chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w"), 40),
    **dict.fromkeys(("hermite_h", "hermite_he", "laguerre_l", "legendre_p"), 40),
    **dict.fromkeys(("xor", "signbit", "bits_and", "bits_or", "bits_xor", "bits_not"), 1),
    **dict.fromkeys(("shift_left", "shift_right"), 1),
}
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
# Operators that C++ and Triton write with the same symbol.
INFIX: Mapping[str, str] = (
    {"add": "+", "sub": "-", "mul": "*", "div": "/", "shift_left": "<<", "shift_right": ">>"}
    | {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
    | {"bits_and": "&", "bits_or": "|", "bits_xor": "^"}
)
FLOATS = ("float32", "float64", "float16", "bfloat16")


def computed_in(dtype: str) -> str:
    """The dtype in which values of this dtype are computed."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


@dataclass(frozen=True, eq=False)
class ElementExpression:
    """A call of the operator `name`; `load`, `literal` and `counted` are operators too.

    `load` has the buffer's name as `value` and one index for each dimension, `literal` a number as
    `value`, `counted` the index that is its value. Constructed only by the functions below, which
    return equal expressions as one object.
    """

    name: str
    dtype: str
    args: tuple[ElementExpression, ...] = ()
    indices: tuple[Index, ...] = ()
    value: int | float | bool | str = 0

    @cached_property
    def variables(self) -> frozenset[Var]:
        """All loop variables in it."""
        own = (variables(part) for part in self.indices)
        return frozenset().union(*own, *(arg.variables for arg in self.args))

    @cached_property
    def cost(self) -> int:
        """Rough cost of its computation, in additions."""
        return COSTS.get(self.name, 0) + sum(arg.cost for arg in self.args)

    @cached_property
    def inner_cost(self) -> int:
        """The part of `cost` that depends on all its variables: the other parts are computed
        outside of the innermost loop."""
        return _inner_cost(self, self.variables, {})

    @cached_property
    def loads(self) -> tuple[ElementExpression, ...]:
        """The elements that it loads, without those of places."""
        if self.name == "load":
            return (self,)
        return tuple(dict.fromkeys(load for arg in self.args for load in arg.loads))

    def substituted(self, values: Mapping[Var, Index]) -> ElementExpression:
        """The expression with variables replaced by indices."""
        return _substituted(self, values, {})


def _inner_cost(of: ElementExpression, every: frozenset[Var], known: dict[int, int]) -> int:
    if of.variables != every:
        return 0
    if id(of) not in known:
        known[id(of)] = COSTS.get(of.name, 0) + sum(
            _inner_cost(arg, every, known) for arg in of.args
        )
    return known[id(of)]


@dataclass
class _Interned:
    """The expressions of this process by their structure."""

    entries: dict[object, ElementExpression] = field(default_factory=dict)


_INTERNED = _Interned()


def _made(of: ElementExpression) -> ElementExpression:
    value = (type(of.value).__name__, repr(of.value))
    key = (of.name, of.dtype, tuple(map(id, of.args)), of.indices, value)
    return _INTERNED.entries.setdefault(key, of)


def forget() -> None:
    """Free all expressions; must not be called while a graph is lowered."""
    _INTERNED.entries.clear()


def renamed(of: ElementExpression, names: Mapping[str, str]) -> ElementExpression:
    return _renamed(of, names, {}) if names else of


def _renamed(
    of: ElementExpression, names: Mapping[str, str], done: dict[int, ElementExpression]
) -> ElementExpression:
    if id(of) not in done:
        args = tuple(_renamed(arg, names, done) for arg in of.args)
        value = names.get(str(of.value), of.value) if of.name == "load" else of.value
        done[id(of)] = _made(ElementExpression(of.name, of.dtype, args, of.indices, value))
    return done[id(of)]


def literal(value: float | int | bool, dtype: str) -> ElementExpression:
    """A number of this dtype."""
    dtype = computed_in(dtype)
    if dtype in FLOATS:
        value = float(value)
    elif dtype == "bool":
        value = bool(value)
    else:
        value = int(value)
    return _made(ElementExpression("literal", dtype, value=value))


def load(buffer: str, indices: tuple[Index, ...], dtype: str) -> ElementExpression:
    return _made(ElementExpression("load", computed_in(dtype), indices=indices, value=buffer))


def counted(index: Index) -> ElementExpression:
    """The value of an index, as an int64."""
    return _made(ElementExpression("counted", "int64", indices=(index,)))


def cast(of: ElementExpression, dtype: str) -> ElementExpression:
    dtype = computed_in(dtype)
    if of.dtype == dtype:
        return of
    if of.name == "literal":
        assert not isinstance(of.value, str)
        return literal(of.value, dtype)
    return _made(ElementExpression("cast", dtype, (of,)))


def call(name: str, args: tuple[ElementExpression, ...], dtype: str) -> ElementExpression:
    """A call; arguments are cast by the caller. Raises KeyError for an unknown operator."""
    if name not in COSTS:
        raise KeyError(name)
    if dtype == "int64":
        place = _as_index(name, args)
        if place is not None:
            return counted(place)
    folded = _folded(name, args)
    return _made(ElementExpression(name, computed_in(dtype), args)) if folded is None else folded


def _folded(name: str, args: tuple[ElementExpression, ...]) -> ElementExpression | None:
    """The value of a comparison of two literals or of an exclusive or with a literal, else None."""
    literals = [arg.value for arg in args if arg.name == "literal"]
    if name in _COMPARISONS and len(literals) == 2:
        return literal(_COMPARISONS[name](*literals), "bool")
    if name == "xor" and args[1].name == "literal":
        return call("not", args[:1], "bool") if args[1].value else args[0]
    return None


def _as_index(name: str, args: tuple[ElementExpression, ...]) -> Index | None:
    """A sum, difference or product of an index and a number as an index, else None."""
    if name not in ("add", "sub", "mul") or args[0].name != "counted":
        return None
    first, second = args[0].indices[0], args[1]
    if second.name == "counted" and name != "mul":
        return first + second.indices[0] if name == "add" else first - second.indices[0]
    if second.name != "literal" or not isinstance(second.value, int):
        return None
    if name == "mul":
        return first * second.value
    return first + (second.value if name == "add" else -second.value)


def _substituted(
    of: ElementExpression, values: Mapping[Var, Index], done: dict[int, ElementExpression]
) -> ElementExpression:
    if id(of) not in done:
        args = tuple(_substituted(arg, values, done) for arg in of.args)
        indices = tuple(substituted(part, values) for part in of.indices)
        done[id(of)] = _made(ElementExpression(of.name, of.dtype, args, indices, of.value))
    return done[id(of)]


# -- lowered graphs

Combine = Literal["sum", "prod", "max", "min", "logaddexp"]  # the last only in scans


class NotWritten(Exception):
    """Something, named by the message, cannot be written in a language."""


@dataclass(frozen=True)
class Buffer:
    """A contiguous array. `number` is its place among the tensors of the interface, None for a
    temporary. `pitch` is the distance between rows of the last dimension in elements, 0 for dense
    rows. `hidden` is the path of a buffer of the Model that is neither in the state_dict nor in the
    interface; `values` are its elements, if few enough for the text of a kernel."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    number: int | None = None
    pitch: int = 0
    hidden: str = ""
    values: tuple[float, ...] = ()

    @property
    def memory_shape(self) -> tuple[int, ...]:
        """The shape in memory, with the pitch."""
        return (*self.shape[:-1], self.pitch) if self.pitch else self.shape

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Order:
    """A stable order of the elements along a variable, NaN as the greatest. Only the `first` places
    are needed."""

    along: Var
    descending: bool
    first: int


@dataclass(frozen=True)
class Stage:
    """Fills `out`: for every place of `space`, `body`, or with `combine`, all values of `body` over
    `reduced` combined. With `scanned`, a variable of `space`, each place combines `body` with its
    values at all smaller values of that variable. With `order`, `out` holds places. With `at`,
    `body` is written in turn to these places of `out`, which an earlier stage has filled, or
    combined with their elements."""

    out: Buffer
    space: tuple[Var, ...]
    body: ElementExpression
    reduced: tuple[Var, ...] = ()
    combine: Combine | None = None
    scanned: Var | None = None
    order: Order | None = None
    at: tuple[Index, ...] | None = None

    @property
    def work(self) -> int:
        """Number of times that the body is computed."""
        return prod(v.extent for v in (*self.space, *self.reduced))


@dataclass(frozen=True)
class View:
    """A strided view of a buffer; `strides` and `offset` in elements."""

    buffer: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Call:
    """A call of torch: `operator` by its name in torch.ops, arguments with Views for tensors. Its
    results fill `outs` in order, None for unused ones. `after` is the number of stages before it.
    """

    operator: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outs: tuple[Buffer | None, ...]
    after: int


@dataclass(frozen=True)
class Program:
    """The stages of one case in order of computation, the buffers by name, and the calls of
    operators that are left to torch."""

    buffers: dict[str, Buffer]
    stages: tuple[Stage, ...]
    calls: tuple[Call, ...] = ()
