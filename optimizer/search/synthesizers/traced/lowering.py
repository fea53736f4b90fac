"""Lowers a graph of primitive operators to stages: each operator becomes a function from indices to
an expression, so that a view is index arithmetic only.

A value is recomputed at each use, with two exceptions that are stored in a buffer: reductions, and
values that are used more than once and are expensive to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from optimizer.evaluation.abi import Signature
from optimizer.search.synthesizers.traced.expression import (
    Buffer,
    Call,
    Combine,
    ElementExpression,
    Order,
    Program,
    Stage,
    View,
    call,
    cast,
    computed_in,
    forget,
    literal,
    load,
)
from optimizer.search.synthesizers.traced.graph import ATTENTION
from optimizer.search.synthesizers.traced.index import Index, Var, flattened, index, rejoined

Places = tuple[Index, ...]
MAX_TABLE = 16_384  # most elements of a buffer that are written into the source as a table
EXPENSIVE = 10  # cost in additions from which a value that is used twice is stored
MAX_COST = 200  # cost in additions from which a value is stored in any case


class NotLowered(Exception):
    """An operator, or a form of it, that cannot be lowered. The message names it."""


@dataclass
class Value:
    """A tensor as a function from indices to an expression; `at` caches the results."""

    shape: tuple[int, ...]
    dtype: str
    function: Callable[[Places], ElementExpression]
    known: dict[Places, ElementExpression] = field(default_factory=dict)

    def at(self, places: Places) -> ElementExpression:
        if places not in self.known:
            self.known[places] = cast(self.function(places), self.dtype)
        return self.known[places]


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operator in a graph: its arguments, and shape and dtype of its result."""

    lowering: Lowering
    node: fx.Node

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return shape_and_dtype(self.node)[0]

    @cached_property
    def dtype(self) -> str:
        return shape_and_dtype(self.node)[1]

    def tensor(self, place: int = 0) -> Value:
        """An argument that is a tensor. Raises NotLowered for anything else."""
        value = self.argument(place)
        if not isinstance(value, Value):
            raise NotLowered(f"{self.node.target} of a number")
        return value

    def argument(self, place: int, name: str = "", default: Any = None) -> Any:
        """An argument by position or name, as lowered values and plain numbers."""
        args, kwargs = self.node.args, self.node.kwargs
        return self.lowering.plain(args[place] if place < len(args) else kwargs.get(name, default))

    def result(self, at: Callable[[Places], ElementExpression]) -> Value:
        return Value(self.shape, self.dtype, at)


Rule = Callable[[OperatorCall], Value | tuple[Value, ...]]


RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the decorated function as the lowering of the operators with these names."""

    def register(function: Rule) -> Rule:
        RULES.update({name: function for name in names})
        return function

    return register


class Lowering:
    """The graph of one case, node by node."""

    def __init__(
        self,
        graph: fx.Graph,
        signature: Signature,
        operators: Mapping[str, Rule],
        library: frozenset[str] | None = None,
        hidden: Mapping[str, torch.Tensor | None] | None = None,
    ) -> None:
        """`operators` maps the name of an operator to the function that lowers its nodes. With
        `library`, the operators that it names and those that cannot be lowered are left to torch,
        and stored values have the dtypes that torch would give them. `hidden` maps the Model's path
        of each of the graph's last placeholders to its elements, or to None if a kernel may not
        contain these."""
        self._graph = graph
        self._operators = operators
        self._signature = signature
        self.buffers: dict[str, Buffer] = {}
        self.stages: list[Stage] = []
        self.calls: list[Call] = []
        self._library = library
        self._hidden = dict(hidden or {})
        self._values: dict[fx.Node, Value | tuple[Value, ...]] = {}
        self._counter = 0

    def program(self) -> Program:
        """The stages. Raises NotLowered."""
        forget()
        if _views_only(self._graph):
            raise NotLowered("nothing is computed, its results are views of its inputs")
        given = self._signature.of("input", "parameter", "buffer")
        nodes = [node for node in self._graph.nodes if node.op == "placeholder"]
        for number, (node, spec) in enumerate(zip(nodes, given, strict=False)):
            buffer = self._buffer(f"in{number}", spec.shape, spec.dtype, number)
            self._values[node] = buffer_value(buffer)
        for node, path in zip(nodes[len(given) :], self._hidden, strict=True):
            if node.users:
                self._values[node] = buffer_value(self._hidden_buffer(node, path))
        for node in self._graph.nodes:
            if node.op == "call_function":
                value = self._lowered(node)
                if isinstance(value, Value) and self._is_materialized(node, value):
                    value = self.materialized(value)
                self._values[node] = value
            elif node.op == "get_attr":
                self._values[node] = self._constant(node)
        self._outputs()
        return Program(self.buffers, tuple(self.stages), tuple(self.calls))

    def _hidden_buffer(self, node: fx.Node, path: str) -> Buffer:
        """A buffer of the Model that the interface does not pass."""
        shape, dtype = shape_and_dtype(node)
        buffer = self._buffer(f"hidden{list(self._hidden).index(path)}", shape, dtype, None)
        held, values = self._hidden[path], ()
        if held is not None and buffer.elements <= MAX_TABLE:
            values = tuple(held.to(getattr(torch, dtype)).flatten().tolist())
        self.buffers[buffer.name] = replace(buffer, hidden=path, values=values)
        return self.buffers[buffer.name]

    def _constant(self, node: fx.Node) -> Value:
        """A tensor that forward makes of a number. Raises NotLowered for larger tensors."""
        held = getattr(self._graph.owning_module, str(node.target), None)
        if not isinstance(held, torch.Tensor) or held.numel() != 1 or isinstance(held, FakeTensor):
            raise NotLowered("a tensor that the Model keeps outside its state")
        return broadcast(held.item(), tuple(held.shape), str(held.dtype).removeprefix("torch."))

    def _outputs(self) -> None:
        (returned,) = next(n for n in self._graph.nodes if n.op == "output").args
        nodes = list(returned.values()) if isinstance(returned, dict) else returned
        nodes = list(nodes) if isinstance(nodes, tuple | list) else [nodes]
        specs = self._signature.of("output")
        first = len(self._signature.tensors) - len(specs)
        if len(nodes) != len(specs):
            raise NotLowered("outputs in a form that is not supported")
        for number, (node, spec) in enumerate(zip(nodes, specs, strict=True)):
            value = self._values[node]
            assert isinstance(value, Value)
            if value.shape != spec.shape:
                raise NotLowered("an output of another shape than the case says")
            buffer = self._buffer(f"out{number}", spec.shape, spec.dtype, first + number)
            space = self.variables(spec.shape)
            self.stages.append(Stage(buffer, space, value.at(tuple(map(index, space)))))

    @property
    def leaves_to_torch(self) -> bool:
        """Whether an operator may be left to torch."""
        return self._library is not None

    # -- buffers and variables

    def variables(self, shape: Sequence[int]) -> tuple[Var, ...]:
        """New loop variables for a shape."""
        self._counter += len(shape)
        first = self._counter - len(shape)
        return tuple(Var(f"i{first + n}", size) for n, size in enumerate(shape))

    def materialized(self, value: Value) -> Value:
        """The value, computed once into a buffer without its dimensions of size 1."""
        space = self.variables([size for size in value.shape if size != 1])
        inner = iter(space)
        places = tuple(index(next(inner)) if size != 1 else Index() for size in value.shape)
        exact = self._library is not None
        return self.stage(value.at(places), space, value.shape, value.dtype, exact=exact)

    def stage(
        self,
        body: ElementExpression,
        space: tuple[Var, ...],
        shape: tuple[int, ...],
        dtype: str,
        reduced: tuple[Var, ...] = (),
        combine: Combine | None = None,
        exact: bool = False,
        scanned: Var | None = None,
        order: Order | None = None,
    ) -> Value:
        """Append a stage whose buffer has the shape of `space`, and read it as a value of `shape`,
        which may have further dimensions of size 1. `exact` stores `dtype` itself, not the dtype
        that it is computed in."""
        sizes = tuple(v.extent for v in space)
        kind = dtype if exact else computed_in(dtype)
        buffer = self._buffer(self._buffer_name(), sizes, kind, None)
        name = buffer.name
        self.stages.append(Stage(buffer, space, body, reduced, combine, scanned, order))

        def at(places: Places) -> ElementExpression:
            inner = tuple(p for p, size in zip(places, shape, strict=True) if size != 1)
            return load(name, inner, buffer.dtype)

        return Value(shape, computed_in(dtype), at)

    def _buffer_name(self) -> str:
        return f"kept{sum(b.number is None for b in self.buffers.values())}"

    def _buffer(self, name: str, shape: Sequence[int], dtype: str, number: int | None) -> Buffer:
        if dtype.startswith("complex"):
            raise NotLowered("complex numbers")
        buffer = Buffer(name, tuple(shape), dtype, number)
        self.buffers[name] = buffer
        return buffer

    def _is_materialized(self, node: fx.Node, value: Value) -> bool:
        if not value.shape or 0 in value.shape:
            return False
        body = value.at(tuple(map(index, self.variables(value.shape))))
        if body.name in ("load", "literal"):
            return False
        if body.cost >= MAX_COST or len(node.users) < 2:
            return body.cost >= MAX_COST
        # torch reads arguments from memory in any case. Other users compute subexpressions that are
        # constant along a row, such as the logarithm in a log-softmax, once per row.
        handed = self._library is not None and any(
            user.op == "call_function" and _functional(user) in self._library for user in node.users
        )
        return (body.cost if handed else body.inner_cost) >= EXPENSIVE

    # -- operators

    def _lowered(self, node: fx.Node) -> Value | tuple[Value, ...]:
        name = _functional(node)
        if self._library is not None and name in self._library:
            return self._left_to_torch(node)
        try:
            if name not in self._operators:
                raise NotLowered(name)
            return self._operators[name](OperatorCall(self, node))
        except NotLowered:
            if self._library is None:
                raise
            return self._left_to_torch(node)

    # -- operators that torch computes

    def _left_to_torch(self, node: fx.Node) -> Value | tuple[Value, ...]:
        """A call of torch's operator. Raises NotLowered if it cannot be called by itself."""
        name, target = str(node.target), node.target
        if not isinstance(target, torch._ops.OpOverload) or name.endswith("_for_cpu"):
            raise NotLowered(name)
        if torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable:
            raise NotLowered(f"{name}, which draws numbers or writes into its arguments")
        if "val" not in node.meta:
            raise NotLowered(f"{name}, which returns nothing")
        args = tuple(self._call_argument(arg) for arg in node.args)
        kwargs = tuple((key, self._call_argument(arg)) for key, arg in node.kwargs.items())
        meta = node.meta["val"]
        several = isinstance(meta, tuple | list)
        outs: list[Buffer | None] = []
        values = []
        for number, part in enumerate(meta if several else [meta]):
            if not isinstance(part, torch.Tensor):
                raise NotLowered(f"{name}, whose result is no tensor")
            read = not several or any(
                user.target is getitem and user.args[1] == number for user in node.users
            )
            shape, dtype = tuple(map(int, part.shape)), str(part.dtype).removeprefix("torch.")
            turned = name == ATTENTION and len(shape) == 4
            if turned:
                shape = (shape[0], shape[2], shape[1], shape[3])
            buffer = Buffer("", shape, dtype)
            if read:
                buffer = self._buffer(self._buffer_name(), shape, dtype, None)
            outs.append(buffer if read else None)
            values.append(
                _heads_exchanged(buffer_value(buffer)) if turned else buffer_value(buffer)
            )
        self.calls.append(Call(name, args, kwargs, tuple(outs), len(self.stages)))
        return tuple(values) if several else values[0]

    def _call_argument(self, of: Any) -> Any:
        """An argument of a call, with Views of buffers for tensors."""
        if isinstance(of, fx.Node):
            value = self._values[of]
            if not isinstance(value, Value):
                raise NotLowered("a call with several results as one argument")
            shape, dtype = shape_and_dtype(
                of
            )  # a stored value of half precision is computed in float32
            return self._view(Value(shape, dtype, value.at))
        if isinstance(of, tuple | list):
            return [self._call_argument(part) for part in of]
        return of

    def _view(self, value: Value) -> View:
        """The value as a view of a buffer, of a new one if no existing buffer has it."""
        view = self._view_of(value)
        if view is None:
            space = self.variables(value.shape)
            buffer = self._buffer(self._buffer_name(), value.shape, value.dtype, None)
            self.stages.append(Stage(buffer, space, value.at(tuple(map(index, space)))))
            strides = tuple(prod(value.shape[d + 1 :]) for d in range(len(value.shape)))
            view = View(buffer.name, value.shape, strides, 0)
        return view

    def _view_of(self, value: Value) -> View | None:
        space = self.variables(value.shape)
        element = value.at(tuple(map(index, space)))
        if element.name != "load" or 0 in value.shape:
            return None
        buffer = self.buffers[str(element.value)]
        # Splitting a dimension and joining it again, as for a batched product, is a view.
        place = rejoined(flattened(element.indices, buffer.shape))
        strides = [place.factor(variable) for variable in space]
        known = {v: index(v) * (s or 0) for v, s in zip(space, strides, strict=True)}
        linear = sum(known.values(), start=Index((), place.offset))
        if None in strides or linear != place or buffer.dtype != value.dtype:
            return None
        if any(s is None or s < 0 for s in strides):
            return None
        return View(buffer.name, value.shape, tuple(s or 0 for s in strides), place.offset)

    def plain(self, of: Any) -> Any:
        """Lowered values for the nodes of an argument."""
        if isinstance(of, fx.Node):
            return self._values[of]
        if isinstance(of, tuple | list):
            return [self.plain(part) for part in of]
        return of


