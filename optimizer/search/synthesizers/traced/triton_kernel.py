"""Writes one launch as a Triton kernel over tiles of rows and columns.

A row that fits stays in registers. A longer one is read in chunks, in one pass for every reduction
that depends on an earlier one. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isclose, prod

from optimizer.search.records import Value
from optimizer.search.synthesizers.traced import triton_operators as operators
from optimizer.search.synthesizers.traced.expression import (
    FLOATS,
    Buffer,
    Combine,
    ElementExpression,
    renamed,
)
from optimizer.search.synthesizers.traced.index import Index, Var, index_text, rejoined
from optimizer.search.synthesizers.traced.index import variables as variables_of
from optimizer.search.synthesizers.traced.launches import (
    KernelLaunch,
    PlacedStage,
    every_load,
    neutral,
    place_of,
)

MIN_PROGRAMS = 264  # programs: two for each multiprocessor of the largest devices
MAX_WARPS = 16  # 32 would be more threads than AMD's wavefronts of 64 allow
# A scan down columns takes one warp, whose threads add up few columns each. On an H200 this was the
# fastest of 21 tiles for rows of 1,351 and the third for rows of 2,048
# (benchmarks/results/foreign_problems.md).
SCANNED = (32, 16)
NARROW = 32  # least neighbouring results for a tile of these alone
UNROLLED = 32  # most terms of a window that are unrolled
WIDE = (1 << 31) - (1 << 20)  # elements; beyond this, offsets need 64 bits


@dataclass(frozen=True)
class Tile:
    """The tile of one program: `rows` by `columns` elements, `chunked` if the columns are only a
    part of a row. `along` names the axis that the rows follow: `p`, `q` with p fixed, or both in
    one number, `pq`."""

    rows: int
    columns: int
    chunked: bool
    along: str
    programs: int
    warps: int


@dataclass(frozen=True)
class KernelText:
    """A kernel's source, its arguments in order, and its launch; `stages` of its loop, None for
    Triton's default."""

    name: str
    text: str
    arguments: tuple[str, ...]
    programs: int
    warps: int
    helpers: frozenset[str]
    stages: int | None = None


