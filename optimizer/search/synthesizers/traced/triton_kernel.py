"""One launch as a Triton kernel: a tile of rows and of the places along them.

A row that fits stays in registers; a longer one is walked along in chunks, once for every reduction
that needs the one before it. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isclose, prod

from optimizer.search.records import Value
from optimizer.search.synthesizers.traced import triton_operators as operators
from optimizer.search.synthesizers.traced.expression import FLOATS, ElementExpression, renamed
from optimizer.search.synthesizers.traced.index import Index, Var, index_text, rejoined
from optimizer.search.synthesizers.traced.index import variables as variables_of
from optimizer.search.synthesizers.traced.launches import (
    KernelLaunch,
    Placed,
    every_load,
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
class KernelText:
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


def tile_of(launch: KernelLaunch, values: Mapping[str, Value]) -> Tile:
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


def _across(launch: KernelLaunch, row_block: int, resident: int, per_warp: int) -> Tile:
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
class TritonKernel:
    """Writes one kernel, line by line."""

    name: str
    launch: KernelLaunch
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

    def _hoisted(self, of: ElementExpression) -> None:
        """Write what does not change along a row before the loop."""
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
        """An argument: a number as it is, where another argument says what type it has."""
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


def _type(of: ElementExpression) -> str:
    return operators.TYPES[of.dtype]


# -- triton walks: A launch as a Triton kernel: with rows at hand, or, where they are too long to

# -- moments: Reductions of a kernel that need fewer walks along its rows: a sum that is there twi

Terms = tuple[tuple[int, ElementExpression], ...]  # with their signs


@dataclass(frozen=True)
class Together:
    """Reductions that one walk makes, by the buffer of the one that the others need."""

    squares: Mapping[str, str] = field(default_factory=dict)  # about the mean, by the sum
    powers: Mapping[str, str] = field(default_factory=dict)  # sums of exp(x - maximum)
    # Sums of x - maximum, with what is added to every term besides and does not change along a row.
    differences: Mapping[str, tuple[str, Terms]] = field(default_factory=dict)

    @property
    def followers(self) -> dict[str, tuple[str, ...]]:
        """The reductions that are made beside each first one."""
        result: dict[str, tuple[str, ...]] = {}
        for first, name in (*self.squares.items(), *self.powers.items()):
            result[first] = (name,)
        for first, (name, _) in self.differences.items():
            result[first] = (*result[first], name)
        return result

    @property
    def allowed(self) -> set[tuple[str, str]]:
        """Pairs of which the second may need the first and stand in the same walk."""
        return {
            (before, name)
            for first, names in self.followers.items()
            for number, name in enumerate(names)
            for before in (first, *names[:number])
        }


def together(launch: KernelLaunch) -> Together:
    """What a walk along the rows of this kernel makes together."""
    return Together(_squares_about_means(launch), *_softmax_sums(launch))


def without_twins(launch: KernelLaunch) -> KernelLaunch:
    """The kernel without reductions of the same values in the same way, but for the first of each
    and those that are stored."""
    first: dict[object, str] = {}
    names: dict[str, str] = {}
    kept: list[Placed] = []
    for part in launch.placed:
        part = replace(part, body=renamed(part.body, names))
        if part.role == "reduce":
            key = (part.body, part.combine, part.out.dtype, part.place)
            earlier = first.setdefault(key, part.out.name)
            if earlier != part.out.name and part.out.name not in launch.stored:
                names[part.out.name] = earlier
                continue
        kept.append(part)
    return replace(launch, placed=tuple(kept))


def _softmax_sums(launch: KernelLaunch) -> tuple[dict[str, str], dict[str, tuple[str, Terms]]]:
    """Sums of exp(x - maximum) by the buffer of the maximum of x, and sums of what is x - maximum
    but for terms that do not change along a row."""
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
    """The buffer of the maximum of x, where this is x - maximum."""
    if of.name != "sub" or of.args[1].name != "load":
        return None
    name = str(of.args[1].value)
    return name if maxima.get(name) is of.args[0] else None


def _squares_about_means(launch: KernelLaunch) -> dict[str, str]:
    """Sums of squares about a mean, by the buffer of the sum that the mean is of; each has the
    same values as that sum, which nothing outside of the kernel reads."""
    sums = {
        part.out.name: part
        for part in launch.placed
        if part.role == "reduce" and part.combine == "sum" and part.body.dtype == "float32"
    }
    pairs: dict[str, str] = {}
    for name, part in sums.items():
        mean = _about(part.body)
        total = _sum_of_mean(mean[1], launch.axes.length) if mean is not None else None
        if mean is None or total not in sums or total in launch.stored or total in pairs:
            continue
        if sums[total].body is mean[0]:
            pairs[total] = name
    return pairs


def beside(parts: Sequence[Placed], followers: Mapping[str, Sequence[str]]) -> list[Placed]:
    """The stages with those that are made beside another one right behind it."""
    by_name = {part.out.name: part for part in parts}
    moved = {name for names in followers.values() for name in names}
    ordered: list[Placed] = []
    for part in parts:
        if part.out.name not in moved:
            ordered += [part, *(by_name[name] for name in followers.get(part.out.name, ()))]
    return ordered


def _about(body: ElementExpression) -> tuple[ElementExpression, ElementExpression] | None:
    """The value and what is taken from it, of the square of a difference."""
    if body.name == "square":
        (difference,) = body.args
    elif body.name == "mul" and body.args[0] is body.args[1]:
        difference = body.args[0]
    else:
        return None
    return (difference.args[0], difference.args[1]) if difference.name == "sub" else None


def _sum_of_mean(mean: ElementExpression, terms: int) -> str | None:
    """The buffer that a mean of so many terms is computed from."""
    if mean.name not in ("mul", "div") or mean.args[0].name != "load":
        return None
    factor = mean.args[1]
    if factor.name != "literal" or isinstance(factor.value, str):
        return None
    right = 1 / terms if mean.name == "mul" else terms
    return str(mean.args[0].value) if isclose(factor.value, right, rel_tol=1e-12) else None


LEAST = -3.4028234663852886e38  # of float32; unlike infinity, it may be taken from itself


def write_kernel(
    name: str, launch: KernelLaunch, buffers: Mapping[str, Buffer], values: Mapping[str, Value]
) -> KernelText:
    """The kernel of a launch. Raises NotWritten."""
    launch = without_twins(launch)
    tile = tile_of(launch, values)
    written = WalkingKernel if tile.chunked else TritonKernel
    return written(name, launch, buffers, tile).written()


@dataclass
class WalkingKernel(TritonKernel):
    """Goes along the rows of a tile in chunks of columns."""

    together: Together = field(default_factory=Together)
    followers: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def written(self) -> KernelText:
        """The kernel."""
        self.together = together(self.launch)
        self.followers = self.together.followers
        self._axes()
        placed = beside(self.launch.placed, self.followers)
        for phase in _phases(placed, self.made, self.together.allowed):
            self._phase(phase)
        return self._finished()

    def _follows(self, name: str) -> bool:
        return any(name in names for names in self.followers.values())

    def _phase(self, phase: Sequence[Placed]) -> None:
        """Stages that one walk along the rows does; or one of the rows alone."""
        if len(phase) == 1 and phase[0].role == "row":
            self._stage(phase[0])
            return
        walked = self._walked(phase)
        if not walked:
            return
        totals = self._begun(walked)
        length, step = self.launch.axes.length, self.tile.columns
        with self._block(f"for first in range(0, {length}, {step}):"):
            self._columns("first", step)
            for part in walked:
                self._step(part, totals, part in phase)
        for part in walked:
            if part.out.name in self.together.squares:
                self._moments(part, totals)
            elif part.out.name in self.together.powers:
                self._softmax_totals(part, totals)
            elif part.role == "reduce" and part.combine and part.out.name not in self.results:
                total = self._reduced(totals[part.out.name], part.combine, part.body.dtype)
                name = self._assign(total)
                self.results[part.out.name] = name
                self._store(part, name)

    def _step(self, part: Placed, totals: Mapping[str, str], own: bool) -> None:
        """What one step of a walk does for a stage; `own` where it belongs to the walk."""
        name = part.out.name
        if part.role == "scan":
            self._scan(part, totals[name], stored=own)
        elif name in self.together.squares:
            self._update(part, totals)
        elif name in self.together.powers:
            self._softmax_update(part, totals)
        elif part.combine is None:
            self._store(part, self._value(part.body))
        elif not self._follows(name):
            term = self._as_term(part, self._value(part.body), whole=False)
            combined = self._combined(totals[name], term, part.combine, part.body.dtype)
            self._line(f"{totals[name]} = {combined}")

    def _begun(self, walked: Sequence[Placed]) -> dict[str, str]:
        """What is written before a walk: what does not change along it, and what its reductions
        and scans start with, by their buffers."""
        for part in walked:
            if not self._follows(part.out.name):
                self._hoisted(part.body)
        totals = {}
        for part in walked:
            if part.combine is not None:
                first = part.out.name in self.together.powers
                least = LEAST if first else neutral(part.combine, part.body.dtype)
                start = operators.number(least, part.body.dtype)
                kind = operators.TYPES[part.body.dtype]
                shape = list(self.ends if part.role == "scan" else self.shape)
                totals[part.out.name] = self._assign(f"tl.full({shape}, {start}, {kind})")
                if part.combine == "logaddexp":
                    self._line(f"{totals[part.out.name]}_powers = tl.zeros({shape}, {kind})")
        return totals

    def _update(self, part: Placed, totals: Mapping[str, str]) -> None:
        """Welford's update of the mean of each place of the tile, and of its squares about it."""
        mean, squares = totals[part.out.name], totals[self.together.squares[part.out.name]]
        value, mask = self._value(part.body), self.masks.get("c")
        if mask is not None:
            value = self._assign(f"tl.where({mask}, {value}, {mean})")
        apart = self._assign(f"{value} - {mean}")
        share = self._assign(f"1.0 / (first // {self.tile.columns} + 1)")
        self._line(f"{mean} += {apart} * {share}")
        self._line(f"{squares} += {apart} * ({value} - {mean})")

    def _moments(self, part: Placed, totals: Mapping[str, str]) -> None:
        """The sum and the sum of squares, of what each place of the tile has of them."""
        length = self.launch.axes.length
        mean, squares = totals[part.out.name], totals[self.together.squares[part.out.name]]
        counts = self._counts()
        total = self._assign(f"tl.sum({mean} * {counts}, {self.axis}, keep_dims=True)")
        spread = self._assign(f"{mean} - {total} * {1 / length!r}")
        whole = f"{squares} + {counts} * ({spread} * {spread})"
        self.results[part.out.name] = total
        name = self._assign(f"tl.sum({whole}, {self.axis}, keep_dims=True)")
        self.results[self.together.squares[part.out.name]] = name
        self._store(self.made[self.together.squares[part.out.name]], name)

    def _counts(self) -> str:
        """How many elements of a row each place of the tile has had after a walk."""
        walks, rest = divmod(self.launch.axes.length, self.tile.columns)
        if not rest:
            return f"{walks}.0"
        # Places behind the end took no part in the last step.
        lanes = f"tl.arange(0, {self.tile.columns}){'[:, None]' if self.across else '[None, :]'}"
        return self._assign(f"tl.where({lanes} < {rest}, {walks + 1}.0, {walks}.0)")

    def _softmax_update(self, part: Placed, totals: Mapping[str, str]) -> None:
        """The maximum of each place of the tile, and its sums about it, moved to a new maximum."""
        most, powers = totals[part.out.name], totals[self.together.powers[part.out.name]]
        value, mask = self._value(part.body), self.masks.get("c")
        if mask is not None:
            value = self._assign(f'tl.where({mask}, {value}, float("-inf"))')
        top = self._assign(self._combined(most, value, "max", part.body.dtype))
        self._line(f"{powers} = {powers} * tl.exp({most} - {top}) + tl.exp({value} - {top})")
        if part.out.name in self.together.differences:
            differences = totals[self.together.differences[part.out.name][0]]
            apart = f"{value} - {top}"
            if mask is not None:
                apart = f"tl.where({mask}, {apart}, 0.0)"
            # The first maximum may be too far below for a float32.
            fall = f"tl.maximum({most} - {top}, {LEAST})"
            moved = f"{fall} * (first // {self.tile.columns})"
            self._line(f"{differences} += {moved} + {apart}")
        self._line(f"{most} = {top}")

    def _softmax_totals(self, part: Placed, totals: Mapping[str, str]) -> None:
        """The maximum of a row and the sums about it, of those of each place of the tile."""
        name = part.out.name
        most, powers = totals[name], totals[self.together.powers[name]]
        top = self._assign(self._reduced(most, "max", part.body.dtype))
        total = self._assign(
            f"tl.sum({powers} * tl.exp({most} - {top}), {self.axis}, keep_dims=True)"
        )
        sums = {name: top, self.together.powers[name]: total}
        self.results |= sums
        if name in self.together.differences:
            second, terms = self.together.differences[name]
            moved = f"({most} - {top}) * {self._counts()}"
            whole = self._assign(f"tl.sum({totals[second]} + {moved}, {self.axis}, keep_dims=True)")
            for sign, term in terms:
                added = f"{sign * self.launch.axes.length}.0 * {self._value(term)}"
                whole = self._assign(f"{whole} + {added}")
            sums[second] = whole
            self.results[second] = whole
        for out, value in sums.items():
            self._store(self.made[out], value)

    def _walked(self, phase: Sequence[Placed]) -> list[Placed]:
        """What a walk computes for these stages: a scan of an earlier walk once more."""
        stored = self.launch.stored
        walked = [p for p in phase if p.role == "reduce" or p.out.name in stored]
        needed = {name for part in walked for name in _needed(part, self.made)}
        walked = [p for p in phase if p in walked or (p.role == "scan" and p.out.name in needed)]
        every = self.launch.placed
        again = [p for p in every if p.role == "scan" and p.out.name in needed and p not in phase]
        return [*self._walked(again), *walked] if again else walked


def _phases(
    parts: Sequence[Placed], made: Mapping[str, Placed], pairs: Set[tuple[str, str]]
) -> list[list[Placed]]:
    """Stages that can share a walk along the rows: none of them needs the result of another, but
    in one of the pairs."""
    phases: list[list[Placed]] = []
    walk: list[Placed] = []
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


def _needed(part: Placed, made: Mapping[str, Placed]) -> set[str]:
    """The stages of the kernel that a stage needs, those behind values that it computes again
    included."""
    names: set[str] = set()
    for element in every_load(part.body):
        name = str(element.value)
        if name in made and name not in names:
            names.add(name)
            if made[name].role == "full":
                names |= _needed(made[name], made)
    return names