def _heads_exchanged(value: Value) -> Value:
    """The value with the two middle dimensions of four exchanged: fused attention returns the heads
    of a position next to each other."""
    first, second, third, last = value.shape
    shape = (first, third, second, last)
    return Value(shape, value.dtype, lambda p: value.at((p[0], p[2], p[1], p[3])))


def _views_only(graph: fx.Graph) -> bool:
    """Whether every operator is a view, which is free in torch."""
    operators = [n.target for n in graph.nodes if n.op == "call_function"]
    return all(o is getitem or getattr(o, "is_view", False) for o in operators)


def _functional(node: fx.Node) -> str:
    """The operator's name. For an operator that writes into a tensor which no other node reads, the
    name of its functional form."""
    name, target = str(node.target).removesuffix(".default"), node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return name
    into = node.args[0] if node.args else None
    if not isinstance(into, fx.Node) or len(into.users) > 1:
        return name
    source = into.target
    if not isinstance(source, torch._ops.OpOverload):
        return name
    if any(returned.alias_info is not None for returned in source._schema.returns):
        return name
    space, _, rest = name.partition(".")
    base, dot, form = rest.partition(".")
    return f"{space}.{base.removesuffix('_')}{dot}{form}"


def buffer_value(buffer: Buffer) -> Value:
    return Value(buffer.shape, buffer.dtype, lambda p: load(buffer.name, p, buffer.dtype))


