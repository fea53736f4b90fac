"""Rules that remove operators without effect, repeated ones, and combine others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from optimizer.search.synthesizers.compiler.rewrites.pattern import (
    argument,
    called,
    either,
    is_float,
    is_number,
    is_random,
    literal,
    near,
    only_user,
    operand,
    overwrites,
    replace,
    same_dtype,
    shape,
)

_CASTS = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
}
_IDLE_MODULES = (
    torch.nn.Identity,
    torch.nn.Dropout,
    torch.nn.Dropout1d,
    torch.nn.Dropout2d,
    torch.nn.Dropout3d,
    torch.nn.AlphaDropout,
)
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")


def _pass_on(node: Node, value: Node) -> bool:
    if any(overwrites(user) for user in node.users):
        return False  # they overwrite a result that only this node has
    node.replace_all_uses_with(value)
    return True


def idle_module(node: Node) -> bool:
    """Identity, and dropout in evaluation, as a module or as a function."""
    if called(node) in _DROPOUTS and node.op == "call_function":
        value = argument(node, 0, "input")
        idle = argument(node, 2, "training", True) is False
        return idle and isinstance(value, Node) and _pass_on(node, value)
    root = node.graph.owning_module
    if node.op != "call_module" or root is None or len(node.args) != 1:
        return False
    value = node.args[0]
    idle = isinstance(root.get_submodule(str(node.target)), _IDLE_MODULES)
    return idle and isinstance(value, Node) and _pass_on(node, value)


def neutral_number(node: Node) -> bool:
    """x * 1, x / 1, x + 0, x - 0 and x ** 1, where they keep shape and dtype."""
    name = called(node)
    names = ("mul", "div", "add", "sub", "pow")
    if name not in names or len(node.args) != 2 or node.kwargs:
        return False
    pairs = either(node) if name in ("mul", "add") else [node.args]
    for x, number in pairs:
        wanted = 0.0 if name in ("add", "sub") else 1.0
        if isinstance(x, Node) and near(number, wanted) and same_dtype(node, x):
            return _pass_on(node, x)
    return False


def twice_undone(node: Node) -> bool:
    """A second transposition, permutation, negation or squeeze that undoes the first."""
    if not node.args or not isinstance(node.args[0], Node):
        return False
    inner = node.args[0]
    if called(inner) == "" or not inner.args or not isinstance(inner.args[0], Node):
        return False
    pair = (called(inner), called(node))
    rank = len(shape(node) or ())
    undone = (
        (pair == ("neg", "neg"))
        or (pair == ("t", "t"))
        or (pair == ("transpose", "transpose") and _dims(inner, rank) == _dims(node, rank))
        or (pair == ("unsqueeze", "squeeze") and rank > 0 and _same_place(inner, node))
        or (pair == ("permute", "permute") and _inverse(inner, node))
    )
    return undone and _pass_on(node, inner.args[0])


def _dims(node: Node, rank: int) -> set[int] | Node:
    dims = node.args[1:3]
    if not rank or not all(isinstance(d, int) for d in dims) or len(dims) != 2:
        return node  # equal to no other
    return {int(d) % rank for d in dims if isinstance(d, int)}


def _same_place(inner: Node, outer: Node) -> bool:
    first, second = argument(inner, 1, "dim"), argument(outer, 1, "dim")
    wide = len(shape(inner) or ())
    ints = isinstance(first, int) and isinstance(second, int)
    return ints and wide > 0 and first % wide == second % wide


def _inverse(inner: Node, outer: Node) -> bool:
    first, second = (_order(node) for node in (inner, outer))
    if first is None or second is None or len(first) != len(second):
        return False
    return [first[place] for place in second] == list(range(len(first)))


def _order(node: Node) -> list[int] | None:
    dims: Any = node.args[1:]
    if len(dims) == 1 and isinstance(dims[0], list | tuple):
        dims = dims[0]
    if not all(isinstance(d, int) for d in dims):
        return None
    return [d % len(dims) for d in dims]


def same_again(node: Node) -> bool:
    """A cast, `contiguous` or activation applied to what it already made."""
    if not node.args or not isinstance(node.args[0], Node):
        return False
    inner = node.args[0]
    name = called(node)
    if name in ("contiguous", "relu", "abs") and called(inner) == name:
        same = node.args[1:] == inner.args[1:] and node.kwargs == inner.kwargs
        return same and _pass_on(node, inner)
    to, before = _cast(node), _cast(inner)
    return to is not None and to == before and _pass_on(node, inner)


def _cast(node: Node) -> torch.dtype | None:
    """The dtype of a node that only casts."""
    name = called(node)
    if name in _CASTS and len(node.args) == 1:
        return _CASTS[name]
    if name != "to":
        return None
    arguments = [*node.args[1:], *node.kwargs.values()]
    alone = len(arguments) == 1 and isinstance(arguments[0], torch.dtype)
    return arguments[0] if alone and isinstance(arguments[0], torch.dtype) else None


def needless_copy(node: Node) -> bool:
    """A clone of an intermediate result, since nothing writes in place; not of returned results and
    of views of an input."""
    if called(node) != "clone" or len(node.args) != 1 or node.kwargs:
        return False
    value = node.args[0]
    returned = any(user.op == "output" or _is_view(user) for user in node.users)
    made_here = isinstance(value, Node) and value.op in ("call_function", "call_module")
    if returned or not made_here or not isinstance(value, Node) or _is_view(value):
        return False
    return _pass_on(node, value)


def _is_view(node: Node) -> bool:
    views = ("view", "reshape", "t", "transpose", "permute", "getitem", "expand", "squeeze")
    return called(node) in (
        *views,
        "unsqueeze",
        "select",
        "narrow",
        "flatten",
        "unflatten",
        "chunk",
    )


def same_shape(node: Node) -> bool:
    """view(x, x.shape), written with the tensor's own sizes."""
    if called(node) not in ("view", "reshape") or not isinstance(node.args[0], Node):
        return False
    x = node.args[0]
    arguments = node.args[1:]
    sizes = arguments[0] if len(arguments) == 1 else None
    size = operand(sizes, "getattr", "size")
    own = (
        size is not None and size.args[0] is x and (len(size.args) == 1 or size.args[1] == "shape")
    )
    return own and _pass_on(node, x)


