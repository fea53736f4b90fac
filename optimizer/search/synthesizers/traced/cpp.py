"""Writes a lowered graph as C++. The innermost loops are written so that compilers vectorize them.

One function per case; the entry point selects the function by the shapes that it gets and rejects
other shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.resources import files
from math import prod

from kb.candidate_abi import C_TYPES
from optimizer.evaluation.abi import DTYPE_CODES, ITEM_BYTES, Signature
from optimizer.search.synthesizers.traced.expression import (
    FLOATS,
    INFIX,
    Buffer,
    ElementExpression,
    NotWritten,
    Program,
    Stage,
    computed_in,
)
from optimizer.search.synthesizers.traced.index import Index, Var, flattened, index, index_text
from optimizer.search.synthesizers.traced.launches import every_load, expressions_in

# -- statements and expressions

TYPES = {**C_TYPES, "bfloat16": "kl_bfloat16"}
_INFIX = {**INFIX, "and": "&&", "or": "||", "xor": "!="}
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
class CppWriter:
    """Writes the lines of one program."""

    program: Program
    lines: list[str] = field(default_factory=list)
    rooms: list[str] = field(default_factory=list)
    indent: int = 1
    names: int = 0
    # names of expressions in the current block, by identity
    known: dict[int, str] = field(default_factory=dict)
    local: dict[str, int] = field(default_factory=dict)  # depth of the loop nest that owns a buffer

    @contextmanager
    def _lanes(self, lane: Var) -> Iterator[None]:
        with self._block("for (int64_t l = 0; l < n; l++)", "#pragma omp simd"):
            self._line(f"const int64_t {lane.name} = from + l;")
            yield

    @contextmanager
    def _loops(self, variables: Sequence[Var], pragma: str = "") -> Iterator[None]:
        """Nested loops, with the pragma before the outermost."""
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

    def _hoisted(self, of: ElementExpression, inside: frozenset[Var]) -> None:
        """Write subexpressions that do not depend on the loops over `inside` before these loops."""
        if of.name == "literal":
            return
        if not of.variables & inside:
            self._value(of)
        else:
            for arg in of.args:
                self._hoisted(arg, inside)

    def _value(self, of: ElementExpression) -> str:
        """Assign the expression to a constant in the current block; returns the constant's name."""
        if of.name == "literal":
            return number(of.value, of.dtype)
        if id(of) not in self.known:
            text = self._written(of)
            name = f"v{self.names}"
            self.names += 1
            self._line(f"const {TYPES[of.dtype]} {name} = {text};")
            self.known[id(of)] = name
        return self.known[id(of)]

    def _written(self, of: ElementExpression) -> str:
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
    """The neutral element of a combination, as C++."""
    if combine in ("sum", "prod"):
        return number(combine == "prod", dtype)
    combine = "max" if combine == "logaddexp" else combine
    if dtype in FLOATS:
        return "-INFINITY" if combine == "max" else "INFINITY"
    return "INT64_MIN" if combine == "max" else "INT64_MAX"


def number(value: float | str, dtype: str) -> str:
    """A C++ literal of this dtype."""
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


# -- sorts and scatters

MIN_TILE = 64  # least elements of a dimension per thread
TILES = 16


