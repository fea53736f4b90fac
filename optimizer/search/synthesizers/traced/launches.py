"""Assigns stages to GPU kernels and lays out the axes of each kernel.

Every kernel has three axes: rows `p` and `q`, and between them `c`, along which reductions run. A
stage is placed by writing its variables as functions of the axes. A later stage joins the kernel of
an earlier one if it reads the earlier one's results at the same position only: such values stay in
registers. Reductions with few results and many terms are split into two steps first, so that they
fill the device. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from optimizer.search.synthesizers.traced.expression import (
    FLOATS,
    Buffer,
    Call,
    Combine,
    ElementExpression,
    Program,
    Stage,
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

MIN_RESULTS = 128  # results of a reduction; fewer do not fill the device
MIN_TERMS_TO_SPLIT = 1 << 14  # terms of one result; from here on a second step is worth its launch
SPLIT_RESULTS = 1024  # approximate number of results of the first of two steps
MAX_WINDOW = 128  # most terms of a reduction over a window, which one thread adds up
# least terms of the first step of a reduction that is split between two dimensions
MIN_FIRST_TERMS = 512

Role = Literal["point", "row", "full", "reduce", "window", "scan"]


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
        return flattened((axis(self.p), axis(self.q)), (self.outer, self.inner))

    @property
    def element(self) -> Index:
        """The position of an element in contiguous memory."""
        sizes = (self.outer, self.length, self.inner)
        return flattened((axis(self.p), axis(self.c), axis(self.q)), sizes)


@dataclass(frozen=True)
class PlacedStage:
    """A stage over the axes: its role, its expression, and the position of its result in the
    buffer, in elements. `window` holds variables with loops inside the kernel."""

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
    placed: tuple[PlacedStage, ...]
    stored: frozenset[str] = frozenset()


Step = tuple[KernelLaunch | Call, list[Stage]]  # a kernel comes with its stages


def launches(program: Program) -> list[KernelLaunch | Call]:
    """The kernels and calls of a program, in order."""
    steps = _without_unread(_steps(program))
    read = _read_by(steps)
    kernels: list[Step] = []
    for step in steps:
        if isinstance(step, Call):
            kernels.append((step, []))
            continue
        at, joined = _kernel_for(kernels, step)
        if joined is None:
            kernels.append((_new_kernel(step), [step]))
        else:
            kernels[at] = (joined, [*kernels[at][1], step])
    return [
        _with_stores(kernel, group, read) if isinstance(kernel, KernelLaunch) else kernel
        for kernel, group in kernels
    ]


def _kernel_for(kernels: Sequence[Step], stage: Stage) -> tuple[int, KernelLaunch | None]:
    """The position in `kernels` of the kernel that a stage joins, and this kernel with the stage;
    the latest one possible. If no kernel fits, the position is that of a new kernel, and None its
    kernel. Only a stage that reduces or writes an output may join an earlier kernel than the last,
    and none before a step that writes one of its sources."""
    reads = _sources(stage)
    for at in reversed(range(len(kernels))):
        kernel, group = kernels[at]
        if isinstance(kernel, KernelLaunch):
            joined = _extended(kernel, group, stage)
            if joined is not None:
                return at, joined
        written = {part.out.name for part in group}
        if isinstance(kernel, Call):
            written = {out.name for out in kernel.outs if out is not None}
        if reads & written or not (stage.reduced or stage.out.number is not None):
            break
    return len(kernels), None


# -- stages before they are placed


def _steps(program: Program) -> list[Stage | Call]:
    calls = list(program.calls)
    steps: list[Stage | Call] = []
    for number, stage in enumerate(program.stages):
        while calls and calls[0].after <= number:
            steps.append(calls.pop(0))
        steps += in_steps(without_unit_variables(stage))
    return [*steps, *calls]


def _without_unread(steps: Sequence[Stage | Call]) -> list[Stage | Call]:
    """The steps without stages whose results are never read."""
    live: list[Stage | Call] = []
    wanted: set[str] = set()
    for step in reversed(steps):
        if isinstance(step, Stage):
            if step.out.number is None and step.out.name not in wanted:
                continue
            wanted |= _sources(step)
        else:
            wanted |= {view for view in buffers_read(step)}
        live.append(step)
    return live[::-1]


def _sources(stage: Stage) -> set[str]:
    return {str(element.value) for element in every_load(stage.body)}


def every_load(of: ElementExpression) -> list[ElementExpression]:
    """All loads of an expression, including those inside of indices."""
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
        waiting += (value for place in part.indices for value in expressions_in(place))
    return list(result)


def expressions_in(place: Index) -> Iterable[ElementExpression]:
    for atom, _ in place.terms:
        if isinstance(atom, Read):
            yield atom.value
        elif not isinstance(atom, Var):
            yield from expressions_in(atom.index)


def buffers_read(step: Call) -> set[str]:
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


def without_unit_variables(stage: Stage) -> Stage:
    """The stage without variables of extent 1."""
    ones = {v: Index() for v in (*stage.space, *stage.reduced) if v.extent == 1}
    if not ones:
        return stage
    space = tuple(v for v in stage.space if v.extent != 1)
    reduced = tuple(v for v in stage.reduced if v.extent != 1)
    shape = tuple(v.extent for v in space)
    out = replace(stage.out, shape=shape)  # same elements in the same order
    scanned = stage.scanned if stage.scanned in space else None
    combine = stage.combine if reduced or scanned else None
    return Stage(out, space, stage.body.substituted(ones), reduced, combine, scanned)


def dims_of(stage: Stage) -> list[Var]:
    """The variables of a reduction in the order of the tensor's dimensions."""
    return sorted((*stage.space, *stage.reduced), key=lambda v: int(v.name[1:]))


