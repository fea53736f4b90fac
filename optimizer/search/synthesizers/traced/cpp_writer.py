"""What every part of a C++ kernel is written with: lines, loops and expressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from optimizer.evaluation.abi import ITEM_BYTES
from optimizer.search.synthesizers.traced.expression import FLOATS, Expression
from optimizer.search.synthesizers.traced.index import Index, Var, flattened, index, index_text
from optimizer.search.synthesizers.traced.program import Buffer, Program, Stage

TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "_Float16",
    "bfloat16": "kl_bfloat16",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "bool": "bool",
}
_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "and": "&&",
    "or": "||",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "xor": "!=",
    "bits_and": "&",
    "bits_or": "|",
    "bits_xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
}
_CALLED = {
    **{name: f"kl_{name}" for name in ("exp", "log", "tanh", "erf", "sigmoid", "sign")},
    "max": "kl_max",
    "min": "kl_min",
    **{name: f"std::{name}" for name in ("sqrt", "floor", "ceil", "trunc", "pow", "abs", "sin")},
    **{name: f"std::{name}" for name in ("cos", "expm1", "log1p", "exp2", "log2", "erfc")},
    **{name: f"std::{name}" for name in ("atan", "asin", "acos", "tan", "sinh", "cosh", "log10")},
    **{name: f"std::{name}" for name in ("asinh", "acosh", "atanh", "atan2", "hypot", "signbit")},
    **{name: f"kl_{name}" for name in ("fmod", "quotient", "lgamma", "digamma", "erfinv")},
    **{name: f"kl_{name}" for name in ("erfcx", "bessel", "mantissa", "exponent")},
    **{name: f"kl_{name}" for name in ("chebyshev_t", "chebyshev_u", "chebyshev_v")},
    **{name: f"kl_{name}" for name in ("chebyshev_w", "hermite_h", "hermite_he")},
    **{name: f"kl_{name}" for name in ("laguerre_l", "legendre_p")},
    "round": "std::nearbyint",
    "isnan": "std::isnan",
    "isinf": "std::isinf",
}


@dataclass
class Writer:
    """Lines of one program."""

    program: Program
    lines: list[str] = field(default_factory=list)
    rooms: list[str] = field(default_factory=list)
    indent: int = 1
    names: int = 0
    known: dict[int, str] = field(default_factory=dict)  # of expressions in the block at hand
    local: dict[str, int] = field(default_factory=dict)  # buffers of a nest: its depth

    @contextmanager
    def _lanes(self, lane: Var) -> Iterator[None]:
        with self._block("for (int64_t l = 0; l < n; l++)", "#pragma omp simd"):
            self._line(f"const int64_t {lane.name} = from + l;")
            yield

    @contextmanager
    def _loops(self, variables: Sequence[Var], pragma: str = "") -> Iterator[None]:
        """Loops in each other, with the pragma before the outermost."""
        if not variables:
            yield
            return
        name, extent = variables[0].name, variables[0].extent
        head = f"for (int64_t {name} = 0; {name} < {extent}; {name}++)"
        with self._block(head, pragma), self._loops(variables[1:]):
            yield

    @contextmanager
    def _block(self, head: str, pragma: str = "") -> Iterator[None]:
        if pragma:
            self._line(pragma)
        if head.startswith("#"):
            self._line(head)
            head = ""
        self._line(f"{head} {{".strip())
        before, self.known = self.known, dict(self.known)
        self.indent += 1
        yield
        self.indent -= 1
        self.known = before
        self._line("}")

    # -- expressions

    def _combine(self, into: str, value: str, combine: str, bad: bool) -> None:
        if bad:
            self._line(f"bad |= {value} != {value};")
        if combine in ("sum", "prod"):
            self._line(f"{into} {'+' if combine == 'sum' else '*'}= {value};")
        elif bad:
            sign = ">" if combine == "max" else "<"
            self._line(f"{into} = {value} {sign} {into} ? {value} : {into};")
        else:
            self._line(f"{into} = kl_{combine}({into}, {value});")

    def _store(self, stage: Stage, out: Buffer, value: str) -> None:
        places = tuple(map(index, stage.space))
        kind = TYPES["float32" if out.dtype == "bfloat16" else out.dtype]
        self._line(f"kl_write(&{self._element(out, places)}, ({kind})({value}));")

    def _element(self, buffer: Buffer, places: tuple[Index, ...]) -> str:
        depth = self.local.get(buffer.name, 0)
        place = flattened(places[depth:], buffer.shape[depth:])
        return f"{buffer.name}[{self._index(place)}]"

    def _hoisted(self, of: Expression, inside: frozenset[Var]) -> None:
        """Write what does not change in the loops over `inside` before them."""
        if of.name == "literal":
            return
        if not of.variables & inside:
            self._value(of)
        else:
            for arg in of.args:
                self._hoisted(arg, inside)

    def _value(self, of: Expression) -> str:
        """The name of a constant with the expression's value, written in the block at hand."""
        if of.name == "literal":
            return number(of.value, of.dtype)
        if id(of) not in self.known:
            text = self._written(of)
            name = f"v{self.names}"
            self.names += 1
            self._line(f"const {TYPES[of.dtype]} {name} = {text};")
            self.known[id(of)] = name
        return self.known[id(of)]

    def _written(self, of: Expression) -> str:
        if of.name == "load":
            buffer = self.program.buffers[str(of.value)]
            return f"kl_read({self._element(buffer, of.indices)})"
        if of.name == "counted":
            return self._index(of.indices[0])
        args = [self._value(arg) for arg in of.args]
        if of.name in _INFIX:
            return f"{args[0]} {_INFIX[of.name]} {args[1]}"
        kind = TYPES[of.dtype]
        forms: Mapping[str, str] = {
            "cast": f"({kind}){args[0]}",
            "neg": f"-{args[0]}",
            "not": f"!{args[0]}",
            "bits_not": f"~{args[0]}",
            "square": f"{args[0]} * {args[0]}",
            "rsqrt": f"({kind})1 / std::sqrt({args[0]})",
            "reciprocal": f"({kind})1 / {args[0]}",
        }
        if of.name in forms:
            return forms[of.name]
        if of.name == "where":
            return f"{args[0]} ? {args[1]} : {args[2]}"
        return f"{_CALLED[of.name]}({', '.join(args)})"

    def _index(self, of: Index) -> str:
        return index_text(of, self._value, "/")

    def _line(self, text: str) -> None:
        self.lines.append("  " * self.indent + text if not text.startswith("#") else text)


