"""Which stages become one kernel of a GPU, and what its axes are.

Every kernel has three axes: rows `p` and `q`, and between them `c`, which reductions run along. A
stage is placed by writing its own variables as functions of the axes. A later stage joins the
kernel of an earlier one where it reads what that one computed at the same place: such a value stays
in registers. Reductions with few results and many terms are made in two steps first, so that they
fill the device. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from optimizer.search.synthesizers.traced.expression import (
    FLOATS,
    ElementExpression,
    call,
    counted,
    literal,
    load,
)
from optimizer.search.synthesizers.traced.index import (
    Index,
    Read,
    Var,
    axis,
    flattened,
    index,
    read,
    rejoined,
    unflattened,
    variables,
)
from optimizer.search.synthesizers.traced.program import Buffer, Call, Combine, Program, Stage

FEW = 128  # results of a reduction, below which the device is not full
MANY = 1 << 14  # terms of one result, from which on a second step is worth its launch
PARTS = 1024  # results of the first of two steps, about
WINDOW = 128  # terms, at most, that one place adds up by itself
LEAST_TERMS = 512  # of the first step of a reduction that is parted between two dimensions
TWO_SIDED = 16  # places, at least, along each side of a tile that turns a tensor

Role = Literal["point", "row", "full", "reduce", "window", "scan"]
Part = Literal["p", "c", "q"]


@dataclass(frozen=True)
class Axes:
    """The lengths of the three axes."""

    outer: int
    length: int = 1
    inner: int = 1

    @property
    def p(self) -> Var:
        """The outer axis."""
        return Var("p", self.outer)

    @property
    def c(self) -> Var:
        """The axis of reductions."""
        return Var("c", self.length)

    @property
    def q(self) -> Var:
        """The inner axis."""
        return Var("q", self.inner)

    @property
    def row(self) -> Index:
        """The number of a row."""
        return flattened((axis(self.p), axis(self.q)), (self.outer, self.inner))

    @property
    def element(self) -> Index:
        """The place of an element in contiguous memory."""
        sizes = (self.outer, self.length, self.inner)
        return flattened((axis(self.p), axis(self.c), axis(self.q)), sizes)


@dataclass(frozen=True)
class Placed:
    """A stage over the axes: what it computes, and where in its buffer it puts that, in elements.
    The variables of `window` are loops of their own."""

    role: Role
    out: Buffer
    body: ElementExpression
    place: Index
    combine: Combine | None = None
    window: tuple[Var, ...] = ()


@dataclass(frozen=True)
class KernelLaunch:
    """One kernel. `stored` names the buffers that are written to memory."""

    axes: Axes
    placed: tuple[Placed, ...]
    stored: frozenset[str] = frozenset()


Step = tuple[KernelLaunch | Call, list[Stage]]  # with the stages of a kernel


def launches(program: Program) -> list[KernelLaunch | Call]:
    """The kernels and calls of a program, in order."""
    steps = _alive(_steps(program))
    read = _read_by(steps)
    made: list[Step] = []
    for step in steps:
        if isinstance(step, Call):
            made.append((step, []))
            continue
        at, joined = _home(made, step)
        if joined is None:
            made.append((_begun(step), [step]))
        else:
            made[at] = (joined, [*made[at][1], step])
    return [
        _with_stores(kernel, group, read) if isinstance(kernel, KernelLaunch) else kernel
        for kernel, group in made
    ]


def _home(made: Sequence[Step], stage: Stage) -> tuple[int, KernelLaunch | None]:
    """The kernel that a stage joins, by its place among those so far, and what it is then: the
    latest that can have it, with None where there is none. Only a stage whose result is small, or
    written in any case, goes further back than one step, and behind all that it reads."""
    reads = _sources(stage)
    for at in reversed(range(len(made))):
        kernel, group = made[at]
        if isinstance(kernel, KernelLaunch):
            joined = _joined(kernel, group, stage)
            if joined is not None:
                return at, joined
        written = {part.out.name for part in group}
        if isinstance(kernel, Call):
            written = {out.name for out in kernel.outs if out is not None}
        if reads & written or not (stage.reduced or stage.out.number is not None):
            break
    return len(made), None


# -- stages before they are placed


def _steps(program: Program) -> list[Stage | Call]:
    calls = list(program.calls)
    steps: list[Stage | Call] = []
    for number, stage in enumerate(program.stages):
        while calls and calls[0].after <= number:
            steps.append(calls.pop(0))
        steps += in_steps(without_ones(stage))
    return [*steps, *calls]


def _alive(steps: Sequence[Stage | Call]) -> list[Stage | Call]:
    """Without the stages that nothing reads."""
    kept: list[Stage | Call] = []
    wanted: set[str] = set()
    for step in reversed(steps):
        if isinstance(step, Stage):
            if step.out.number is None and step.out.name not in wanted:
                continue
            wanted |= _sources(step)
        else:
            wanted |= {view for view in read_of_call(step)}
        kept.append(step)
    return kept[::-1]


def _sources(stage: Stage) -> set[str]:
    return {str(element.value) for element in every_load(stage.body)}


def every_load(of: ElementExpression) -> list[ElementExpression]:
    """The elements that an expression reads, those that only say where another one lies too."""
    result: dict[ElementExpression, None] = {}
    waiting = [of]
    seen: set[int] = set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if part.name == "load":
            result[part] = None
        waiting += part.args
        waiting += (value for place in part.indices for value in read_in(place))
    return list(result)


def read_in(place: Index) -> Iterable[ElementExpression]:
    """The expressions that say where a place lies."""
    for atom, _ in place.terms:
        if isinstance(atom, Read):
            yield atom.value
        elif not isinstance(atom, Var):
            yield from read_in(atom.index)


def read_of_call(step: Call) -> set[str]:
    """The buffers that a call reads."""
    names: set[str] = set()
    waiting: list[object] = [step.args, [value for _, value in step.kwargs]]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list | tuple):
            waiting += part
        elif hasattr(part, "buffer"):
            names.add(str(part.buffer))
    return names


def without_ones(stage: Stage) -> Stage:
    """The stage without variables that have one value only."""
    ones = {v: Index() for v in (*stage.space, *stage.reduced) if v.extent == 1}
    if not ones:
        return stage
    space = tuple(v for v in stage.space if v.extent != 1)
    reduced = tuple(v for v in stage.reduced if v.extent != 1)
    shape = tuple(v.extent for v in space)
    out = replace(stage.out, shape=shape)  # as many elements, in the same order
    scanned = stage.scanned if stage.scanned in space else None
    combine = stage.combine if reduced or scanned else None
    return Stage(out, space, stage.body.substituted(ones), reduced, combine, scanned)


def dims_of(stage: Stage) -> list[Var]:
    """The variables of a reduction in the order of its tensor's dimensions."""
    return sorted((*stage.space, *stage.reduced), key=lambda v: int(v.name[1:]))