def is_window(stage: Stage) -> bool:
    """Whether it is a short reduction whose neighbouring results share terms, such as a pooling
    window."""
    if not stage.reduced or prod(v.extent for v in stage.reduced) > MAX_WINDOW:
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
        return _split_by_dimension(stage, tuple(dims[first:last]))
    if (
        stage.space and prod(v.extent for v in stage.space) >= MIN_RESULTS
    ) or terms < MIN_TERMS_TO_SPLIT:
        return [stage]
    inner = stage.reduced[1:]
    if (
        inner
        and prod(v.extent for v in inner) >= MIN_FIRST_TERMS
        and stage.reduced[0].extent >= MIN_RESULTS
    ):
        return _split_by_dimension(stage, inner)
    return _split_evenly(stage)


def _runs(marks: Sequence[bool]) -> list[tuple[int, int]]:
    """Start and end of each run of true marks."""
    runs: list[tuple[int, int]] = []
    for place, mark in enumerate(marks):
        if mark and runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        elif mark:
            runs.append((place, place + 1))
    return runs


def _split_by_dimension(stage: Stage, inner: tuple[Var, ...]) -> list[Stage]:
    """Split a reduction: first over the dimensions `inner`, then over the others."""
    space = tuple(v for v in dims_of(stage) if v not in inner)
    first = _partial(stage, space)
    outer = tuple(v for v in stage.reduced if v not in inner)
    body = load(first.name, tuple(map(index, space)), first.dtype)
    return [
        Stage(first, space, stage.body, inner, stage.combine),
        *in_steps(Stage(stage.out, stage.space, body, outer, stage.combine)),
    ]


