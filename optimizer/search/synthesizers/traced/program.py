"""A lowered graph: buffers, and the stages that fill them one after another.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from optimizer.search.synthesizers.traced.expression import ElementExpression
from optimizer.search.synthesizers.traced.index import Index, Var

Combine = Literal["sum", "prod", "max", "min", "logaddexp"]  # the last in scans alone


class NotWritten(Exception):
    """What has no form in a language. The message names it."""


@dataclass(frozen=True)
class Buffer:
    """A contiguous array. `number` is its place among the tensors of the interface, None for one
    that the kernel keeps itself. `pitch` is how many elements lie from one row of the last
    dimension to the next, 0 for as many as a row has. `hidden` is the path of a buffer of the Model
    that is in no state_dict, and not in the interface; `values` are its elements where they are few
    enough to be written into a kernel."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    number: int | None = None
    pitch: int = 0
    hidden: str = ""
    values: tuple[float, ...] = ()

    @property
    def laid(self) -> tuple[int, ...]:
        """The shape with what lies between its rows."""
        return (*self.shape[:-1], self.pitch) if self.pitch else self.shape

    @property
    def elements(self) -> int:
        """The number of elements; 1 for an array without dimensions."""
        return prod(self.shape)


@dataclass(frozen=True)
class Order:
    """The places along a variable in the order of what stands there: equal elements as they stand,
    NaN as the greatest. Only the `first` places are needed."""

    along: Var
    descending: bool
    first: int


@dataclass(frozen=True)
class Stage:
    """Fills `out`: for every place of `space`, `body`, or, where `combine` is set, all values of
    `body` over `reduced` combined. With `scanned`, a variable of `space`, every place gets what
    `body` is there combined with what it is at all smaller values of that variable. With `order`,
    `out` holds places. With `at`, `body` is put, in turn, at these places of `out`, which an
    earlier stage has filled, or combined with what is there."""

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
        """How many times the body is computed."""
        return prod(v.extent for v in (*self.space, *self.reduced))


@dataclass(frozen=True)
class View:
    """Places of a buffer as a tensor: `strides` and `offset` in elements."""

    buffer: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Call:
    """An operator that is left to torch: `operator` as torch.ops names it, arguments as plain
    values with Views in place of tensors. Its results fill `outs`, in order; None for one that
    nothing reads. `after` is how many stages come before it."""

    operator: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outs: tuple[Buffer | None, ...]
    after: int


@dataclass(frozen=True)
class Program:
    """The stages for one case, in the order of computation; `buffers` by name. `calls` are there
    only where a program was lowered with operators left to torch."""

    buffers: dict[str, Buffer]
    stages: tuple[Stage, ...]
    calls: tuple[Call, ...] = ()