def is_window(stage: Stage) -> bool:
    """Whether neighbouring results have terms in common, or terms lie beside each other."""
    if not stage.reduced or prod(v.extent for v in stage.reduced) > WINDOW:
        return False
    own, others = frozenset(stage.reduced), frozenset(stage.space)
    parts = (part for element in stage.body.loads for part in element.indices)
    return any(variables(part) & own and variables(part) & others for part in parts)


def in_steps(stage: Stage) -> list[Stage]:
    """A reduction as one or several, each over neighbouring dimensions and with enough results."""
    if stage.combine is None or not stage.reduced or is_window(stage):
        return [stage]
    dims = dims_of(stage)
    runs = _runs([v in stage.reduced for v in dims])
    terms = prod(v.extent for v in stage.reduced)
    if len(runs) > 1:
        first, last = runs[-1]
        return _parted(stage, tuple(dims[first:last]))
    if (stage.space and prod(v.extent for v in stage.space) >= FEW) or terms < MANY:
        return [stage]
    inner = stage.reduced[1:]
    if inner and prod(v.extent for v in inner) >= LEAST_TERMS and stage.reduced[0].extent >= FEW:
        return _parted(stage, inner)
    return _cut(stage)


def _runs(marks: Sequence[bool]) -> list[tuple[int, int]]:
    """The stretches of neighbouring marks, from and up to."""
    runs: list[tuple[int, int]] = []
    for place, mark in enumerate(marks):
        if mark and runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        elif mark:
            runs.append((place, place + 1))
    return runs


