"""A graph of primitive operators as stages: each operator becomes a function from places to an
expression, and what is a view is arithmetic on places alone.

A value is computed where it is used. It is kept in a buffer where it is a reduction, or where it is
used more than once and is dear to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from optimizer.evaluation.abi import Signature
from optimizer.search.synthesizers.traced.expression import (
    ElementExpression,
    call,
    cast,
    computed_in,
    forget,
    literal,
    load,
)
from optimizer.search.synthesizers.traced.graph import ATTENTION
from optimizer.search.synthesizers.traced.index import Index, Var, flattened, index, rejoined
from optimizer.search.synthesizers.traced.program import (
    Buffer,
    Call,
    Combine,
    Order,
    Program,
    Stage,
    View,
)

Places = tuple[Index, ...]
MOST_VALUES = 16_384  # elements of a buffer that may stand in a source
DEAR = 10  # additions, from which on a value that is used twice is kept
LONGEST = 200  # additions in one expression, from which on a value is kept in any case


class NotLowered(Exception):
    """An operator, or a form of it, that is not in the closed set. The message names it."""


@dataclass
class Value:
    """A tensor as a function of places; `at` remembers what it returned."""

    shape: tuple[int, ...]
    dtype: str
    function: Callable[[Places], ElementExpression]
    known: dict[Places, ElementExpression] = field(default_factory=dict)

    def at(self, places: Places) -> ElementExpression:
        """The element at these places."""
        if places not in self.known:
            self.known[places] = cast(self.function(places), self.dtype)
        return self.known[places]


Rule = Callable[["Lowering", fx.Node], Value | tuple[Value, ...]]


RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """The decorated function lowers the operators with these names."""

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
        """`operators` lowers one node each, by the operator's name. With `library`, the operators
        that it names and those that cannot be lowered are left to torch, and what is kept has the
        dtype that torch would give it. `hidden` are the buffers of the graph's last placeholders,
        by their path in the Model, with their elements where a kernel may hold these."""
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
            self._values[node] = read_of(buffer)
        for node, path in zip(nodes[len(given) :], self._hidden, strict=True):
            if node.users:
                self._values[node] = read_of(self._hidden_buffer(node, path))
        for node in self._graph.nodes:
            if node.op == "call_function":
                value = self._lowered(node)
                if isinstance(value, Value) and self._is_kept(node, value):
                    value = self.kept(value)
                self._values[node] = value
            elif node.op == "get_attr":
                self._values[node] = self._constant(node)
        self._outputs()
        return Program(self.buffers, tuple(self.stages), tuple(self.calls))

    def _hidden_buffer(self, node: fx.Node, path: str) -> Buffer:
        """A buffer of the Model that the interface does not hand over."""
        shape, dtype = result(node)
        buffer = self._buffer(f"hidden{list(self._hidden).index(path)}", shape, dtype, None)
        held, values = self._hidden[path], ()
        if held is not None and buffer.elements <= MOST_VALUES:
            values = tuple(held.to(getattr(torch, dtype)).flatten().tolist())
        self.buffers[buffer.name] = replace(buffer, hidden=path, values=values)
        return self.buffers[buffer.name]

    def _constant(self, node: fx.Node) -> Value:
        """A number that forward makes a tensor of. Raises NotLowered for larger tensors."""
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
            raise NotLowered("outputs in a form of their own")
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

    def kept(self, value: Value) -> Value:
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
        """A stage into a buffer of the shape of `space`, read as a value of `shape`, which has
        dimensions of size 1 besides. `exact` keeps the dtype, not the one it is computed in."""
        sizes = tuple(v.extent for v in space)
        kind = dtype if exact else computed_in(dtype)
        buffer = self._buffer(self._new_name(), sizes, kind, None)
        name = buffer.name
        self.stages.append(Stage(buffer, space, body, reduced, combine, scanned, order))

        def at(places: Places) -> ElementExpression:
            inner = tuple(p for p, size in zip(places, shape, strict=True) if size != 1)
            return load(name, inner, buffer.dtype)

        return Value(shape, computed_in(dtype), at)

    def _new_name(self) -> str:
        return f"kept{sum(b.number is None for b in self.buffers.values())}"

    def _buffer(self, name: str, shape: Sequence[int], dtype: str, number: int | None) -> Buffer:
        if dtype.startswith("complex"):
            raise NotLowered("complex numbers")
        buffer = Buffer(name, tuple(shape), dtype, number)
        self.buffers[name] = buffer
        return buffer

    def _is_kept(self, node: fx.Node, value: Value) -> bool:
        if not value.shape or 0 in value.shape:
            return False
        body = value.at(tuple(map(index, self.variables(value.shape))))
        if body.name in ("load", "literal"):
            return False
        if body.cost >= LONGEST or len(node.users) < 2:
            return body.cost >= LONGEST
        # Written to memory in any case where torch gets it; else what is made once for a row, such
        # as the logarithm in a log-softmax, is not computed again for its elements.
        handed = self._library is not None and any(
            user.op == "call_function" and _functional(user) in self._library for user in node.users
        )
        return (body.cost if handed else body.inner_cost) >= DEAR

    # -- operators

    def _lowered(self, node: fx.Node) -> Value | tuple[Value, ...]:
        name = _functional(node)
        if self._library is not None and name in self._library:
            return self._left(node)
        try:
            if name not in self._operators:
                raise NotLowered(name)
            return self._operators[name](self, node)
        except NotLowered:
            if self._library is None:
                raise
            return self._left(node)

    # -- what is left to torch

    def _left(self, node: fx.Node) -> Value | tuple[Value, ...]:
        """A call of torch's own operator. Raises NotLowered for one that cannot be called apart."""
        name, target = str(node.target), node.target
        if not isinstance(target, torch._ops.OpOverload) or name.endswith("_for_cpu"):
            raise NotLowered(name)
        if torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable:
            raise NotLowered(f"{name}, which draws numbers or writes into its arguments")
        if "val" not in node.meta:
            raise NotLowered(f"{name}, which returns nothing")
        args = tuple(self._handed(arg) for arg in node.args)
        kwargs = tuple((key, self._handed(arg)) for key, arg in node.kwargs.items())
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
                buffer = self._buffer(self._new_name(), shape, dtype, None)
            outs.append(buffer if read else None)
            values.append(_turned(read_of(buffer)) if turned else read_of(buffer))
        self.calls.append(Call(name, args, kwargs, tuple(outs), len(self.stages)))
        return tuple(values) if several else values[0]

    def _handed(self, of: Any) -> Any:
        """An argument of a call: tensors as Views of buffers."""
        if isinstance(of, fx.Node):
            value = self._values[of]
            if not isinstance(value, Value):
                raise NotLowered("a call with several results as one argument")
            shape, dtype = result(of)  # a kept value of half precision is computed in float32
            return self._view(Value(shape, dtype, value.at))
        if isinstance(of, tuple | list):
            return [self._handed(part) for part in of]
        return of

    def _view(self, value: Value) -> View:
        """The value as places of a buffer; of a new one where no buffer has it so."""
        view = self._view_of(value)
        if view is None:
            space = self.variables(value.shape)
            buffer = self._buffer(self._new_name(), value.shape, value.dtype, None)
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
        # One that splits a dimension and joins it again, as the batches of a product, is a view.
        place = rejoined(flattened(element.indices, buffer.shape))
        strides = [place.factor(variable) for variable in space]
        known = {v: index(v) * (s or 0) for v, s in zip(space, strides, strict=True)}
        linear = sum(known.values(), start=Index((), place.offset))
        if None in strides or linear != place or buffer.dtype != value.dtype:
            return None
        if any(s is None or s < 0 for s in strides):
            return None
        return View(buffer.name, value.shape, tuple(s or 0 for s in strides), place.offset)

    # -- arguments

    def tensor(self, node: fx.Node, place: int) -> Value:
        """An argument that is a tensor. Raises NotLowered for anything else."""
        value = self.argument(node, place)
        if not isinstance(value, Value):
            raise NotLowered(f"{node.target} of a number")
        return value

    def argument(self, node: fx.Node, place: int, name: str = "", default: Any = None) -> Any:
        """An argument by place or name, as lowered values and plain numbers."""
        if place < len(node.args):
            return self._plain(node.args[place])
        return self._plain(node.kwargs.get(name, default))

    def _plain(self, of: Any) -> Any:
        if isinstance(of, fx.Node):
            return self._values[of]
        if isinstance(of, tuple | list):
            return [self._plain(part) for part in of]
        return of