def shape_and_dtype(node: fx.Node) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a node's result."""
    value = node.meta["val"]
    return tuple(map(int, value.shape)), str(value.dtype).removeprefix("torch.")


def broadcast(value: Value | float, shape: tuple[int, ...], dtype: str) -> Value:
    """A value or a number, broadcast to a shape and cast to a dtype."""
    if not isinstance(value, Value):
        return Value(shape, dtype, lambda _: literal(value, dtype))
    leading = len(shape) - len(value.shape)

    def at(places: Places) -> ElementExpression:
        own = [
            Index() if size == 1 else place
            for place, size in zip(places[leading:], value.shape, strict=True)
        ]
        return cast(value.at(tuple(own)), dtype)

    return Value(shape, dtype, at)


def pointwise(name: str, values: Sequence[Value | float], shape: Any, inner: str, to: str) -> Value:
    """An elementwise operator, computed in the dtype `inner`."""
    parts = [broadcast(value, shape, inner) for value in values]
    compared = "bool" if to == "bool" else inner
    return Value(shape, to, lambda places: call(name, tuple(p.at(places) for p in parts), compared))


def promoted(node: fx.Node, values: Sequence[Any]) -> str:
    """The dtype in which an operator on these values computes."""
    kinds = [
        torch.empty(v.shape, dtype=getattr(torch, v.dtype), device="meta")
        if isinstance(v, Value)
        else v
        for v in values
    ]
    dtype = kinds[0].dtype if isinstance(kinds[0], torch.Tensor) else None
    for other in kinds[1:]:
        first = kinds[0] if dtype is None else torch.empty(1, dtype=dtype, device="meta")
        dtype = torch.result_type(first, other)
    return computed_in(str(dtype or shape_and_dtype(node)[1]).removeprefix("torch."))