def _parted(stage: Stage, inner: tuple[Var, ...]) -> list[Stage]:
    """First over the dimensions `inner`, then over the others."""
    space = tuple(v for v in dims_of(stage) if v not in inner)
    first = _partial(stage, space)
    outer = tuple(v for v in stage.reduced if v not in inner)
    body = load(first.name, tuple(map(index, space)), first.dtype)
    return [
        Stage(first, space, stage.body, inner, stage.combine),
        *in_steps(Stage(stage.out, stage.space, body, outer, stage.combine)),
    ]


def _cut(stage: Stage) -> list[Stage]:
    """First over stretches of the terms, then over the stretches."""
    terms = prod(v.extent for v in stage.reduced)
    results = prod(v.extent for v in stage.space)
    parts = max(2, min(PARTS // max(results, 1), terms // LEAST_TERMS))
    length = -(-terms // parts)
    length = -(-length // 128) * 128
    parts = -(-terms // length)
    number = max(int(v.name[1:]) for v in (*stage.space, *stage.reduced)) * 10
    part, step = Var(f"i{number + 1}", parts), Var(f"i{number + 2}", length)
    place = index(part) * length + index(step)
    body = stage.body
    combine = stage.combine or "sum"
    if parts * length > terms:
        inside = call("lt", (counted(place), literal(terms, "int64")), "bool")
        least = call("min", (counted(place), literal(terms - 1, "int64")), "int64")
        bounded = read(least, 0, terms - 1)
        values = dict(
            zip(stage.reduced, unflattened(bounded, _extents(stage.reduced)), strict=True)
        )
        other = literal(neutral(combine, body.dtype), body.dtype)
        body = call("where", (inside, body.substituted(values), other), body.dtype)
    else:
        values = dict(zip(stage.reduced, unflattened(place, _extents(stage.reduced)), strict=True))
        body = body.substituted(values)
    space = (*stage.space, part)
    first = _partial(stage, space)
    again = load(first.name, tuple(map(index, space)), first.dtype)
    return [
        Stage(first, space, body, (step,), combine),
        Stage(stage.out, stage.space, again, (part,), combine),
    ]


def _partial(stage: Stage, space: tuple[Var, ...]) -> Buffer:
    sizes = _extents(space)
    return Buffer(f"{stage.out.name}_of{prod(sizes)}", sizes, stage.body.dtype)


def _extents(of: Sequence[Var]) -> tuple[int, ...]:
    return tuple(v.extent for v in of)


def neutral(combine: Combine, dtype: str) -> float | int:
    """What changes nothing when it is combined."""
    if combine in ("sum", "prod"):
        return int(combine == "prod")
    sign = 1 if combine == "min" else -1
    if dtype in FLOATS:
        return sign * float("inf")
    return -(1 << 63) if combine == "max" else (1 << 63) - 1


# -- stages over axes


def axes_of(stage: Stage) -> Axes:
    """The axes of a kernel that begins with this stage."""
    results = prod(v.extent for v in stage.space)
    if stage.scanned is not None:
        before, (own,), after = _around(stage.space, stage.scanned)
        return Axes(prod(_extents(before)), own.extent, prod(_extents(after)))
    if stage.combine is None or not stage.reduced or is_window(stage):
        return Axes(results)
    dims = dims_of(stage)
    (first, last), *more = _runs([v in stage.reduced for v in dims])
    if more:
        return Axes(results, prod(_extents(stage.reduced)))
    return Axes(
        prod(_extents(dims[:first])), prod(_extents(dims[first:last])), prod(_extents(dims[last:]))
    )


def placed(stage: Stage, axes: Axes) -> Placed | None:
    """The stage over these axes; None where it does not fit them."""
    rows = axes.outer * axes.inner
    results = prod(v.extent for v in stage.space)
    if stage.scanned is not None:
        return _placed_scan(stage, axes, stage.scanned)
    if stage.combine is None or not stage.reduced or is_window(stage):
        return _placed_points(stage, axes, rows, results)
    if results != rows or prod(_extents(stage.reduced)) != axes.length:
        return None
    runs = _runs([v in stage.reduced for v in dims_of(stage)])
    if len(runs) != 1 or axes_of(stage) != axes:
        return None
    first, last = runs[0]
    dims = dims_of(stage)
    values = {
        **dict(zip(dims[:first], unflattened(axis(axes.p), _extents(dims[:first])), strict=True)),
        **_of_axis(dims[first:last], axis(axes.c)),
        **_of_axis(dims[last:], axis(axes.q)),
    }
    return _made("reduce", stage, values)


def _placed_scan(stage: Stage, axes: Axes, scanned: Var) -> Placed | None:
    if axes_of(stage) != axes:
        return None
    parts = zip(_around(stage.space, scanned), (axes.p, axes.c, axes.q), strict=True)
    values = {var: at for dims, own in parts for var, at in _of_axis(dims, axis(own)).items()}
    return _made("scan", stage, values)


def _around(space: Sequence[Var], scanned: Var) -> tuple[Sequence[Var], ...]:
    """The variables before one of them, itself, and those behind it."""
    at = space.index(scanned)
    return space[:at], space[at : at + 1], space[at + 1 :]


def _of_axis(dims: Sequence[Var], place: Index) -> dict[Var, Index]:
    return dict(zip(dims, unflattened(place, _extents(dims)), strict=True))


def _placed_points(stage: Stage, axes: Axes, rows: int, results: int) -> Placed | None:
    windowed = bool(stage.combine and stage.reduced)
    if results == rows and (axes.length == 1 or not windowed):
        role: Role = "window" if windowed else "point" if axes.length == 1 else "row"
        place = axes.row
    elif results == rows * axes.length and not windowed:
        role, place = "full", axes.element
    else:
        return None
    return _made(role, stage, _of_axis(stage.space, place))


def _made(role: Role, stage: Stage, values: dict[Var, Index]) -> Placed:
    place = flattened(tuple(values[v] for v in stage.space), _extents(stage.space))
    return Placed(
        role,
        stage.out,
        stage.body.substituted(values),
        rejoined(place),
        stage.combine if stage.reduced or role == "scan" else None,
        stage.reduced if role == "window" else (),
    )


# -- kernels


def _begun(stage: Stage) -> KernelLaunch:
    axes = axes_of(stage)
    part = placed(stage, axes)
    assert part is not None  # in_steps leaves only stages that fit their own axes
    return KernelLaunch(axes, (part,))


def _joined(launch: KernelLaunch, group: Sequence[Stage], stage: Stage) -> KernelLaunch | None:
    """The kernel with another stage; None where it cannot have it."""
    for axes in dict.fromkeys((launch.axes, axes_of(stage))):
        if axes != launch.axes and launch.axes.length != 1:
            continue
        if axes.length > 1 and axes.outer * axes.inner < 64 and axes.length > 1 << 15:
            continue
        every = [placed(part, axes) for part in (*group, stage)]
        if all(part is not None for part in every):
            whole = tuple(part for part in every if part is not None)
            if _in_place(whole):
                return KernelLaunch(axes, whole)
    return None


def _in_place(parts: Sequence[Placed]) -> bool:
    """Whether each stage reads what an earlier one of them computed at its very place only."""
    made: dict[str, Placed] = {}
    for part in parts:
        for element in every_load(part.body):
            source = made.get(str(element.value))
            if source is None:
                continue
            if part.role == "window" or place_of(element, source.out) != source.place:
                return False
            if source.role in ("full", "scan") and part.role == "row":
                return False
        made[part.out.name] = part
    return True


def place_of(element: ElementExpression, buffer: Buffer) -> Index:
    """Where an element lies in its buffer."""
    return rejoined(flattened(element.indices, buffer.shape))


def _read_by(steps: Sequence[Stage | Call]) -> dict[str, list[int]]:
    """The steps, by identity, that read each buffer."""
    read: dict[str, list[int]] = {}
    for step in steps:
        names = _sources(step) if isinstance(step, Stage) else read_of_call(step)
        for name in names:
            read.setdefault(name, []).append(id(step))
    return read


def _with_stores(
    launch: KernelLaunch, group: Sequence[Stage], read: dict[str, list[int]]
) -> KernelLaunch:
    own = {id(stage) for stage in group}
    stored = {
        part.out.name
        for part in launch.placed
        if part.out.number is not None or set(read.get(part.out.name, ())) - own
    }
    return replace(launch, stored=frozenset(stored))
