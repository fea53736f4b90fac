"""Reading a graph: operators by one name for all spellings (`torch.mul`, `*`, `.mul()`), arguments
by position or name, shapes and dtypes from fake tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx import Node

CACHED = "cached"  # in the meta of a node that reads a cached result
_SAME = {
    "truediv": "div",
    "true_divide": "div",
    "divide": "div",
    "multiply": "mul",
    "subtract": "sub",
    "absolute": "abs",
    "negative": "neg",
    "swapaxes": "transpose",
    "reshape_as": "view_as",
    "linalg_matmul": "matmul",
}
_WRITERS = {"setitem", "copy_", "iadd", "imul", "isub", "itruediv", "imatmul", "ior", "iand"}
_RANDOM = {
    "alpha_dropout",
    "bernoulli",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "empty",
    "empty_like",
    "empty_strided",
    "feature_alpha_dropout",
    "gumbel_softmax",
    "multinomial",
    "new_empty",
    "normal",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "rrelu",
}


def called(node: object) -> str:
    """The operator's name of a call; "" for anything else."""
    if not isinstance(node, Node) or node.op not in ("call_function", "call_method"):
        return ""
    if node.op == "call_method":
        name = str(node.target)
    else:
        name = str(getattr(node.target, "__name__", ""))
    return _SAME.get(name, name)


def argument(node: Node, place: int, name: str, default: Any = None) -> Any:
    """An argument of a call, by position or else by name."""
    if place < len(node.args):
        return node.args[place]
    return node.kwargs.get(name, default)


def operand(value: object, *names: str) -> Node | None:
    """The node, if it is a call of one of these operators."""
    return value if isinstance(value, Node) and called(value) in names else None


def tensor(value: object) -> torch.Tensor | None:
    """The fake tensor of a node, if it has one."""
    known = value.meta.get("val") if isinstance(value, Node) else None
    return known if isinstance(known, torch.Tensor) else None


def shape(value: object) -> tuple[int, ...] | None:
    """The sizes of a node's tensor, if known."""
    known = tensor(value)
    return tuple(known.shape) if known is not None else None


def is_float(value: object) -> bool:
    """Whether a node's tensor is known to have a floating-point type."""
    known = tensor(value)
    return known is not None and known.is_floating_point()


def same_dtype(value: object, other: object) -> bool:
    """Whether the tensors of two nodes are known to have the same dtype."""
    first, second = tensor(value), tensor(other)
    return first is not None and second is not None and first.dtype == second.dtype


def is_number(value: object) -> bool:
    """Whether a value is a literal number or a node with a Python number."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float):
        return True
    return isinstance(value, Node) and isinstance(value.meta.get("val"), int | float)


def literal(value: object) -> float | None:
    """A literal number as float; None for anything else, booleans included."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def near(value: object, wanted: float) -> bool:
    """Whether a literal equals a number to within 1e-6 of it."""
    number = literal(value)
    return number is not None and math.isclose(number, wanted, rel_tol=1e-6)


def one_dim(value: object, rank: int | None) -> int | None:
    """A single dimension, counted from the front where the rank is known."""
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value % rank if rank else value


def last(value: object, of: object) -> bool:
    """Whether a dimension argument names the last one of a tensor."""
    known = shape(of)
    return known is not None and one_dim(value, len(known)) == len(known) - 1


def either(node: Node) -> Iterator[tuple[Any, Any]]:
    """The two operands of a commutative operator, in both orders."""
    if len(node.args) == 2 and not node.kwargs:
        left, right = node.args
        yield left, right
        yield right, left


def only_user(value: object, user: Node) -> bool:
    """Whether a node's result is used by this node only."""
    return isinstance(value, Node) and set(value.users) == {user}


def factors(value: object) -> list[object]:
    """The factors of a product, nested products included."""
    if isinstance(value, Node) and called(value) == "mul" and len(value.args) == 2:
        return [*factors(value.args[0]), *factors(value.args[1])]
    return [value]


def writes_in_place(node: Node) -> bool:
    """Whether a call writes into one of its arguments."""
    name = called(node)
    trailing = name.endswith("_") and not name.endswith("__")
    return trailing or name in _WRITERS or "out" in node.kwargs or bool(node.kwargs.get("inplace"))


def overwrites(node: Node) -> bool:
    """Whether a module overwrites its argument, as ReLU(inplace=True) does."""
    root = node.graph.owning_module
    if node.op != "call_module" or root is None:
        return False
    return bool(getattr(root.get_submodule(str(node.target)), "inplace", False))


def is_random(node: Node) -> bool:
    """Whether a call has a random or undefined result."""
    return called(node) in _RANDOM


def replace(node: Node, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Node:
    """Replace a node by a call; dead code elimination removes the inputs that only it used."""
    with node.graph.inserting_before(node):
        new = node.graph.call_function(function, tuple(args), kwargs)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    return new


def operators(graph: fx.Graph) -> int:
    """Number of operators that a call runs, without reading sizes, selecting one of several results
    and reading cached results."""
    calls = ("call_function", "call_method", "call_module")
    reads = ("getattr", "size", "dim", "getitem")
    runs = (node for node in graph.nodes if node.op in calls and not node.meta.get(CACHED))
    return sum(called(node) not in reads for node in runs)
