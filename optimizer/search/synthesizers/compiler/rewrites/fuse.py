"""Rules that replace operators in parts by one library operator, and rewrites of matrix
products."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch.fx import Node

from optimizer.search.synthesizers.compiler.rewrites.trace import (
    argument,
    called,
    either,
    factors,
    is_float,
    is_number,
    last,
    literal,
    near,
    one_dim,
    only_user,
    operand,
    replace,
    shape,
    tensor,
)

Parts = tuple[Node, object]


def softmax(node: Node) -> bool:
    """exp(x - max x) / sum exp(x - max x), with or without the maximum."""
    exp = operand(node.args[0], "exp") if called(node) == "div" and len(node.args) == 2 else None
    total = operand(node.args[1], "sum") if exp is not None else None
    if exp is None or total is None or total.args[0] is not exp:
        return False
    known = shape(exp)
    dim = one_dim(argument(total, 1, "dim"), len(known) if known else None)
    if dim is None or not argument(total, 2, "keepdim", False) or total.kwargs.get("dtype"):
        return False
    inner = exp.args[0]
    if not isinstance(inner, Node):
        return False
    x = _without_maximum(inner, dim)
    replace(node, F.softmax, (x if x is not None else inner,), {"dim": dim})
    return True


def _without_maximum(node: Node, dim: int) -> Node | None:
    if called(node) != "sub" or len(node.args) != 2:
        return None
    x, top = node.args
    if called(top) == "getitem" and isinstance(top, Node) and top.args[1] == 0:
        top = top.args[0]  # max with a dimension gives values and indices
    elif called(top) == "getattr" and isinstance(top, Node) and top.args[1] == "values":
        top = top.args[0]
    maximum = operand(top, "max", "amax")
    if maximum is None or not isinstance(x, Node) or maximum.args[0] is not x:
        return None
    known = shape(x)
    its = one_dim(argument(maximum, 1, "dim"), len(known) if known else None)
    return x if its == dim and argument(maximum, 2, "keepdim", False) else None


def log_softmax(node: Node) -> bool:
    """log(softmax(x)), and x - logsumexp(x)."""
    if called(node) == "log":
        inner = operand(node.args[0], "softmax")
        if inner is None or inner.kwargs.get("dtype"):
            return False
        dim = argument(inner, 1, "dim")
        x = inner.args[0]
    elif called(node) == "sub" and len(node.args) == 2:
        total = operand(node.args[1], "logsumexp")
        if total is None or total.args[0] is not node.args[0]:
            return False
        if not argument(total, 2, "keepdim", False):
            return False
        x, dim = node.args[0], one_dim(argument(total, 1, "dim"), None)
    else:
        return False
    if dim is None:
        return False
    replace(node, F.log_softmax, (x,), {"dim": dim})
    return True


def logsumexp(node: Node) -> bool:
    """log(sum(exp x)), which overflows unlike the operator."""
    total = operand(node.args[0], "sum") if called(node) == "log" else None
    exp = operand(total.args[0], "exp") if total is not None else None
    if total is None or exp is None:
        return False
    dim = argument(total, 1, "dim")
    if dim is None:
        return False
    kept = bool(argument(total, 2, "keepdim", False))
    replace(node, torch.logsumexp, (exp.args[0],), {"dim": dim, "keepdim": kept})
    return True


# -- norms


def _mean_square(value: object, of: object) -> bool:
    """Whether a value is mean(x * x) over the last dimension, with keepdim."""
    mean = operand(value, "mean")
    if mean is None or not argument(mean, 2, "keepdim", False):
        return False
    square = mean.args[0]
    if not isinstance(square, Node) or not last(argument(mean, 1, "dim"), of):
        return False
    if called(square) == "square":
        return square.args[0] is of
    if called(square) == "pow":
        return square.args[0] is of and near(square.args[1], 2.0)
    return called(square) == "mul" and square.args == (of, of)


def _plus_epsilon(value: object) -> Parts | None:
    """v and eps of v + eps."""
    added = operand(value, "add")
    if added is None:
        return None
    for left, right in either(added):
        if isinstance(left, Node) and not is_number(left) and is_number(right):
            return left, right
    return None


def _over_root(node: Node) -> tuple[Node, Node, object] | None:
    """x, v and eps of x * rsqrt(v + eps), x / sqrt(v + eps) or x * (1 / sqrt(v + eps))."""
    if called(node) == "div" and len(node.args) == 2:
        root = operand(node.args[1], "sqrt")
        return _with(node.args[0], root.args[0]) if root is not None else None
    if called(node) != "mul":
        return None
    for x, inverse in either(node):
        root = operand(inverse, "rsqrt")
        if root is None and called(inverse) == "div" and isinstance(inverse, Node):
            root = operand(inverse.args[1], "sqrt") if near(inverse.args[0], 1.0) else None
        if root is not None:
            return _with(x, root.args[0])
    return None


def _with(x: object, under: object) -> tuple[Node, Node, object] | None:
    parts = _plus_epsilon(under)
    return (x, *parts) if parts is not None and isinstance(x, Node) else None


def _of_width(value: object, x: object) -> bool:
    """Whether a value has one number for each element of x's last dimension."""
    known, wide = shape(value), shape(x)
    return known is not None and wide is not None and known == wide[-1:]