def power_of_two(least: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(0, least - 1).bit_length()


def tile_of(launch: KernelLaunch, values: Mapping[str, Value]) -> Tile:
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
        while rows > 1 and axes.outer // rows < MIN_PROGRAMS:
            rows //= 2
        return _tile(rows, columns, chunked, "p", -(-axes.outer // rows), per_warp)
    return _across(launch, row_block, resident, per_warp)


def _across(launch: KernelLaunch, row_block: int, resident: int, per_warp: int) -> Tile:
    """The tile for rows that are adjacent in memory, with an inner axis."""
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
    while rows > NARROW and each * count // rows < MIN_PROGRAMS:
        rows //= 2
    columns = max(1, row_block // rows) if chunked else columns
    return _tile(rows, columns, chunked, along, each * -(-count // rows), per_warp)


def _tile(rows: int, columns: int, chunked: bool, along: str, programs: int, per_warp: int) -> Tile:
    warps = power_of_two(max(1, rows * columns // per_warp))
    return Tile(rows, columns, chunked, along, programs, min(MAX_WARPS, warps))


@dataclass
class TritonKernel:
    """Writes one kernel, line by line."""

    name: str
    launch: KernelLaunch
    buffers: Mapping[str, Buffer]
    tile: Tile
    lines: list[str] = field(default_factory=list)
    indent: int = 1
    names: int = 0
    # names of expressions in the current block, by identity
    known: dict[int, str] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)  # names of results, by the stage's buffer
    masks: dict[str, str] = field(default_factory=dict)  # names of masks, by axis
    fixed: set[str] = field(default_factory=set)  # axes with one value per program
    helpers: set[str] = field(default_factory=set)
    used: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.made = {part.out.name: part for part in self.launch.placed}
        self.flat = self.launch.axes.length == 1
        self.across = self.launch.axes.inner > 1  # rows run along the tile's second dimension

    def written(self) -> KernelText:
        self._axes()
        if not self.flat:
            self._columns("0", self.tile.columns)
        for part in self.launch.placed:
            self._stage(part)
        return self._finished()

    def _finished(self, stages: int | None = None) -> KernelText:
        head = f"@triton.jit\ndef {self.name}({', '.join(self.used)}):\n"
        return KernelText(
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
        """The shape of a full tile."""
        if self.flat:
            return (self.tile.rows,)
        tile = (self.tile.rows, self.tile.columns)
        return tile[::-1] if self.across else tile

    @property
    def axis(self) -> int:
        """The dimension of the tile along which reductions run."""
        return 0 if self.across else 1

    def _axes(self) -> None:
        axes, rows = self.launch.axes, self.tile.rows
        every = [prod(b.memory_shape) for b in self.buffers.values()]
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

    def _stage(self, part: PlacedStage) -> None:
        """Write a stage of a kernel that holds whole rows."""
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
    def reduced_shape(self) -> tuple[int, int]:
        """The shape of a tile that was reduced along its columns."""
        return (1, self.tile.rows) if self.across else (self.tile.rows, 1)

    def _scan(self, part: PlacedStage, carried: str = "", stored: bool = True) -> None:
        """`carried` names the combination of all earlier columns, and is updated. Elements beyond
        the end of a row need no mask, as they follow all elements that count."""
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

    def _scan_of_powers(self, part: PlacedStage, value: str, carried: str, stored: bool) -> None:
        """A running logarithm of a sum of exponentials, carried as a maximum and a sum relative to
        it: adding logarithms would lose precision at each step of a long row."""
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

    def _window(self, part: PlacedStage) -> None:
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

    def _as_term(self, part: PlacedStage, value: str, whole: bool = True) -> str:
        """A value as a term of a reduction: elements beyond the end of the row become neutral."""
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

    def _store(self, part: PlacedStage, value: str) -> None:
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

    def _hoisted(self, of: ElementExpression) -> None:
        """Write subexpressions that are constant along a row before the loop."""
        if of.name in ("literal", "counted") or self._is_full(of):
            return
        if self.launch.axes.c not in of.variables:
            self._value(of)
        else:
            for arg in of.args:
                self._hoisted(arg)

    def _is_full(self, of: ElementExpression) -> bool:
        source = self.made.get(str(of.value)) if of.name == "load" else None
        return source is not None and source.role == "full"

    def _value(self, of: ElementExpression) -> str:
        """Assign the expression to a variable in the current block; returns the variable's name."""
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

    def _text(self, of: ElementExpression) -> str:
        if of.name == "load":
            return self._loaded(of)
        if of.name == "counted":
            return f"({self._index(of.indices[0])}) + tl.zeros([], tl.int64)"
        args = [self._argument(of, arg) for arg in of.args]
        text, helper = operators.written(of, args)
        if helper:
            self.helpers.add(helper)
        return text

    def _argument(self, of: ElementExpression, arg: ElementExpression) -> str:
        """An argument; a number is written untyped if another argument determines the type."""
        typed = any(a.name != "literal" and a.dtype == arg.dtype for a in of.args)
        if arg.name == "literal" and typed and arg.dtype != "float64":
            return operators.number(arg.value, arg.dtype)
        return self._value(arg)

    def _loaded(self, of: ElementExpression) -> str:
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
        """The offset of an element. The stride between rows is a separate product: if Triton knows
        that rows are aligned, it appears to give each thread adjacent elements of unaligned rows,
        too (on an H200 a norm took 40 us instead of 22)."""
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


def _type(of: ElementExpression) -> str:
    return operators.TYPES[of.dtype]


# -- reductions that share a pass along the rows

Terms = tuple[tuple[int, ElementExpression], ...]  # each with its sign


@dataclass(frozen=True)
class SharedPasses:
    """Reductions that are computed in the same pass as another one, by the buffer of the latter."""

    # sums of squares about a mean, by the sum
    squares: Mapping[str, str] = field(default_factory=dict)
    # sums of exp(x - maximum), by the maximum
    powers: Mapping[str, str] = field(default_factory=dict)
    # Sums of x - maximum plus further terms that are constant along a row, by the maximum.
    differences: Mapping[str, tuple[str, Terms]] = field(default_factory=dict)

    @property
    def followers(self) -> dict[str, tuple[str, ...]]:
        """The reductions that share the pass of each leading one."""
        result: dict[str, tuple[str, ...]] = {}
        for first, name in (*self.squares.items(), *self.powers.items()):
            result[first] = (name,)
        for first, (name, _) in self.differences.items():
            result[first] = (*result[first], name)
        return result

    @property
    def dependent_pairs(self) -> set[tuple[str, str]]:
        """Pairs of buffers of one pass although the second depends on the first."""
        return {
            (before, name)
            for first, names in self.followers.items()
            for number, name in enumerate(names)
            for before in (first, *names[:number])
        }


def shared_passes(launch: KernelLaunch) -> SharedPasses:
    """The reductions of this kernel that can share a pass."""
    return SharedPasses(_squares_about_means(launch), *_softmax_sums(launch))


def without_repeated_reductions(launch: KernelLaunch) -> KernelLaunch:
    """The kernel without repeated reductions: of equal ones, the first and those that are stored
    remain."""
    first: dict[object, str] = {}
    names: dict[str, str] = {}
    remaining: list[PlacedStage] = []
    for part in launch.placed:
        part = replace(part, body=renamed(part.body, names))
        if part.role == "reduce":
            key = (part.body, part.combine, part.out.dtype, part.place)
            earlier = first.setdefault(key, part.out.name)
            if earlier != part.out.name and part.out.name not in launch.stored:
                names[part.out.name] = earlier
                continue
        remaining.append(part)
    return replace(launch, placed=tuple(remaining))


def _softmax_sums(launch: KernelLaunch) -> tuple[dict[str, str], dict[str, tuple[str, Terms]]]:
    """Sums of exp(x - maximum) by the buffer of the maximum of x, and sums of x - maximum plus
    terms that are constant along a row."""
    made = {part.out.name for part in launch.placed}
    reduced = [p for p in launch.placed if p.role == "reduce" and p.body.dtype == "float32"]
    maxima = {part.out.name: part.body for part in reduced if part.combine == "max"}
    sums = [part for part in reduced if part.combine == "sum"]
    powers: dict[str, str] = {}
    for part in sums:
        if part.body.name == "exp":
            most = _maximum(part.body.args[0], maxima)
            if most is not None:
                powers.setdefault(most, part.out.name)
    differences: dict[str, tuple[str, Terms]] = {}
    for part in sums:
        body, terms = part.body, []
        most = _maximum(body, maxima)
        while most is None and body.name in ("sub", "add"):
            sign = -1 if body.name == "sub" else 1
            body, term = body.args
            terms.append((sign, term))
            most = _maximum(body, maxima)
        if most not in powers:
            continue
        known = {most, powers[most]}
        fixed = all(launch.axes.c not in term.variables for _, term in terms)
        if fixed and not {str(e.value) for _, t in terms for e in every_load(t)} & made - known:
            differences.setdefault(most, (part.out.name, tuple(terms)))
    return powers, differences


def _maximum(of: ElementExpression, maxima: Mapping[str, ElementExpression]) -> str | None:
    """For an expression x - maximum, the buffer of the maximum of x."""
    if of.name != "sub" or of.args[1].name != "load":
        return None
    name = str(of.args[1].value)
    return name if maxima.get(name) is of.args[0] else None


def _squares_about_means(launch: KernelLaunch) -> dict[str, str]:
    """Sums of squares about a mean, by the buffer of the sum of the same values; nothing outside of
    the kernel reads that sum."""
    sums = {
        part.out.name: part
        for part in launch.placed
        if part.role == "reduce" and part.combine == "sum" and part.body.dtype == "float32"
    }
    pairs: dict[str, str] = {}
    for name, part in sums.items():
        mean = _squared_difference(part.body)
        total = _sum_of_mean(mean[1], launch.axes.length) if mean is not None else None
        if mean is None or total not in sums or total in launch.stored or total in pairs:
            continue
        if sums[total].body is mean[0]:
            pairs[total] = name
    return pairs


def with_followers(
    parts: Sequence[PlacedStage], followers: Mapping[str, Sequence[str]]
) -> list[PlacedStage]:
    """The stages, each followed directly by those that share its pass."""
    by_name = {part.out.name: part for part in parts}
    moved = {name for names in followers.values() for name in names}
    ordered: list[PlacedStage] = []
    for part in parts:
        if part.out.name not in moved:
            ordered += [part, *(by_name[name] for name in followers.get(part.out.name, ()))]
    return ordered


def _squared_difference(
    body: ElementExpression,
) -> tuple[ElementExpression, ElementExpression] | None:
    """For the square of a difference: its minuend and its subtrahend."""
    if body.name == "square":
        (difference,) = body.args
    elif body.name == "mul" and body.args[0] is body.args[1]:
        difference = body.args[0]
    else:
        return None
    return (difference.args[0], difference.args[1]) if difference.name == "sub" else None


def _sum_of_mean(mean: ElementExpression, terms: int) -> str | None:
    """The buffer of the sum that this mean of so many terms is computed from."""
    if mean.name not in ("mul", "div") or mean.args[0].name != "load":
        return None
    factor = mean.args[1]
    if factor.name != "literal" or isinstance(factor.value, str):
        return None
    right = 1 / terms if mean.name == "mul" else terms
    return str(mean.args[0].value) if isclose(factor.value, right, rel_tol=1e-12) else None


# lowest float32; unlike infinity, subtracting it from itself gives 0
LOWEST = -3.4028234663852886e38


def write_kernel(
    name: str, launch: KernelLaunch, buffers: Mapping[str, Buffer], values: Mapping[str, Value]
) -> KernelText:
    """The kernel of a launch. Raises NotWritten."""
    launch = without_repeated_reductions(launch)
    tile = tile_of(launch, values)
    written = WalkingKernel if tile.chunked else TritonKernel
    return written(name, launch, buffers, tile).written()


@dataclass
class WalkingKernel(TritonKernel):
    """Writes a kernel that reads long rows in chunks of columns, in one or more passes."""

    shared: SharedPasses = field(default_factory=SharedPasses)
    followers: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def written(self) -> KernelText:
        self.shared = shared_passes(self.launch)
        self.followers = self.shared.followers
        self._axes()
        placed = with_followers(self.launch.placed, self.followers)
        for phase in _phases(placed, self.made, self.shared.dependent_pairs):
            self._phase(phase)
        return self._finished()

    def _is_follower(self, name: str) -> bool:
        return any(name in names for names in self.followers.values())

    def _phase(self, phase: Sequence[PlacedStage]) -> None:
        """Write the stages of one pass along the rows, or a single stage of one element per row."""
        if len(phase) == 1 and phase[0].role == "row":
            self._stage(phase[0])
            return
        walked = self._walked(phase)
        if not walked:
            return
        totals = self._before_loop(walked)
        length, step = self.launch.axes.length, self.tile.columns
        with self._block(f"for first in range(0, {length}, {step}):"):
            self._columns("first", step)
            for part in walked:
                self._step(part, totals, part in phase)
        for part in walked:
            if part.out.name in self.shared.squares:
                self._welford_totals(part, totals)
            elif part.out.name in self.shared.powers:
                self._softmax_totals(part, totals)
            elif part.role == "reduce" and part.combine and part.out.name not in self.results:
                total = self._reduced(totals[part.out.name], part.combine, part.body.dtype)
                name = self._assign(total)
                self.results[part.out.name] = name
                self._store(part, name)

    def _step(self, part: PlacedStage, totals: Mapping[str, str], own: bool) -> None:
        """Write a stage's part of a loop body; `own` is false for a repeated scan."""
        name = part.out.name
        if part.role == "scan":
            self._scan(part, totals[name], stored=own)
        elif name in self.shared.squares:
            self._welford_update(part, totals)
        elif name in self.shared.powers:
            self._softmax_update(part, totals)
        elif part.combine is None:
            self._store(part, self._value(part.body))
        elif not self._is_follower(name):
            term = self._as_term(part, self._value(part.body), whole=False)
            combined = self._combined(totals[name], term, part.combine, part.body.dtype)
            self._line(f"{totals[name]} = {combined}")

    def _before_loop(self, walked: Sequence[PlacedStage]) -> dict[str, str]:
        """Write the code before a pass: values that are constant along it, and the initial
        accumulators, returned by buffer."""
        for part in walked:
            if not self._is_follower(part.out.name):
                self._hoisted(part.body)
        totals = {}
        for part in walked:
            if part.combine is not None:
                first = part.out.name in self.shared.powers
                least = LOWEST if first else neutral(part.combine, part.body.dtype)
                start = operators.number(least, part.body.dtype)
                kind = operators.TYPES[part.body.dtype]
                shape = list(self.reduced_shape if part.role == "scan" else self.shape)
                totals[part.out.name] = self._assign(f"tl.full({shape}, {start}, {kind})")
                if part.combine == "logaddexp":
                    self._line(f"{totals[part.out.name]}_powers = tl.zeros({shape}, {kind})")
        return totals

    def _welford_update(self, part: PlacedStage, totals: Mapping[str, str]) -> None:
        """Welford's update of the mean and of the squares about it, per element of the tile."""
        mean, squares = totals[part.out.name], totals[self.shared.squares[part.out.name]]
        value, mask = self._value(part.body), self.masks.get("c")
        if mask is not None:
            value = self._assign(f"tl.where({mask}, {value}, {mean})")
        apart = self._assign(f"{value} - {mean}")
        share = self._assign(f"1.0 / (first // {self.tile.columns} + 1)")
        self._line(f"{mean} += {apart} * {share}")
        self._line(f"{squares} += {apart} * ({value} - {mean})")

    def _welford_totals(self, part: PlacedStage, totals: Mapping[str, str]) -> None:
        """Combine the means and squares of all elements of the tile into a sum and a sum of
        squares."""
        length = self.launch.axes.length
        mean, squares = totals[part.out.name], totals[self.shared.squares[part.out.name]]
        counts = self._counts()
        total = self._assign(f"tl.sum({mean} * {counts}, {self.axis}, keep_dims=True)")
        spread = self._assign(f"{mean} - {total} * {1 / length!r}")
        whole = f"{squares} + {counts} * ({spread} * {spread})"
        self.results[part.out.name] = total
        name = self._assign(f"tl.sum({whole}, {self.axis}, keep_dims=True)")
        self.results[self.shared.squares[part.out.name]] = name
        self._store(self.made[self.shared.squares[part.out.name]], name)

    def _counts(self) -> str:
        """The number of row elements that each element of the tile has accumulated after a pass."""
        walks, rest = divmod(self.launch.axes.length, self.tile.columns)
        if not rest:
            return f"{walks}.0"
        # Elements beyond the end were masked in the last chunk.
        lanes = f"tl.arange(0, {self.tile.columns}){'[:, None]' if self.across else '[None, :]'}"
        return self._assign(f"tl.where({lanes} < {rest}, {walks + 1}.0, {walks}.0)")

    def _softmax_update(self, part: PlacedStage, totals: Mapping[str, str]) -> None:
        """Update the running maximum of each element of the tile, and rescale its sums to it."""
        most, powers = totals[part.out.name], totals[self.shared.powers[part.out.name]]
        value, mask = self._value(part.body), self.masks.get("c")
        if mask is not None:
            value = self._assign(f'tl.where({mask}, {value}, float("-inf"))')
        top = self._assign(self._combined(most, value, "max", part.body.dtype))
        self._line(f"{powers} = {powers} * tl.exp({most} - {top}) + tl.exp({value} - {top})")
        if part.out.name in self.shared.differences:
            differences = totals[self.shared.differences[part.out.name][0]]
            apart = f"{value} - {top}"
            if mask is not None:
                apart = f"tl.where({mask}, {apart}, 0.0)"
            # The difference to the initial maximum may overflow a float32.
            fall = f"tl.maximum({most} - {top}, {LOWEST})"
            moved = f"{fall} * (first // {self.tile.columns})"
            self._line(f"{differences} += {moved} + {apart}")
        self._line(f"{most} = {top}")

    def _softmax_totals(self, part: PlacedStage, totals: Mapping[str, str]) -> None:
        """Combine the maxima and sums of all elements of the tile into those of the row."""
        name = part.out.name
        most, powers = totals[name], totals[self.shared.powers[name]]
        top = self._assign(self._reduced(most, "max", part.body.dtype))
        total = self._assign(
            f"tl.sum({powers} * tl.exp({most} - {top}), {self.axis}, keep_dims=True)"
        )
        sums = {name: top, self.shared.powers[name]: total}
        self.results |= sums
        if name in self.shared.differences:
            second, terms = self.shared.differences[name]
            moved = f"({most} - {top}) * {self._counts()}"
            whole = self._assign(f"tl.sum({totals[second]} + {moved}, {self.axis}, keep_dims=True)")
            for sign, term in terms:
                added = f"{sign * self.launch.axes.length}.0 * {self._value(term)}"
                whole = self._assign(f"{whole} + {added}")
            sums[second] = whole
            self.results[second] = whole
        for out, value in sums.items():
            self._store(self.made[out], value)

    def _walked(self, phase: Sequence[PlacedStage]) -> list[PlacedStage]:
        """The stages that a pass computes for these, including scans of an earlier pass that are
        repeated."""
        stored = self.launch.stored
        walked = [p for p in phase if p.role == "reduce" or p.out.name in stored]
        needed = {name for part in walked for name in _needed(part, self.made)}
        walked = [p for p in phase if p in walked or (p.role == "scan" and p.out.name in needed)]
        every = self.launch.placed
        again = [p for p in every if p.role == "scan" and p.out.name in needed and p not in phase]
        return [*self._walked(again), *walked] if again else walked


def _phases(
    parts: Sequence[PlacedStage], made: Mapping[str, PlacedStage], pairs: Set[tuple[str, str]]
) -> list[list[PlacedStage]]:
    """Groups of stages that can share a pass along the rows: none depends on another of its group,
    except for `pairs`."""
    phases: list[list[PlacedStage]] = []
    walk: list[PlacedStage] = []
    for part in parts:
        needed = _needed(part, made)
        before = [p.out.name for p in walk if p.role == "reduce"]
        if part.role == "row" or any(
            name in needed and (name, part.out.name) not in pairs for name in before
        ):
            if walk:
                phases.append(walk)
            walk = []
        if part.role == "row":
            phases.append([part])
        else:
            walk.append(part)
    return [*phases, walk] if walk else phases


def _needed(part: PlacedStage, made: Mapping[str, PlacedStage]) -> set[str]:
    """The stages of the kernel that a stage depends on, also through values that are recomputed."""
    names: set[str] = set()
    for element in every_load(part.body):
        name = str(element.value)
        if name in made and name not in names:
            names.add(name)
            if made[name].role == "full":
                names |= _needed(made[name], made)
    return names
