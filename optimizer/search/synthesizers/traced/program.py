"""A lowered graph: buffers, and the stages that fill them one after another.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from optimizer.search.synthesizers.traced.expression import ElementExpression
from optimizer.search.synthesizers.traced.index import Index, Var

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
        """The number of elements."""
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