class SortAndScatterWriter(CppWriter):
    """Writes stages that sort, and stages that write to positions read from tensors."""

    def sort(self, stage: Stage, parallel: bool) -> None:
        """Write the positions along a dimension in the order of their elements."""
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

    def scatter(self, stage: Stage, parallel: bool) -> None:
        """Write elements, one after the other, to positions read from tensors. Threads work on
        different positions."""
        assert stage.at is not None
        apart = [v for v in stage.space if any(place == index(v) for place in stage.at)]
        rest = [v for v in stage.space if v not in apart[-1:]]
        pragma = "#pragma omp parallel for schedule(static)"
        if not (parallel and apart):
            with self._loops(stage.space):
                self._scatter_one(stage)
        elif apart[0] is stage.space[0]:
            with self._loops(stage.space, pragma):
                self._scatter_one(stage)
        else:
            self._in_tiles(stage, apart[-1], rest, pragma)

    def _in_tiles(self, stage: Stage, lane: Var, rest: Sequence[Var], pragma: str) -> None:
        tile = max(MIN_TILE, -(-lane.extent // TILES))
        step = f"for (int64_t from = 0; from < {lane.extent}; from += {tile})"
        with self._block(step, pragma):
            end = f"from + {tile} < {lane.extent} ? from + {tile} : {lane.extent}"
            self._line(f"const int64_t to = {end};")
            head = f"for (int64_t {lane.name} = from; {lane.name} < to; {lane.name}++)"
            with self._loops(rest), self._block(head):
                self._scatter_one(stage)

    def _scatter_one(self, stage: Stage) -> None:
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


MIN_PARALLEL_WORK = (
    20_000  # computed elements; below this, waking a second thread costs more than it saves
)
MAX_ON_STACK = 4_096  # most elements of an array on the stack
CHUNK = 1_024  # terms that are added in float32 before the sum is added in float64
TILE = 512  # sums that are computed together, one per vector lane


def write_candidate(programs: Sequence[tuple[Signature, Program]]) -> str:
    """C++ source of a candidate that serves these cases."""
    parts = []
    for place, (signature, program) in enumerate(programs):
        body = _CppCase(program).text()
        parts.append(f"namespace case{place} {{\n{_fits(signature)}\n{body}\n}}\n")
    rows = "".join(
        f"  if (case{n}::fits(t)) {{ case{n}::run(t); return 0; }}\n" for n in range(len(programs))
    )
    parts.append(
        "KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *c) {\n"
        f"  (void)c;\n{rows}  return 1;  // a shape that this kernel was not written for\n}}\n"
    )
    body = "\n".join(parts)
    return f"{header_for(body)}\n{body}"


def _fits(signature: Signature) -> str:
    tests = []
    for place, tensor in enumerate(signature.tensors):
        tests.append(f"t[{place}].dtype == {DTYPE_CODES[tensor.dtype]}")
        tests.append(f"t[{place}].ndim == {len(tensor.shape)}")
        tests += [f"t[{place}].shape[{d}] == {size}" for d, size in enumerate(tensor.shape)]
    return f"static bool fits(const kernlore_tensor *t) {{\n  return {' && '.join(tests)};\n}}"


@dataclass
class _CppCase(SortAndScatterWriter):
    """Writes one program, line by line."""

    def text(self) -> str:
        """The function `run`."""
        made = nests(self.program)
        inside = {name for nest in made for name in nest.local}
        for buffer in self.program.buffers.values():
            if buffer.name not in inside:
                self._pointer(buffer)
        for nest in made:
            self._nest(nest)
        body = "\n".join(self.lines)
        return "\n".join([*self.rooms, f"static void run(const kernlore_tensor *t) {{\n{body}\n}}"])

    def _pointer(self, buffer: Buffer) -> None:
        kind, name = TYPES[buffer.dtype], buffer.name
        if buffer.hidden:
            self._table(buffer)
        elif buffer.number is None:
            size = buffer.elements * ITEM_BYTES[buffer.dtype]
            self.rooms.append(f"static void *room_{name};")
            self._line(f"{kind} *__restrict__ {name} = ({kind} *)kl_room(&room_{name}, {size});")
        else:
            const = "" if name.startswith("out") else "const "
            source = f"({const}{kind} *)t[{buffer.number}].data"
            self._line(f"{const}{kind} *__restrict__ {name} = {source};")
        self._line(f"(void){name};")

    def _table(self, buffer: Buffer) -> None:
        """An array constant with the elements of a buffer that the interface does not pass."""
        if len(buffer.values) != buffer.elements:
            raise NotWritten(
                f"{buffer.hidden}, a buffer of the Model outside its state_dict, with"
                f" {buffer.elements} elements of {buffer.dtype}"
            )
        dtype = computed_in(buffer.dtype)  # as `kl_read` would convert them
        elements = ", ".join(number(value, dtype) for value in buffer.values)
        kind, name = TYPES[dtype], buffer.name
        self.rooms.append(f"alignas(64) static const {kind} {name}[] = {{{elements}}};")

    # -- loops

    def _nest(self, nest: Nest) -> None:
        parallel = nest.work >= MIN_PARALLEL_WORK
        if not nest.depth:
            for stage in nest.stages:
                self._stage(stage, 0, parallel)
            return
        turns = prod(nest.outer)
        with self._block("#pragma omp parallel" if parallel else ""):
            heap = self._locals(nest)
            shared = "#pragma omp for schedule(static)" if parallel else ""
            with self._block(f"for (int64_t o = 0; o < {turns}; o++)", shared):
                outer = self._outer(nest.outer)
                for stage in nest.stages:
                    values = {v: index(o) for v, o in zip(stage.space, outer, strict=False)}
                    self._stage(_with_outer(stage, values, outer), nest.depth, False)
            for name in heap:
                self._line(f"std::free({name});")
        self.local.clear()

    def _locals(self, nest: Nest) -> list[str]:
        heap = []
        for stage in nest.stages:
            out = stage.out
            if out.name not in nest.local:
                continue
            self.local[out.name] = nest.depth
            size, kind = prod(out.shape[nest.depth :]), TYPES[out.dtype]
            if size <= MAX_ON_STACK:
                self._line(f"alignas(64) {kind} {out.name}[{size}];")
            else:
                room = (size * ITEM_BYTES[out.dtype] + 63) // 64 * 64
                self._line(f"{kind} *{out.name} = ({kind} *)std::aligned_alloc(64, {room});")
                heap.append(out.name)
        return heap

    def _outer(self, sizes: tuple[int, ...]) -> tuple[Var, ...]:
        place = index(Var("o", prod(sizes)))
        made = []
        for n, size in enumerate(sizes):
            variable = Var(f"o{n}", size)
            here = place // prod(sizes[n + 1 :])
            here = here % size if n else here
            self._line(f"const int64_t {variable.name} = {self._index(here)};")
            self._line(f"(void){variable.name};")
            made.append(variable)
        return tuple(made)

    def _stage(self, stage: Stage, depth: int, parallel: bool) -> None:
        if stage.order is not None:
            self.sort(stage, parallel)
            return
        if stage.at is not None:
            self.scatter(stage, parallel)
            return
        lane = lane_of(_inside_nest(stage, depth))
        if stage.scanned and lane:
            self._scan(stage, lane, depth, parallel)
            return
        space = [v for v in stage.space[depth:] if v is not lane]
        reduced = [v for v in stage.reduced if v is not lane]
        if stage.combine is None:
            pragma = "#pragma omp parallel for schedule(static)" if parallel else ""
            with self._loops(space, pragma if space else ""):
                self._hoisted(stage.body, frozenset([lane] if lane else []))
                simd = " simd" if not parallel or space else " parallel for simd"
                with self._loops([lane] if lane else [], f"#pragma omp{simd}" if lane else ""):
                    self._store(stage, stage.out, self._value(stage.body))
        elif lane in stage.space:
            self._side_by_side(stage, lane, space, reduced, parallel)
        else:
            pragma = "#pragma omp parallel for schedule(static)" if parallel and space else ""
            with self._loops(space, pragma):
                self._one_result(stage, lane, reduced, parallel and not space)

    def _one_result(
        self, stage: Stage, lane: Var | None, reduced: list[Var], parallel: bool
    ) -> None:
        """Reduce to one result; the terms are vectorized."""
        kind, combine = TYPES[stage.body.dtype], stage.combine or "sum"
        floats = stage.body.dtype in FLOATS
        long = combine == "sum" and stage.body.dtype == "float32"
        with self._block(""):
            total = "double" if long else kind
            self._line(f"{total} total = {start_of(combine, stage.body.dtype)};")
            bad = combine in ("max", "min") and floats
            if bad:
                self._line("int bad = 0;")
            loops = [*reduced, *([lane] if lane else [])]
            self._hoisted(stage.body, frozenset(loops))
            chunked = long and loops and loops[-1].extent > CHUNK
            how = {"sum": "+", "prod": "*", "max": "max", "min": "min"}[combine]
            clauses = f"reduction({how}:total)" + (" reduction(|:bad)" if bad else "")
            shared = f"#pragma omp parallel for schedule(static) {clauses}" if parallel else ""
            outer, inner = loops[:-1], loops[-1:]
            with self._loops(outer, shared if outer else ""):
                if chunked:
                    self._chunks(stage, inner[0], shared if not outer else "")
                else:
                    simd = f"#pragma omp simd {clauses}"
                    with self._loops(inner, simd if inner else ""):
                        self._combine("total", self._value(stage.body), combine, bad)
            result = "(bad ? NAN : total)" if bad else "total"
            self._store(stage, stage.out, f"({kind}){result}")

    def _chunks(self, stage: Stage, lane: Var, pragma: str) -> None:
        """A long sum: in float32 within a chunk, in float64 over the chunks."""
        step = f"for (int64_t from = 0; from < {lane.extent}; from += {CHUNK})"
        with self._block(step, pragma):
            self._line("float part = 0.0f;")
            end = f"const int64_t to = from + {CHUNK} < {lane.extent} ? from + {CHUNK} :"
            self._line(f"{end} {lane.extent};")
            loop = f"for (int64_t {lane.name} = from; {lane.name} < to; {lane.name}++)"
            with self._block(loop, "#pragma omp simd reduction(+:part)"):
                self._combine("part", self._value(stage.body), "sum", False)
            self._line("total += part;")

    def _side_by_side(
        self, stage: Stage, lane: Var, space: list[Var], reduced: list[Var], parallel: bool
    ) -> None:
        """Reduce to several neighbouring results, one per vector lane."""
        combine, dtype = stage.combine or "sum", stage.body.dtype
        terms = prod(v.extent for v in stage.reduced)
        exact = combine == "sum" and dtype == "float32" and terms > 4 * CHUNK
        kind = "double" if exact else TYPES[dtype]
        tile = min(lane.extent, TILE if space else max(16, min(TILE, lane.extent // 4)))
        shared = "#pragma omp parallel for schedule(static)" if parallel else ""
        with self._loops(space, shared if space else ""):
            self._hoisted(stage.body, frozenset([lane, *reduced]))
            step = f"for (int64_t from = 0; from < {lane.extent}; from += {tile})"
            with self._block(step, shared if not space else ""):
                self._tile(lane, tile, kind, start_of(combine, dtype))
                with self._loops(reduced):
                    self._hoisted(stage.body, frozenset([lane]))
                    with self._lanes(lane):
                        self._combine("acc[l]", self._value(stage.body), combine, False)
                with self._lanes(lane):
                    self._store(stage, stage.out, "acc[l]")

    def _scan(self, stage: Stage, lane: Var, depth: int, parallel: bool) -> None:
        """Running sums or products along a row, or down neighbouring columns, one per vector
        lane."""
        combine, dtype, scanned = stage.combine or "sum", stage.body.dtype, stage.scanned
        assert scanned is not None
        space = [v for v in stage.space[depth:] if v not in (lane, scanned)]
        # As torch does: the rounding error of a float32 sum would remain in all later elements.
        added = dtype == "float32" and combine not in ("max", "min")
        kind = "double" if added else TYPES[dtype]
        shared = "#pragma omp parallel for schedule(static)" if parallel else ""
        with self._loops(space, shared if space else ""):
            self._hoisted(stage.body, frozenset([lane, scanned]))
            if lane is scanned:
                self._scanned_row(stage, lane, combine, kind)
            else:
                self._scanned_columns(stage, lane, kind, shared if not space else "")

    def _scanned_row(self, stage: Stage, lane: Var, combine: str, kind: str) -> None:
        if combine not in ("sum", "prod"):
            with self._block(""):
                self._line(f"{kind} total = {start_of(combine, stage.body.dtype)};")
                with self._loops([lane]):
                    self._combine("total", self._value(stage.body), combine, False)
                    self._store(stage, stage.out, "total")
            return
        sign = "+" if combine == "sum" else "*"
        with self._block(""):
            self._line(f"{kind} total = {start_of(combine, stage.body.dtype)};")
            with self._loops([lane], f"#pragma omp simd reduction(inscan, {sign}:total)"):
                with self._block(""):
                    self._line(f"total {sign}= {self._value(stage.body)};")
                self._line("#pragma omp scan inclusive(total)")
                with self._block(""):
                    self._store(stage, stage.out, "total")

    def _scanned_columns(self, stage: Stage, lane: Var, kind: str, shared: str) -> None:
        combine, scanned = stage.combine or "sum", stage.scanned
        assert scanned is not None
        tile = min(lane.extent, max(16, min(TILE, lane.extent // 4)) if shared else TILE)
        step = f"for (int64_t from = 0; from < {lane.extent}; from += {tile})"
        with self._block(step, shared):
            self._tile(lane, tile, kind, start_of(combine, stage.body.dtype))
            with self._loops([scanned]):
                self._hoisted(stage.body, frozenset([lane]))
                with self._lanes(lane):
                    self._combine("acc[l]", self._value(stage.body), combine, False)
                    self._store(stage, stage.out, "acc[l]")

    def _tile(self, lane: Var, tile: int, kind: str, start: str) -> None:
        """Declare accumulators for `tile` neighbouring results; `n` of them are used."""
        self._line(f"alignas(64) {kind} acc[{tile}];")
        rest = f"{lane.extent} - from"
        self._line(f"const int64_t n = {rest} < {tile} ? {rest} : {tile};")
        self._line(f"for (int64_t l = 0; l < n; l++) acc[l] = {start};")


def _with_outer(stage: Stage, values: Mapping[Var, Index], outer: tuple[Var, ...]) -> Stage:
    """The stage with its outer variables replaced by those of the nest."""
    space = (*outer, *stage.space[len(outer) :])
    return replace(stage, space=space, body=stage.body.substituted(values))


def _inside_nest(stage: Stage, depth: int) -> Stage:
    """The part of a stage inside the loops of the nest."""
    return replace(stage, space=stage.space[depth:])


# -- the header

_TEXT = files(__package__).joinpath("cpp_header.h").read_text(encoding="utf-8")
_FIRST, *_PIECES = _TEXT.strip().split("\n\n")
_TYPE = re.compile(r"^struct (kl_\w+)", re.M)
_FUNCTION = re.compile(r"^(?:template |KL |static ).*?\b(kl_\w+)\(", re.M)
_NAME = re.compile(r"\bkl_\w+")


def header_for(body: str) -> str:
    """The pieces of `cpp_header.h` that this code needs, with those that they need, in file order.
    A reader of the candidate then sees no unused function."""
    needed: set[int] = set()
    spoken = set(_NAME.findall(body))
    while True:
        more = {n for n, piece in enumerate(_PIECES) if _defines(piece) & spoken} - needed
        if not more:
            break
        needed |= more
        spoken |= {name for n in more for name in _NAME.findall(_PIECES[n])}
    return "\n\n".join([_FIRST, *(_PIECES[n] for n in sorted(needed))]) + "\n"


def _defines(piece: str) -> set[str]:
    return set(_TYPE.findall(piece) or _FUNCTION.findall(piece))


# -- loop nests

# most elements of a buffer that a thread holds for one iteration of the outer loops
MAX_LOCAL = 1 << 18
MIN_SHARED_ITERATIONS = 8  # least iterations of outer loops that threads share


@dataclass
class Nest:
    """Stages with the same `depth` outer sizes. `local` names buffers that no other nest reads."""

    stages: list[Stage]
    depth: int
    local: set[str] = field(default_factory=set)

    @property
    def outer(self) -> tuple[int, ...]:
        """The sizes of the shared loops."""
        return tuple(v.extent for v in self.stages[0].space[: self.depth])

    @property
    def work(self) -> int:
        """Number of elements that all stages compute."""
        return sum(stage.work for stage in self.stages)


def nests(program: Program) -> list[Nest]:
    """The stages in order, joined into nests where that keeps data in the cache."""
    made: list[Nest] = []
    for stage in program.stages:
        depth = _joined(made[-1], stage) if made else 0
        if depth:
            made[-1].stages.append(stage)
            made[-1].depth = depth
        else:
            made.append(Nest([stage], _deepest(stage)))
    for nest in made:
        nest.local = _only_read_by(nest, made)
    return made


def _joined(nest: Nest, stage: Stage) -> int:
    """The number of outer loops that the stage can share with the nest; 0 if it should not join."""
    depth = 0
    sizes = tuple(v.extent for v in stage.space)
    most = min(nest.depth, _deepest(stage))
    while depth < most and nest.outer[depth] == sizes[depth]:
        depth += 1
    filled = {earlier.out.name for earlier in nest.stages}
    for load in every_load(stage.body):
        if load.value in filled:
            shared = 0
            while shared < min(depth, len(load.indices)) and load.indices[shared] == index(
                stage.space[shared]
            ):
                shared += 1
            depth = min(depth, shared)
    if not depth or prod(sizes[:depth]) < MIN_SHARED_ITERATIONS:
        return 0
    kept = [s.out for s in nest.stages if s.out.number is None]
    return depth if all(prod(b.shape[depth:]) <= MAX_LOCAL for b in kept) else 0


def _deepest(stage: Stage) -> int:
    """The number of outer loops that may be shared: those outside of the vectorized loop and of a
    scan; 0 if positions of the result are read from a tensor."""
    if stage.order or stage.at is not None:
        return 0
    inside = [v for v in (lane_of(stage), stage.scanned) if v in stage.space]
    return min(map(stage.space.index, inside), default=len(stage.space))


def lane_of(stage: Stage) -> Var | None:
    """The variable of the vectorized loop: the one along which most loads and stores are
    contiguous. None for a stage without loops."""
    loops = (*stage.space, *stage.reduced)
    if not loops:
        return None
    if stage.scanned:
        return stage.space[-1]

    def merit(variable: Var) -> tuple[int, int]:
        good = 2 * (not stage.reduced and variable == stage.space[-1])
        good += variable in stage.space[-1:]
        for load in stage.body.loads:
            factor = _stride(load.indices, variable)
            good += 2 if factor == 1 else 0 if factor == 0 else -2
        return (good if variable.extent >= 8 else good - 8, loops.index(variable))

    return max(loops, key=merit)


def _stride(indices: tuple[Index, ...], variable: Var) -> int | None:
    """The distance in memory between neighbours along the variable; None if another index than the
    last depends on it."""
    if not indices:
        return 0
    last = indices[-1].factor(variable)
    strided = any(part.factor(variable) != 0 for part in indices[:-1])
    return None if strided else last


def _only_read_by(nest: Nest, made: list[Nest]) -> set[str]:
    others = {name for other in made if other is not nest for name in _buffers_used(other)}
    own = [stage.out for stage in nest.stages if stage.out.number is None]
    return {buffer.name for buffer in own if buffer.name not in others and nest.depth}


def _buffers_used(nest: Nest) -> Iterator[str]:
    """The buffers that stages read or update in place."""
    for stage in nest.stages:
        reads = [stage.body, *(part for place in stage.at or () for part in expressions_in(place))]
        yield from (str(load.value) for of in reads for load in every_load(of))
        if stage.at is not None:
            yield stage.out.name