def _split_evenly(stage: Stage) -> list[Stage]:
    """Split a reduction: first over runs of consecutive terms, then over the runs."""
    terms = prod(v.extent for v in stage.reduced)
    results = prod(v.extent for v in stage.space)
    parts = max(2, min(SPLIT_RESULTS // max(results, 1), terms // MIN_FIRST_TERMS))
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
    """The neutral element of a combination."""
    if combine in ("sum", "prod"):
        return int(combine == "prod")
    sign = 1 if combine == "min" else -1
    if dtype in FLOATS:
        return sign * float("inf")
    return -(1 << 63) if combine == "max" else (1 << 63) - 1


# -- placing stages on axes


def axes_of(stage: Stage) -> Axes:
    """The axes of a kernel whose first stage is this one."""
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


def placed(stage: Stage, axes: Axes) -> PlacedStage | None:
    """The stage on these axes; None if it does not fit them."""
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
    return _placed_at("reduce", stage, values)


def _placed_scan(stage: Stage, axes: Axes, scanned: Var) -> PlacedStage | None:
    if axes_of(stage) != axes:
        return None
    parts = zip(_around(stage.space, scanned), (axes.p, axes.c, axes.q), strict=True)
    values = {var: at for dims, own in parts for var, at in _of_axis(dims, axis(own)).items()}
    return _placed_at("scan", stage, values)


def _around(space: Sequence[Var], scanned: Var) -> tuple[Sequence[Var], ...]:
    """The variables before `scanned`, itself, and those after it."""
    at = space.index(scanned)
    return space[:at], space[at : at + 1], space[at + 1 :]


def _of_axis(dims: Sequence[Var], place: Index) -> dict[Var, Index]:
    return dict(zip(dims, unflattened(place, _extents(dims)), strict=True))


def _placed_points(stage: Stage, axes: Axes, rows: int, results: int) -> PlacedStage | None:
    windowed = bool(stage.combine and stage.reduced)
    if results == rows and (axes.length == 1 or not windowed):
        role: Role = "window" if windowed else "point" if axes.length == 1 else "row"
        place = axes.row
    elif results == rows * axes.length and not windowed:
        role, place = "full", axes.element
    else:
        return None
    return _placed_at(role, stage, _of_axis(stage.space, place))


def _placed_at(role: Role, stage: Stage, values: dict[Var, Index]) -> PlacedStage:
    place = flattened(tuple(values[v] for v in stage.space), _extents(stage.space))
    return PlacedStage(
        role,
        stage.out,
        stage.body.substituted(values),
        rejoined(place),
        stage.combine if stage.reduced or role == "scan" else None,
        stage.reduced if role == "window" else (),
    )


# -- kernels


def _new_kernel(stage: Stage) -> KernelLaunch:
    axes = axes_of(stage)
    part = placed(stage, axes)
    assert part is not None  # in_steps leaves only stages that fit their own axes
    return KernelLaunch(axes, (part,))


def _extended(launch: KernelLaunch, group: Sequence[Stage], stage: Stage) -> KernelLaunch | None:
    """The kernel extended by a stage; None if they do not fit together."""
    for axes in dict.fromkeys((launch.axes, axes_of(stage))):
        if axes != launch.axes and launch.axes.length != 1:
            continue
        if axes.length > 1 and axes.outer * axes.inner < 64 and axes.length > 1 << 15:
            continue
        every = [placed(part, axes) for part in (*group, stage)]
        if all(part is not None for part in every):
            whole = tuple(part for part in every if part is not None)
            if _reads_own_position(whole):
                return KernelLaunch(axes, whole)
    return None


def _reads_own_position(parts: Sequence[PlacedStage]) -> bool:
    """Whether each stage reads earlier results of the same kernel at its own position only."""
    earlier: dict[str, PlacedStage] = {}
    for part in parts:
        for element in every_load(part.body):
            source = earlier.get(str(element.value))
            if source is None:
                continue
            if part.role == "window" or place_of(element, source.out) != source.place:
                return False
            if source.role in ("full", "scan") and part.role == "row":
                return False
        earlier[part.out.name] = part
    return True


def place_of(element: ElementExpression, buffer: Buffer) -> Index:
    return rejoined(flattened(element.indices, buffer.shape))


def _read_by(steps: Sequence[Stage | Call]) -> dict[str, list[int]]:
    """The steps that read each buffer, by `id`."""
    read: dict[str, list[int]] = {}
    for step in steps:
        names = _sources(step) if isinstance(step, Stage) else buffers_read(step)
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