def numbers_together(node: Node) -> bool:
    """(x * a) * b as x * (a b), the same for sums and for repeated divisions."""
    name = called(node)
    if name not in ("mul", "add", "div") or len(node.args) != 2 or not is_float(node):
        return False
    if node.kwargs:
        return False  # rounded quotients, scaled sums
    pairs = [node.args] if name == "div" else list(either(node))
    for inner, number in pairs:
        call = operand(inner, name)
        value = literal(number)
        if call is None or value is None or not only_user(call, node) or len(call.args) != 2:
            continue
        if call.kwargs:
            continue
        inner_pairs = [call.args] if name == "div" else list(either(call))
        for x, other in inner_pairs:
            before = literal(other)
            if before is None or not isinstance(x, Node) or not is_float(x):
                continue
            total = before + value if name == "add" else before * value
            replace(node, _FUNCTIONS[name], (x, total), {})
            return True
    return False


def common_factor(node: Node) -> bool:
    """a * x + a * y as a * (x + y)."""
    name = called(node)
    if name not in ("add", "sub") or len(node.args) != 2 or node.kwargs or not is_float(node):
        return False
    left, right = (operand(part, "mul") for part in node.args)
    if left is None or right is None or left is right:
        return False
    if not (only_user(left, node) and only_user(right, node)):
        return False
    for a, x in either(left):
        for b, y in either(right):
            alike = a is b if isinstance(a, Node) else is_number(a) and a == b
            if alike and isinstance(x, Node) and isinstance(y, Node) and shape(x) == shape(y):
                with node.graph.inserting_before(node):
                    inner = node.graph.call_function(_FUNCTIONS[name], (x, y))
                inner.meta = dict(x.meta)
                replace(node, torch.mul, (a, inner), {})
                return True
    return False


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "mul": torch.mul,
    "add": torch.add,
    "div": torch.div,
    "sub": torch.sub,
}


def done_twice(node: Node) -> bool:
    """The same operator on the same arguments, computed once."""
    if called(node) == "" or is_random(node):
        return False
    if any(overwrites(user) for user in node.users):
        return False
    for other in node.graph.nodes:
        if other is node:
            return False
        alike = other.op == node.op and other.target == node.target
        alike = alike and not any(overwrites(user) for user in other.users)
        if alike and other.args == node.args and other.kwargs == node.kwargs:
            return _pass_on(node, other)
    return False
