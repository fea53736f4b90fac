"""Tensors that a forward makes anew from constants: made once instead of in every call.

Constant is what follows from literals, from sizes, dtypes and devices, and from tensors of the
Model that are in no state_dict. Inputs are not, whatever they hold. Weights are not either, under
any policy: the harness writes new values behind the tensors that a candidate holds, where no
version counter tells of it, so a result of weights that is kept would be of weights that are gone.
What can be saved on weights is saved in every call (`weights`).

A kept result belongs to the arguments that it was made of and is made again when one of them is
another: a case of another size never sees the mask of the one before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx import Node
from torch.utils import _pytree as pytree

from optimizer.search.synthesizers.compiler.rewrites.pattern import (
    KEPT,
    called,
    is_random,
    overwrites,
    tensor,
    writes_in_place,
)

CONSTANT = "constant"  # in the meta of a get_attr node: no part of the state
NAME = "folded"
_FACTS = ("shape", "dtype", "device", "ndim")
_ASKS = ("size", "dim", "ndimension", "numel", "nelement")
_DEF = re.compile(r"^def forward\(self(?:, )?(.*)\)\s*:", re.MULTILINE)

SUPPORT = '''
class _Kept:
    """What a function made of its arguments (sizes, dtypes, devices, constant tensors), until one
    of them is another."""

    def __init__(self, make):
        self.make, self.given, self.key, self.made = make, (), None, None

    @torch.compiler.disable
    def __call__(self, *given):
        key = [torch.get_default_dtype(), *(_identity(value) for value in given)]
        if key != self.key:
            # What it was made of is kept too, so that nothing else can come to lie in its place.
            self.made, self.given, self.key = self.make(*given), given, key
        return self.made


def _identity(value):
    """A tensor is another one when it was replaced or written to; one of inference mode, which does
    not tell, always."""
    if not isinstance(value, torch.Tensor):
        return value
    return object() if value.is_inference() else (id(value), value.data_ptr(), value._version)
'''


class Folded(torch.nn.Module):
    """Stands in a rewritten graph for a kept result. graph: how it is made of its arguments."""

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__()
        self.graph = graph

    def text(self, name: str) -> str:
        """As a function of the module that a candidate is."""
        code = self.graph.python_code("self").src.strip("\n")
        return _DEF.sub(lambda match: f"def {name}({match.group(1)}):", code, count=1)


def folded_in(graph: fx.Graph) -> dict[str, Folded]:
    """The kept results of a graph, by the names that it calls them by."""
    root = graph.owning_module
    names = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    modules = {n: root.get_submodule(n) for n in names} if root is not None else {}
    return {name: module for name, module in modules.items() if isinstance(module, Folded)}


def kept_constant(node: Node) -> bool:
    """The largest constant expressions, each kept as a whole."""
    root = node.graph.owning_module
    if root is None or node.op == "get_attr" or tensor(node) is None or not _is_constant(node):
        return False
    if all(_is_constant(user) for user in node.users) or _may_be_written(node):
        return False
    inside, parts = _expression(node)
    name = f"{NAME}_{len(folded_in(node.graph))}"
    root.add_submodule(name, Folded(_apart(inside, parts)))
    # As early as can be: a compiler leaves the graph there.
    first = next(n for n in node.graph.nodes if n.op != "placeholder")
    place = node.graph.inserting_after(parts[-1]) if parts else node.graph.inserting_before(first)
    with place:
        kept = node.graph.call_module(name, tuple(parts))
    kept.meta = {**node.meta, KEPT: True}
    node.replace_all_uses_with(kept, delete_user_cb=lambda user: not _is_constant(user))
    return True


def _is_constant(node: Node, seen: dict[Node, bool] | None = None) -> bool:
    seen = {} if seen is None else seen
    if node not in seen:
        seen[node] = _follows(node, seen)
    return seen[node]


def _follows(node: Node, seen: dict[Node, bool]) -> bool:
    if node.op == "get_attr":
        return tensor(node) is None or bool(node.meta.get(CONSTANT))
    if not called(node) or is_random(node) or writes_in_place(node):
        return False
    return _asks(node) or all(_is_constant(part, seen) for part in node.all_input_nodes)


def _asks(node: Node) -> bool:
    """For a size, a dtype or a device, which are no values of a tensor."""
    if called(node) == "getattr":
        return node.args[1] in _FACTS
    return called(node) in _ASKS


def _may_be_written(node: Node) -> bool:
    """It would leave the forward or be overwritten in it: who gets it may write into it."""
    own = _memory(node)
    takers = (n for n in node.graph.nodes if n.op == "output" or overwrites(n))
    reached = (part for taker in takers for part in taker.all_input_nodes)
    return any(part is node or _memory(part) & own for part in reached)


def _memory(node: Node) -> set[int]:
    """What its tensors lie in; views lie in the same."""
    return {value.untyped_storage()._cdata for value in _tensors(node)}


def _tensors(node: Node) -> Iterator[torch.Tensor]:
    leaves: Sequence[Any] = pytree.tree_leaves(node.meta.get("val"))
    return (value for value in leaves if isinstance(value, torch.Tensor))


def _expression(node: Node) -> tuple[list[Node], list[Node]]:
    """What a constant is made by, in order, and of: numbers, sizes and constant tensors."""
    inside, parts = {node}, set()
    waiting = [node]
    while waiting:
        for part in waiting.pop().all_input_nodes:
            if part.op != "get_attr" and any(True for _ in _tensors(part)) and not _asks(part):
                waiting += [part] if part not in inside else []
                inside.add(part)
            else:
                parts.add(part)
    order = list(node.graph.nodes)
    return [n for n in order if n in inside], [n for n in order if n in parts]


def _apart(inside: Sequence[Node], parts: Sequence[Node]) -> fx.Graph:
    graph = fx.Graph()
    places = {node: graph.placeholder(node.name) for node in parts}
    for node in inside:
        places[node] = graph.node_copy(node, lambda part: places[part])
    graph.output(places[inside[-1]])
    return graph