def rms_norm(node: Node) -> bool:
    """x * rsqrt(mean(x * x) + eps), with a following scale."""
    parts = _over_root(node)
    if parts is None or not _mean_square(parts[1], parts[0]) or not is_float(parts[0]):
        return False
    x, _, eps = parts
    end, weight = _followed(node, "mul", x)
    replace(end, F.rms_norm, (x, _width_of(end, x), weight, eps), {})
    return True


def layer_norm(node: Node) -> bool:
    """(x - mean) * rsqrt(variance + eps), with following scale and bias."""
    parts = _over_root(node)
    centred = operand(parts[0], "sub") if parts is not None else None
    if parts is None or centred is None or len(centred.args) != 2:
        return False
    x, mean = centred.args
    mean = operand(mean, "mean")
    if mean is None or mean.args[0] is not x or not argument(mean, 2, "keepdim", False):
        return False
    if not isinstance(x, Node) or not last(argument(mean, 1, "dim"), x):
        return False
    if not (_mean_square(parts[1], centred) or _variance(parts[1], x)):
        return False
    end, weight = _followed(node, "mul", x)
    end, bias = _followed(end, "add", x)
    replace(end, F.layer_norm, (x, _width_of(end, x), weight, bias, parts[2]), {})
    return True


def _variance(value: object, of: object) -> bool:
    """Whether a value is var(x) over the last dimension without Bessel's correction, with
    keepdim."""
    var = operand(value, "var")
    if var is None or var.args[0] is not of or not var.kwargs.get("keepdim"):
        return False
    corrections = var.kwargs.get("unbiased"), var.kwargs.get("correction")
    plain = corrections[0] is False or (corrections[1] is not None and near(corrections[1], 0.0))
    return plain and last(argument(var, 1, "dim"), of)


def _followed(node: Node, by: str, x: object) -> tuple[Node, object]:
    """The only user, if it combines the node with one number for each column, and these numbers;
    else the node."""
    users = list(node.users)
    if len(users) == 1 and called(users[0]) == by:
        for own, other in either(users[0]):
            if own is node and _of_width(other, x):
                return users[0], other
    return node, None


def _width_of(before: Node, x: Node) -> Node:
    """x.shape[-1:] as nodes."""
    graph = before.graph
    with graph.inserting_before(before):
        sizes = graph.call_function(getattr, (x, "shape"))
        return graph.call_function(operator.getitem, (sizes, slice(-1, None)))


# -- activations


def silu(node: Node) -> bool:
    """x * sigmoid(x)."""
    if called(node) != "mul":
        return False
    for x, gate in either(node):
        sigmoid = operand(gate, "sigmoid")
        if sigmoid is not None and sigmoid.args[0] is x and isinstance(x, Node):
            replace(node, F.silu, (x,), {})
            return True
    return False


def gelu(node: Node) -> bool:
    """x / 2 * (1 + erf(x / sqrt 2)), the exact form."""
    if called(node) != "mul":
        return False
    rest = factors(node)
    halves = [f for f in rest if near(f, 0.5)]
    for place, factor in enumerate(rest):
        x = _in_error_function(factor)
        if x is not None and len(rest) == 3 and len(halves) == 1:
            others = [f for n, f in enumerate(rest) if n != place and f is not halves[0]]
            if others == [x]:
                replace(node, F.gelu, (x,), {})
                return True
    return False


def _in_error_function(value: object) -> Node | None:
    """x of 1 + erf(x / sqrt 2)."""
    added = operand(value, "add")
    for number, erf in either(added) if added is not None else ():
        call = operand(erf, "erf")
        inner = call.args[0] if call is not None and near(number, 1.0) else None
        if not isinstance(inner, Node) or len(inner.args) != 2:
            continue
        scale = literal(inner.args[1])
        wanted = {"div": math.sqrt(2.0), "mul": math.sqrt(0.5)}.get(called(inner))
        if wanted is not None and scale is not None and near(scale, wanted):
            x = inner.args[0]
            return x if isinstance(x, Node) else None
    return None


# -- matrix products

PRODUCTS = ("matmul", "mm", "bmm")


def _operands(node: object) -> tuple[Node, Node] | None:
    product = operand(node, *PRODUCTS)
    if product is None or len(product.args) != 2:
        return None
    left, right = product.args
    return (left, right) if isinstance(left, Node) and isinstance(right, Node) else None


def _transposed(value: object, first: int, second: int) -> Node | None:
    """The node whose transpose in these two dimensions a value is."""
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
    """Scores before a mask was added or filled in with minus infinity, and the mask."""
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
    """The product and its factor, None for none."""
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
    """The two sequences whose place-th members are the operands."""
    if pair is None:
        return None
    picks = [operand(part, "getitem") for part in pair]
    sources = [f.args[0] for f in picks if f is not None and f.args[1] == place]
    if len(sources) != 2 or not all(isinstance(source, Node) for source in sources):
        return None
    return sources[0], sources[1]  # type: ignore[return-value]
