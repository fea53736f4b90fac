"""One launch as a Triton kernel: a tile of rows and of the places along them.

A row that fits stays in registers; a longer one is walked along in chunks, once for every reduction
that needs the one before it. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

from optimizer.search.records import Value
from optimizer.search.synthesizers.traced import triton_operators as operators
from optimizer.search.synthesizers.traced.expression import FLOATS, Expression
from optimizer.search.synthesizers.traced.index import (
    Index,
    Var,
    index_text,
    rejoined,
)
from optimizer.search.synthesizers.traced.index import variables as variables_of
from optimizer.search.synthesizers.traced.launches import (
    Launch,
    Placed,
    neutral,
    place_of,
)
from optimizer.search.synthesizers.traced.program import Buffer, Combine

ENOUGH = 264  # programs: two for each multiprocessor of the largest devices
MOST_WARPS = 16  # 32 would be more threads than AMD's wavefronts of 64 allow
# A scan across rows: one warp, whose threads add up few columns each. Of 21 tiles the fastest on an
# H200 for rows of 1,351, the third for rows of 2,048 (benchmarks/results/foreign_problems.md).
SCANNED = (32, 16)
NARROW = 32  # results beside each other, from which on a tile is taken along them alone
UNROLLED = 32  # terms of a window
WIDE = (1 << 31) - (1 << 20)  # elements, from which on places need 64 bits


@dataclass(frozen=True)
class Tile:
    """What one program works on: `rows` by `columns` elements, `chunked` where the columns are not
    all of them. `along` is how the rows lie: `p`, `q` with p fixed, or both in one number."""

    rows: int
    columns: int
    chunked: bool
    along: str
    programs: int
    warps: int


@dataclass(frozen=True)
class Written:
    """A kernel's text, the buffers in the order of its arguments, and how it is launched; `stages`
    of its loop, None for what Triton takes."""

    name: str
    text: str
    arguments: tuple[str, ...]
    programs: int
    warps: int
    helpers: frozenset[str]
    stages: int | None = None


def power_of_two(least: int) -> int:
    """The next power of two that is not below."""
    return 1 << max(0, least - 1).bit_length()


def tile_of(launch: Launch, values: Mapping[str, Value]) -> Tile:
    """The tile for these choices."""
    axes = launch.axes
    block, row_block = int(values["block"]), int(values["row_block"])
    per_warp, resident = int(values["warp_elements"]), int(values["resident"])
    if axes.length == 1:
        rows = min(block, power_of_two(axes.outer))
        return _tile(rows, 1, False, "p", -(-axes.outer // rows), per_warp)
    columns = power_of_two(axes.length)
    if axes.inner == 1:
        chunked = columns > resident
        if chunked:
            columns = int(values["chunk"])
        rows = min(max(1, row_block // columns), power_of_two(axes.outer))
        while rows > 1 and axes.outer // rows < ENOUGH:
            rows //= 2
        return _tile(rows, columns, chunked, "p", -(-axes.outer // rows), per_warp)
    return _across(launch, row_block, resident, per_warp)


def _across(launch: Launch, row_block: int, resident: int, per_warp: int) -> Tile:
    """The tile where rows lie beside each other in memory."""
    axes = launch.axes
    narrow = axes.inner < NARROW
    count = axes.outer * axes.inner if narrow else axes.inner
    along, each = ("pq", 1) if narrow else ("q", axes.outer)
    columns = power_of_two(axes.length)
    if any(part.role == "scan" for part in launch.placed):
        rows, columns = min(SCANNED[0], power_of_two(count)), min(SCANNED[1], columns)
        return Tile(rows, columns, columns < axes.length, along, each * -(-count // rows), 1)
    chunked = columns * NARROW > resident
    rows = min(64 if chunked else max(NARROW, row_block // columns), power_of_two(count))
    while rows > NARROW and each * count // rows < ENOUGH:
        rows //= 2
    columns = max(1, row_block // rows) if chunked else columns
    return _tile(rows, columns, chunked, along, each * -(-count // rows), per_warp)


def _tile(rows: int, columns: int, chunked: bool, along: str, programs: int, per_warp: int) -> Tile:
    warps = power_of_two(max(1, rows * columns // per_warp))
    return Tile(rows, columns, chunked, along, programs, min(MOST_WARPS, warps))


@dataclass
class Kernel:
    """Writes one kernel, line by line."""

    name: str
    launch: Launch
    buffers: Mapping[str, Buffer]
    tile: Tile
    lines: list[str] = field(default_factory=list)
    indent: int = 1
    names: int = 0
    known: dict[int, str] = field(default_factory=dict)  # of expressions in the block at hand
    results: dict[str, str] = field(default_factory=dict)  # of stages, by their buffer
    masks: dict[str, str] = field(default_factory=dict)  # of axes, by name
    fixed: set[str] = field(default_factory=set)  # axes that are one number in a program
    helpers: set[str] = field(default_factory=set)
    used: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.made = {part.out.name: part for part in self.launch.placed}
        self.flat = self.launch.axes.length == 1
        self.across = self.launch.axes.inner > 1  # rows lie along the tile's second side

    def written(self) -> Written:
        self._axes()
        if not self.flat:
            self._columns("0", self.tile.columns)
        for part in self.launch.placed:
            self._stage(part)
        return self._finished()

    def _finished(self, stages: int | None = None) -> Written:
        head = f"@triton.jit\ndef {self.name}({', '.join(self.used)}):\n"
        return Written(
            self.name,
            head + "\n".join(self.lines) + "\n",
            tuple(self.used),
            self.tile.programs,
            self.tile.warps,
            frozenset(self.helpers),
            stages,
        )

    # -- axes

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a whole tile."""
        if self.flat:
            return (self.tile.rows,)
        tile = (self.tile.rows, self.tile.columns)
        return tile[::-1] if self.across else tile

    @property
    def axis(self) -> int:
        """The side of the tile along which reductions run."""
        return 0 if self.across else 1

    def _axes(self) -> None:
        axes, rows = self.launch.axes, self.tile.rows
        every = [prod(b.laid) for b in self.buffers.values()]
        wide = max([axes.outer * axes.length * axes.inner, *every]) > WIDE
        program = "tl.program_id(0)" + (".to(tl.int64)" if wide else "")
        side = "" if self.flat else "[None, :]" if self.across else "[:, None]"
        lanes = f"tl.arange(0, {rows}){side}"
        if self.tile.along == "p":
            if rows == 1:
                self._line(f"p = {program}")
                self.fixed.add("p")
            else:
                self._line(f"p = {program} * {rows} + {lanes}")
                self._mask("p", axes.outer, rows)
        elif self.tile.along == "q":
            count = -(-axes.inner // rows)
            self._line(f"p = {program} // {count}")
            self._line(f"q = {program} % {count} * {rows} + {lanes}")
            self.fixed.add("p")
            self._mask("q", axes.inner, rows)
        else:
            self._line(f"row = {program} * {rows} + {lanes}")
            self._line(f"p = row // {axes.inner}")
            self._line(f"q = row % {axes.inner}")
            self._mask("row", axes.outer * axes.inner, rows)
            if "row" in self.masks:
                self.masks.update(p="row_in", q="row_in")

    def _mask(self, axis: str, extent: int, step: int) -> None:
        if extent % step:
            self._line(f"{axis}_in = {axis} < {extent}")
            self.masks[axis] = f"{axis}_in"

    def _columns(self, first: str, count: int) -> None:
        side = "[:, None]" if self.across else "[None, :]"
        start = "" if first == "0" else f"{first} + "
        self._line(f"c = {start}tl.arange(0, {count}){side}")
        self._mask("c", self.launch.axes.length, count)

    # -- stages

    def _stage(self, part: Placed) -> None:
        """A stage of a kernel whose columns are all at hand."""
        if part.role == "window":
            self._window(part)
        elif part.role == "scan":
            self._scan(part)
        elif part.role == "reduce":
            value = self._as_term(part, self._value(part.body))
            name = self._assign(self._reduced(value, part.combine or "sum", part.body.dtype))
            self.results[part.out.name] = name
            self._store(part, name)
        elif part.role != "full" or part.out.name in self.launch.stored:
            name = self._value(part.body)
            if part.role != "full":
                self.results[part.out.name] = name
            self._store(part, name)

    @property
    def ends(self) -> tuple[int, int]:
        """The shape of what is left of a tile that is reduced along its columns."""
        return (1, self.tile.rows) if self.across else (self.tile.rows, 1)

    def _scan(self, part: Placed, carried: str = "", stored: bool = True) -> None:
        """`carried` is what all columns before come to, and is moved on. What lies behind the end
        of a row comes after all that counts."""
        combine, dtype = part.combine or "sum", part.body.dtype
        value = f"tl.broadcast_to({self._value(part.body)}, {list(self.shape)})"
        if combine == "logaddexp":
            self._scan_of_powers(part, value, carried, stored)
            return
        helper = {"sum": "traced_plus", "prod": "traced_times"}[combine]
        self.helpers.add(helper)
        term = self._assign(value)
        name = self._assign(f"tl.associative_scan({term}, {self.axis}, {helper})")
        if carried:
            name = self._assign(self._combined(carried, name, combine, dtype))
            total = self._reduced(term, combine, dtype)
            self._line(f"{carried} = {self._combined(carried, total, combine, dtype)}")
        self.results[part.out.name] = name
        if stored:
            self._store(part, name)

    def _scan_of_powers(self, part: Placed, value: str, carried: str, stored: bool) -> None:
        """The logarithm of a running sum of exponentials, which is carried as a maximum and a sum
        about it: added up as logarithms, a long row would lose digits at each step."""
        self.helpers.add("traced_powers")
        kind = operators.TYPES[part.body.dtype]
        term = f"({self._assign(value)}, tl.full({list(self.shape)}, 1.0, {kind}))"
        most, powers = self._names(2)
        how = f"{term}, {self.axis}, traced_powers"
        self._line(f"{most}, {powers} = tl.associative_scan({how})")
        if carried:
            before = f"{carried}, {carried}_powers"
            self._line(f"{most}, {powers} = traced_powers({before}, {most}, {powers})")
            total = ", ".join(self._names(2))
            self._line(f"{total} = tl.reduce({how}, keep_dims=True)")
            self._line(f"{before} = traced_powers({before}, {total})")
        name = self._assign(f"{most} + tl.log({powers})")
        self.results[part.out.name] = name
        if stored:
            self._store(part, name)

    def _window(self, part: Placed) -> None:
        combine, dtype = part.combine or "sum", part.body.dtype
        start = operators.number(neutral(combine, dtype), dtype)
        total = self._assign(f"tl.full([{self.tile.rows}], {start}, {operators.TYPES[dtype]})")
        with self._loops(part.window, prod(v.extent for v in part.window)):
            value = self._value(part.body)
            self._line(f"{total} = {self._combined(total, value, combine, dtype)}")
        self.results[part.out.name] = total
        self._store(part, total)

    @contextmanager
    def _loops(self, loops: Sequence[Var], terms: int) -> Iterator[None]:
        if not loops:
            yield
            return
        first, *rest = loops
        call = "range" if terms > UNROLLED and rest else "tl.static_range"
        with self._block(f"for {first.name} in {call}({first.extent}):"):
            self.fixed.add(first.name)
            with self._loops(rest, terms // first.extent):
                yield

    def _as_term(self, part: Placed, value: str, whole: bool = True) -> str:
        """A value as a term of a reduction: what lies behind the end changes nothing."""
        dtype = part.body.dtype
        mask = self.masks.get("c")
        if mask is not None:
            other = operators.number(neutral(part.combine or "sum", dtype), dtype)
            value = self._assign(f"tl.where({mask}, {value}, {other})")
        if whole and (self.launch.axes.c not in part.body.variables or mask is not None):
            return f"tl.broadcast_to({value}, {list(self.shape)})"
        return value

    def _combined(self, total: str, term: str, combine: Combine, dtype: str) -> str:
        if combine in ("sum", "prod"):
            return f"{total} {'+' if combine == 'sum' else '*'} {term}"
        if dtype not in FLOATS:
            return f"tl.{combine}imum({total}, {term})"
        self.helpers.add(f"traced_{combine}")
        return f"traced_{combine}({total}, {term})"

    def _reduced(self, value: str, combine: Combine, dtype: str) -> str:
        if combine == "sum":
            return f"tl.sum({value}, {self.axis}, keep_dims=True)"
        if combine == "prod":
            helper = "traced_times"
        elif dtype in FLOATS:
            helper = f"traced_{combine}"
        else:
            helper = "traced_larger" if combine == "max" else "traced_smaller"
        self.helpers.add(helper)
        return f"tl.reduce({value}, {self.axis}, {helper}, keep_dims=True)"

    def _store(self, part: Placed, value: str) -> None:
        if part.out.name not in self.launch.stored:
            return
        self.used[part.out.name] = None
        place = self._memory(part.place, self.buffers[part.out.name])
        axes = [v.name for v in sorted(variables_of(part.place), key=lambda v: v.name)]
        if all(axis in self.fixed for axis in axes):
            ones = "[1]" if self.flat else "[1, 1]"
            place = f"{place} + tl.zeros({ones}, tl.int32)"
        mask = self._mask_of(axes)
        self._line(f"tl.store({part.out.name} + ({place}), {value}{mask})")

    def _mask_of(self, axes: Sequence[str]) -> str:
        masks = list(dict.fromkeys(self.masks[axis] for axis in axes if axis in self.masks))
        return f", mask={' & '.join(masks)}" if masks else ""

    # -- expressions

    def _hoisted(self, of: Expression) -> None:
        """Write what does not change along a row before the loop."""
        if of.name in ("literal", "counted") or self._is_full(of):
            return
        if self.launch.axes.c not in of.variables:
            self._value(of)
        else:
            for arg in of.args:
                self._hoisted(arg)

    def _is_full(self, of: Expression) -> bool:
        source = self.made.get(str(of.value)) if of.name == "load" else None
        return source is not None and source.role == "full"

    def _value(self, of: Expression) -> str:
        """The name of the expression's value, written in the block at hand."""
        if of.name == "literal":
            assert not isinstance(of.value, bool) or of.dtype == "bool"
            return f"tl.full([], {operators.number(of.value, of.dtype)}, {_type(of)})"
        if of.name == "load" and str(of.value) in self.made:
            source = self.made[str(of.value)]
            return (
                self._value(source.body) if source.role == "full" else self.results[source.out.name]
            )
        if id(of) not in self.known:
            self.known[id(of)] = self._assign(self._text(of))
        return self.known[id(of)]

    def _text(self, of: Expression) -> str:
        if of.name == "load":
            return self._loaded(of)
        if of.name == "counted":
            return f"({self._index(of.indices[0])}) + tl.zeros([], tl.int64)"
        args = [self._argument(of, arg) for arg in of.args]
        text, helper = operators.written(of, args)
        if helper:
            self.helpers.add(helper)
        return text

    def _argument(self, of: Expression, arg: Expression) -> str:
        """An argument: a number as it is, where another argument says what type it has."""
        typed = any(a.name != "literal" and a.dtype == arg.dtype for a in of.args)
        if arg.name == "literal" and typed and arg.dtype != "float64":
            return operators.number(arg.value, arg.dtype)
        return self._value(arg)

    def _loaded(self, of: Expression) -> str:
        buffer = self.buffers[str(of.value)]
        self.used[buffer.name] = None
        place = place_of(of, buffer)
        axes = sorted(v.name for v in variables_of(place))
        mask = self._mask_of(axes)
        other = ", other=0" if mask else ""
        text = f"tl.load({buffer.name} + ({self._memory(place, buffer)}){mask}{other})"
        narrow = buffer.dtype in ("float16", "bfloat16")
        return f"{text}.to(tl.float32)" if narrow else text

    def _memory(self, place: Index, buffer: Buffer) -> str:
        """A place of a buffer where the buffer lies. What lies between rows is added as a product
        of its own: told that rows are aligned, Triton seems to give each thread elements beside
        each other of the unaligned rows that it reads too (on an H200 a norm took 40 us so, and
        22 before)."""
        text = self._index(place)
        if buffer.pitch:
            row = rejoined(place // buffer.shape[-1])
            text += f" + {buffer.pitch - buffer.shape[-1]} * ({self._index(row)})"
        return text

    def _index(self, of: Index) -> str:
        return index_text(of, self._value, "//")

    # -- lines

    def _names(self, count: int) -> list[str]:
        self.names += count
        return [f"v{self.names - count + n}" for n in range(count)]

    def _assign(self, text: str) -> str:
        (name,) = self._names(1)
        self._line(f"{name} = {text}")
        return name

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._line(head)
        before, self.known = self.known, dict(self.known)
        masks = dict(self.masks)
        self.indent += 1
        yield
        self.indent -= 1
        self.known, self.masks = before, masks

    def _line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)


def _type(of: Expression) -> str:
    return operators.TYPES[of.dtype]
