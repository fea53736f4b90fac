"""Which stages share a loop: rows that are at hand are worked on to the end before the next ones.

Stages of a nest run over the same outer variables. What one of them keeps for the others of its
nest is then as small as one turn of the outer loop, and stays in the cache or in a register.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from optimizer.search.synthesizers.traced.index import Index, Var, index
from optimizer.search.synthesizers.traced.launches import every_load, read_in
from optimizer.search.synthesizers.traced.program import Program, Stage

MOST_LOCAL = 1 << 18  # elements of a buffer that a thread keeps for a turn of the outer loop
LEAST_TURNS = 8  # of an outer loop that is shared by threads


@dataclass
class Nest:
    """Stages with the same `depth` outer sizes. `local` names the buffers that only this nest
    reads."""

    stages: list[Stage]
    depth: int
    local: set[str] = field(default_factory=set)

    @property
    def outer(self) -> tuple[int, ...]:
        """The sizes of the shared loops."""
        return tuple(v.extent for v in self.stages[0].space[: self.depth])

    @property
    def work(self) -> int:
        """Computed elements of all stages."""
        return sum(stage.work for stage in self.stages)


def nests(program: Program) -> list[Nest]:
    """The stages in their order, joined where that keeps data close."""
    made: list[Nest] = []
    for stage in program.stages:
        depth = _joined(made[-1], stage) if made else 0
        if depth:
            made[-1].stages.append(stage)
            made[-1].depth = depth
        else:
            made.append(Nest([stage], _deepest(stage)))
    for nest in made:
        nest.local = _local(nest, made)
    return made


def _joined(nest: Nest, stage: Stage) -> int:
    """How many outer loops the stage can share with the nest; 0 where it should not."""
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
    if not depth or prod(sizes[:depth]) < LEAST_TURNS:
        return 0
    kept = [s.out for s in nest.stages if s.out.number is None]
    return depth if all(prod(b.shape[depth:]) <= MOST_LOCAL for b in kept) else 0


def _deepest(stage: Stage) -> int:
    """How many outer loops may be shared: those outside of the lane, and of a scan; none where
    places of the result are read from a tensor."""
    if stage.order or stage.at is not None:
        return 0
    inside = [v for v in (lane_of(stage), stage.scanned) if v in stage.space]
    return min(map(stage.space.index, inside), default=len(stage.space))


def lane_of(stage: Stage) -> Var | None:
    """The variable whose turns are done side by side: the one by which most of what is read and
    written lies next to each other; None where there is no loop at all."""
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
    """By how much the place moves with the variable, where the last index alone has it at 1."""
    if not indices:
        return 0
    last = indices[-1].factor(variable)
    elsewhere = any(part.factor(variable) != 0 for part in indices[:-1])
    return None if elsewhere else last


def _local(nest: Nest, made: list[Nest]) -> set[str]:
    others = {name for other in made if other is not nest for name in _touched(other)}
    own = [stage.out for stage in nest.stages if stage.out.number is None]
    return {buffer.name for buffer in own if buffer.name not in others and nest.depth}


def _touched(nest: Nest) -> Iterator[str]:
    """The buffers that stages read, or put something into that another has filled."""
    for stage in nest.stages:
        reads = [stage.body, *(part for place in stage.at or () for part in read_in(place))]
        yield from (str(load.value) for of in reads for load in every_load(of))
        if stage.at is not None:
            yield stage.out.name
