"""Matrix products: with what is added to them, as attention, in the cheaper order, merged."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch.fx import Node

from optimizer.search.synthesizers.compiler.rewrites.pattern import (
    argument,
    called,
    either,
    is_number,
    last,
    literal,
    only_user,
    operand,
    replace,
    shape,
    tensor,
)

PRODUCTS = ("matmul", "mm", "bmm")


def _operands(node: object) -> tuple[Node, Node] | None:
    product = operand(node, *PRODUCTS)
    if product is None or len(product.args) != 2:
        return None
    left, right = product.args
    return (left, right) if isinstance(left, Node) and isinstance(right, Node) else None


def _transposed(value: object, first: int, second: int) -> Node | None:
    """What a node is the transpose of, in these two dimensions."""
    node = operand(value, "t", "transpose", "getattr")
    if node is None or not isinstance(node.args[0], Node):
        return None
    rank = len(shape(node) or ())
    if called(node) == "transpose":
        dims = {int(d) % rank for d in node.args[1:3] if isinstance(d, int)} if rank else set()
        return node.args[0] if dims == {first % rank, second % rank} and len(dims) == 2 else None
    plain = called(node) == "t" or node.args[1] in ("T", "mT")
    return node.args[0] if plain and rank == 2 else None


def linear(node: Node) -> bool:
    """x @ weight.T + bias."""
    for product, bias in either(node) if called(node) == "add" else ():
        pair = _operands(product)
        weight = _transposed(pair[1], 0, 1) if pair is not None else None
        if pair is None or weight is None or len(shape(weight) or ()) != 2:
            continue
        wide = shape(weight)
        if only_user(product, node) and wide is not None and shape(bias) == wide[:1]:
            replace(node, F.linear, (pair[0], weight, bias), {})
            return True
    return False


def added_product(node: Node) -> bool:
    """a @ b + c in one operator, for matrices and for batches of them."""
    for product, more in either(node) if called(node) == "add" else ():
        pair = _operands(product)
        if pair is None or not only_user(product, node) or shape(more) is None:
            continue
        ranks = tuple(len(shape(part) or ()) for part in pair)
        same = shape(node) == shape(product) and _dtype(more) == _dtype(product)
        function = {(2, 2): torch.addmm, (3, 3): torch.baddbmm}.get(ranks)  # type: ignore[arg-type]
        if function is not None and same and _equal_batches(pair):
            replace(node, function, (more, *pair), {})
            return True
    return False


def _dtype(value: object) -> torch.dtype | None:
    known = tensor(value)
    return known.dtype if known is not None else None


def _equal_batches(pair: Sequence[Node]) -> bool:
    left, right = (shape(part) or () for part in pair)
    return left[:-2] == right[:-2]


def attention(node: Node) -> bool:
    """softmax(q @ k.T * scale + mask) @ v."""
    pair = _operands(node)
    weights = operand(pair[0], "softmax") if pair is not None else None
    if pair is None or weights is None or not last(argument(weights, 1, "dim"), weights):
        return False
    scores, mask = _masked(weights.args[0], weights)
    scores, scale = _scaled(scores)
    inner = _operands(scores)
    key = _transposed(inner[1], -2, -1) if inner is not None else None
    if inner is None or key is None or not (only_user(weights, node) and _alike(inner[0], key)):
        return False
    if len(shape(node) or ()) < 3 or not _alike(key, pair[1]):
        return False
    if isinstance(scale, Node | float) or scale is None:
        masking = {"attn_mask": mask} if mask is not None else {}
        factor = 1.0 if scale is None else scale
        replace(
            node,
            F.scaled_dot_product_attention,
            (inner[0], key, pair[1]),
            {**masking, "scale": factor},
        )
        return True
    return False


def _alike(left: object, right: object) -> bool:
    """Same dtype and same leading dimensions."""
    first, second = shape(left), shape(right)
    return first is not None and second is not None and first[:-2] == second[:-2]


def _masked(scores: object, user: Node) -> tuple[object, object]:
    """Scores without what is added to them or filled in with minus infinity, and a mask for it."""
    if called(scores) == "add" and isinstance(scores, Node):
        for inner, mask in either(scores):
            if called(inner) in (*PRODUCTS, "mul", "div") and _dtype(mask) == _dtype(inner):
                return inner, mask
    if called(scores) == "masked_fill" and isinstance(scores, Node) and len(scores.args) == 3:
        inner, hidden, value = scores.args
        if literal(value) == -math.inf:
            with user.graph.inserting_before(user):
                shown = user.graph.call_function(torch.logical_not, (hidden,))
            shown.meta = dict(hidden.meta) if isinstance(hidden, Node) else {}
            return inner, shown
    return scores, None


def _scaled(scores: object) -> tuple[object, object]:
    """The product and the number it is multiplied by, None for none."""
    if not isinstance(scores, Node) or called(scores) not in ("mul", "div"):
        return scores, None
    if called(scores) == "div":
        product, number = scores.args[:2]
        if not is_number(number):
            return scores, None
        value = literal(number)
        if value is not None:
            return product, 1.0 / value
        with scores.graph.inserting_before(scores):
            inverse = scores.graph.call_function(operator.truediv, (1.0, number))
        return product, inverse
    for product, number in either(scores):
        if is_number(number):
            return product, literal(number) if literal(number) is not None else number
    return scores, None


def cheaper_order(node: Node) -> bool:
    """(x @ a) @ b as x @ (a @ b), or the other way, where that takes fewer multiplications."""
    pair = _operands(node)
    if pair is None:
        return False
    inner = _operands(pair[0])
    if inner is not None and only_user(pair[0], node):
        return _reordered(node, (inner[0], inner[1], pair[1]), now_left=True)
    inner = _operands(pair[1])
    if inner is not None and only_user(pair[1], node):
        return _reordered(node, (pair[0], inner[0], inner[1]), now_left=False)
    return False


def _reordered(node: Node, chain: tuple[Node, Node, Node], now_left: bool) -> bool:
    shapes = [shape(part) for part in chain]
    if any(s is None or len(s) < 2 for s in shapes):
        return False
    a, b, c = (s for s in shapes if s is not None)
    left = _cost(a, b) + _cost(_result(a, b), c)
    right = _cost(b, c) + _cost(a, _result(b, c))
    graph = node.graph
    if (left, right)[now_left] >= (right, left)[now_left]:
        return False
    with graph.inserting_before(node):
        if now_left:
            inner = graph.call_function(torch.matmul, (chain[1], chain[2]))
            outer = (chain[0], inner)
        else:
            inner = graph.call_function(torch.matmul, (chain[0], chain[1]))
            outer = (inner, chain[2])
    like = tensor(node)
    if like is not None:
        inner.meta["val"] = like.new_empty(_result(b, c) if now_left else _result(a, b))
    replace(node, torch.matmul, outer, {})
    return True


def _result(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    lead = torch.broadcast_shapes(left[:-2], right[:-2])  # type: ignore[no-untyped-call]
    return (*lead, left[-2], right[-1])


def _cost(left: Sequence[int], right: Sequence[int]) -> int:
    """Multiplications of one product."""
    return math.prod(_result(left, right)) * left[-1]


def merged_products(node: Node) -> bool:
    """stack([a[0] @ b[0], a[1] @ b[1], ...]) as one batched product."""
    if called(node) != "stack" or argument(node, 1, "dim", 0) != 0:
        return False
    parts = node.args[0]
    if not isinstance(parts, list | tuple) or len(parts) < 2:
        return False
    pairs = [_operands(part) for part in parts]
    sources = {_picked(pair, n) for n, pair in enumerate(pairs)}
    operands = next(iter(sources))
    if len(sources) != 1 or operands is None:
        return False
    if any((shape(source) or (0,))[0] != len(parts) for source in operands):
        return False
    if any(len(shape(source) or ()) != 3 for source in operands):
        return False
    replace(node, torch.bmm, operands, {})
    return True


def _picked(pair: tuple[Node, Node] | None, place: int) -> tuple[Node, Node] | None:
    """What two operands are the place-th members of."""
    if pair is None:
        return None
    picks = [operand(part, "getitem") for part in pair]
    sources = [f.args[0] for f in picks if f is not None and f.args[1] == place]
    if len(sources) != 2 or not all(isinstance(source, Node) for source in sources):
        return None
    return sources[0], sources[1]  # type: ignore[return-value]