def start_of(combine: str, dtype: str) -> str:
    """What changes nothing when it is combined."""
    if combine in ("sum", "prod"):
        return number(combine == "prod", dtype)
    combine = "max" if combine == "logaddexp" else combine
    if dtype in FLOATS:
        return "-INFINITY" if combine == "max" else "INFINITY"
    return "INT64_MIN" if combine == "max" else "INT64_MAX"


def number(value: float | str, dtype: str) -> str:
    """A number of this dtype."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype not in FLOATS:
        return f"(({TYPES[dtype]}){int(value)}LL)"
    number = float(value)
    if number != number:
        return f"(({TYPES[dtype]})NAN)"
    if number in (float("inf"), float("-inf")):
        return f"(({TYPES[dtype]}){'-' if number < 0 else ''}INFINITY)"
    return f"{number!r}{'f' if dtype == 'float32' else ''}"


# -- cpp places: Stages whose places are data: orders of elements, and elements that go where a te

LEAST_TILE = 64  # neighbouring places that a thread puts
TILES = 16


class Placing(Writer):
    """Writes such stages."""

    def ordered(self, stage: Stage, parallel: bool) -> None:
        """The places along a variable in the order of their elements."""
        order = stage.order
        assert order is not None
        along = order.along
        wide = ITEM_BYTES[stage.body.dtype] == 8
        key, kind = ("uint64_t", "kl_wide") if wide else ("uint32_t", "uint64_t")
        others = [v for v in stage.space if v is not along]
        shared = "#pragma omp parallel for schedule(static)" if parallel and others else ""
        with self._loops(others, shared), self._block(""):
            self._line(f"{kind} *keys = kl_places<{kind}>(2 * {along.extent});")
            with self._loops([along]):
                value = f"kl_key({self._value(stage.body)})"
                value = f"~{value}" if order.descending else value
                self._line(f"keys[{along.name}] = kl_placed(({key}){value}, {along.name});")
            self._line(f"kl_ordered(keys, {along.extent}, {order.first});")
            with self._loops([Var(along.name, order.first)]):
                self._store(stage, stage.out, f"kl_place(keys[{along.name}])")

    def put(self, stage: Stage, parallel: bool) -> None:
        """Elements at places that tensors hold, in turn: threads share places that differ."""
        assert stage.at is not None
        apart = [v for v in stage.space if any(place == index(v) for place in stage.at)]
        rest = [v for v in stage.space if v not in apart[-1:]]
        pragma = "#pragma omp parallel for schedule(static)"
        if not (parallel and apart):
            with self._loops(stage.space):
                self._put_one(stage)
        elif apart[0] is stage.space[0]:
            with self._loops(stage.space, pragma):
                self._put_one(stage)
        else:
            self._in_tiles(stage, apart[-1], rest, pragma)

    def _in_tiles(self, stage: Stage, lane: Var, rest: Sequence[Var], pragma: str) -> None:
        tile = max(LEAST_TILE, -(-lane.extent // TILES))
        step = f"for (int64_t from = 0; from < {lane.extent}; from += {tile})"
        with self._block(step, pragma):
            end = f"from + {tile} < {lane.extent} ? from + {tile} : {lane.extent}"
            self._line(f"const int64_t to = {end};")
            head = f"for (int64_t {lane.name} = from; {lane.name} < to; {lane.name}++)"
            with self._loops(rest), self._block(head):
                self._put_one(stage)

    def _put_one(self, stage: Stage) -> None:
        assert stage.at is not None
        value = self._value(stage.body)
        place = self._element(stage.out, stage.at)
        before = f"kl_read({place})"
        forms = {
            None: value,
            "sum": f"{before} + {value}",
            "prod": f"{before} * {value}",
            "max": f"kl_max({before}, {value})",
            "min": f"kl_min({before}, {value})",
        }
        self._line(f"kl_write(&{place}, {forms[stage.combine]});")