def _turned(value: Value) -> Value:
    """With the two middle ones of four dimensions exchanged: fused attention leaves the heads of a
    place beside one another."""
    first, second, third, last = value.shape
    shape = (first, third, second, last)
    return Value(shape, value.dtype, lambda p: value.at((p[0], p[2], p[1], p[3])))


def _views_only(graph: fx.Graph) -> bool:
    """Whether every operator returns its input in another form, which costs torch nothing."""
    operators = [n.target for n in graph.nodes if n.op == "call_function"]
    return all(o is getitem or getattr(o, "is_view", False) for o in operators)


def _functional(node: fx.Node) -> str:
    """The operator's name; that of the form that returns a new tensor where it writes into one that
    nobody else reads."""
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


def read_of(buffer: Buffer) -> Value:
    """A buffer as a value."""
    return Value(buffer.shape, buffer.dtype, lambda p: load(buffer.name, p, buffer.dtype))


def result(node: fx.Node) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of what a node returns."""
    value = node.meta["val"]
    return tuple(map(int, value.shape)), str(value.dtype).removeprefix("torch.")


def broadcast(value: Value | float, shape: tuple[int, ...], dtype: str) -> Value:
    """A value or a number in a larger shape and another dtype."""
    if not isinstance(value, Value):
        return Value(shape, dtype, lambda _: literal(value, dtype))
    ahead = len(shape) - len(value.shape)

    def at(places: Places) -> ElementExpression:
        own = [
            Index() if size == 1 else place
            for place, size in zip(places[ahead:], value.shape, strict=True)
        ]
        return cast(value.at(tuple(own)), dtype)

    return Value(shape, dtype, at)


def pointwise(name: str, values: Sequence[Value | float], shape: Any, inner: str, to: str) -> Value:
    """An operator on elements, computed in the dtype `inner`."""
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
    return computed_in(str(dtype or result(node)[1]).removeprefix("torch."))
