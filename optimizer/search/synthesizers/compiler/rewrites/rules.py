"""The rewrite rules, and their application to a graph.

A rule changes a node of a graph in place and returns whether it did. A rewrite must leave fewer
operators, unless it changes order or layout, or moves work from activations to smaller weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch.fx import Node

from optimizer.search.synthesizers.compiler.configurations import ForwardText
from optimizer.search.synthesizers.compiler.rewrites import fuse
from optimizer.search.synthesizers.compiler.rewrites.trace import (
    SymbolicGraph,
    argument,
    cached_constant,
    called,
    either,
    forward_text,
    is_float,
    is_number,
    is_random,
    literal,
    near,
    only_user,
    operand,
    operators,
    overwrites,
    replace,
    same_dtype,
    shape,
    tensor,
)

# -- linear layers and convolutions
#
# Operators before or after a layer are folded into its weights, and convolutions use channels-last.
# Weights are folded in every call, since they may change between calls. So a rule applies only if
# the weights are smaller than the activations that it saves a pass over. Results differ by
# rounding, since sums are computed in another order. Channels-last does not change the numbers.

_CONVOLUTIONS: dict[type, Callable[..., Any]] = {
    torch.nn.Conv1d: F.conv1d,
    torch.nn.Conv2d: F.conv2d,
    torch.nn.Conv3d: F.conv3d,
}
_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
_LAYER_FUNCTIONS = (F.linear, *_CONVOLUTIONS.values())
_SETTINGS = ("stride", "padding", "dilation", "groups")
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_CONVOLUTION_MODULES = (
    torch.nn.Conv2d,
    torch.nn.Conv3d,
    torch.nn.ConvTranspose2d,
    torch.nn.ConvTranspose3d,
)
_CONVOLUTION_NAMES = ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")


@dataclass(frozen=True)
class Layer:
    """A layer as function(x, weight, bias, *settings).

    `weight` has the output channels first; `sizes` are the weight's. `module` is the name of its
    module, "" for a call of the function; the weights and settings of a module have no nodes yet.
    """

    node: Node
    function: Callable[..., Any]
    x: Node
    sizes: tuple[int, ...]
    module: str = ""
    weight: Node | None = None
    bias: Node | None = None
    settings: tuple[Any, ...] = ()

    @property
    def size(self) -> int:
        """Elements of the weight."""
        return math.prod(self.sizes)


class _CallWriter:
    """Inserts calls before a node."""

    def __init__(self, before: Node) -> None:
        self._before = before

    def call(self, function: Callable[..., Any], *args: Any, like: Node | None = None) -> Node:
        graph = self._before.graph
        with graph.inserting_before(self._before):
            node = graph.call_function(function, args)
        if like is not None:
            node.meta = dict(like.meta)
        return node

    def attribute(self, name: str, value: object) -> Node:
        graph = self._before.graph
        with graph.inserting_before(self._before):
            node = graph.create_node("get_attr", name)
        node.meta["val"] = value
        return node

    def state(self, layer: Layer) -> Layer:
        """The layer with nodes for its weights."""
        if layer.weight is not None:
            return layer
        module, name = _module(layer.node), layer.module
        bias = getattr(module, "bias", None)
        names = () if layer.function is F.linear else _SETTINGS
        return changed(
            layer,
            weight=self.attribute(f"{name}.weight", getattr(module, "weight", None)),
            bias=self.attribute(f"{name}.bias", bias) if bias is not None else None,
            settings=tuple(self.attribute(f"{name}.{n}", getattr(module, n)) for n in names),
        )

    def layer(self, like: Layer, x: Node, weight: Node, bias: Node | None) -> None:
        node = self.call(like.function, x, weight, bias, *like.settings, like=self._before)
        self._before.replace_all_uses_with(node)


def _module(node: object) -> torch.nn.Module | None:
    root = node.graph.owning_module if isinstance(node, Node) else None
    if root is None or not isinstance(node, Node) or node.op != "call_module":
        return None
    return root.get_submodule(str(node.target))


def _layer(node: object) -> Layer | None:
    """A linear layer, or a convolution that pads with zeros."""
    if not isinstance(node, Node):
        return None
    if node.op == "call_function":
        return _called_layer(node)
    module = _module(node)
    kind = type(module)
    plain = len(node.args) == 1 and isinstance(node.args[0], Node) and not node.kwargs
    if module is None or not plain:
        return None
    function = F.linear if kind is torch.nn.Linear else _CONVOLUTIONS.get(kind)
    if function is None or getattr(module, "padding_mode", "zeros") != "zeros":
        return None
    weight: Any = module.weight
    sizes = tuple(weight.shape)
    return Layer(node, function, node.args[0], sizes, str(node.target))  # type: ignore[arg-type]


def _called_layer(node: Node) -> Layer | None:
    """A called function; torch.fx passes everything except weight and bias by position."""
    if node.target not in _LAYER_FUNCTIONS or not set(node.kwargs) <= {"weight", "bias"}:
        return None
    x, weight, bias = (argument(node, n, name) for n, name in enumerate(("x", "weight", "bias")))
    sizes = shape(weight)
    if not isinstance(x, Node) or not isinstance(weight, Node) or sizes is None or len(sizes) < 2:
        return None
    function: Any = node.target
    return Layer(node, function, x, sizes, "", weight, bias, tuple(node.args[3:]))


def _saves(activations: object, layer: Layer) -> bool:
    """Whether a pass over the activations is more work than one over the weights."""
    known = shape(activations)
    return known is not None and math.prod(known) > layer.size


def norm_in_weights(node: Node) -> bool:
    """Batch norm in evaluation: (y - mean) * weight * rsqrt(var + eps) + bias, per channel of y."""
    norm = _module(node)
    if type(norm) not in _NORMS or norm is None or norm.training or len(node.args) != 1:
        return False
    layer = _layer(node.args[0])
    known = layer is not None and getattr(norm, "running_mean", None) is not None
    if layer is None or not known or not only_user(layer.node, node) or not _saves(node, layer):
        return False
    if layer.function is F.linear and len(shape(node) or ()) != 2:
        return False  # its channels are not the layer's
    write = _CallWriter(node)
    layer, name = write.state(layer), str(node.target)
    mean = write.attribute(f"{name}.running_mean", norm.running_mean)
    var = write.attribute(f"{name}.running_var", norm.running_var)
    eps = write.attribute(f"{name}.eps", norm.eps)
    factor = write.call(torch.rsqrt, write.call(torch.add, var, eps))
    if getattr(norm, "weight", None) is not None:
        gain = write.attribute(f"{name}.weight", norm.weight)
        factor = write.call(torch.mul, gain, factor)
    if layer.bias is not None:
        mean = write.call(torch.sub, mean, layer.bias)
    shift = write.call(torch.mul, mean, factor)
    if getattr(norm, "bias", None) is not None:
        offset = write.attribute(f"{name}.bias", norm.bias)
        shift = write.call(torch.sub, offset, shift)
    else:
        shift = write.call(torch.neg, shift)
    write.layer(layer, layer.x, _by_channel(write, layer, factor), shift)
    return True


def _by_channel(write: _CallWriter, layer: Layer, factor: Node) -> Node:
    """The weights times a number for each output channel."""
    column = write.call(torch.reshape, factor, (-1, *([1] * (len(layer.sizes) - 1))))
    return write.call(torch.mul, layer.weight, column, like=layer.weight)


def scale_in_weights(node: Node) -> bool:
    """A layer times or over a number, or (linear) times a number for each column."""
    name = called(node)
    if name not in ("mul", "div") or len(node.args) != 2 or node.kwargs:
        return False
    for result, factor in either(node) if name == "mul" else [node.args]:
        layer = _layer(result)
        if layer is None or not only_user(layer.node, node) or not _saves(node, layer):
            continue
        columns = layer.function is F.linear and shape(factor) == layer.sizes[:1]
        if (is_number(factor) or (columns and _is_weight(factor))) and same_dtype(node, result):
            _scale(node, layer, factor, columns)
            return True
    return False


def _scale(node: Node, layer: Layer, factor: Any, columns: bool) -> None:
    write = _CallWriter(node)
    layer = write.state(layer)
    function = torch.mul if called(node) == "mul" else torch.div
    across = write.call(torch.reshape, factor, (-1, 1)) if columns else factor
    weight = write.call(function, layer.weight, across, like=layer.weight)
    bias = (
        write.call(function, layer.bias, factor, like=layer.bias)
        if layer.bias is not None
        else None
    )
    write.layer(layer, layer.x, weight, bias)


def _is_weight(value: object) -> bool:
    return isinstance(value, Node) and value.op == "get_attr"


def linear_twice(node: Node) -> bool:
    """b(a(x)) as one layer whose weight is b's times a's, if that takes fewer multiplications."""
    outer = _layer(node)
    inner = _layer(outer.x) if outer is not None else None
    if outer is None or inner is None or not only_user(inner.node, node):
        return False
    if outer.function is not F.linear or inner.function is not F.linear:
        return False
    (columns, middle), width = outer.sizes, inner.sizes[1]
    rows = math.prod((shape(inner.x) or (0,))[:-1])
    if middle * width * columns + rows * width * columns >= rows * middle * (width + columns):
        return False
    write = _CallWriter(node)
    inner, outer = write.state(inner), write.state(outer)
    weight = write.call(torch.matmul, outer.weight, inner.weight)
    like = tensor(inner.weight)
    weight.meta["val"] = like.new_empty((columns, width)) if like is not None else None
    bias = outer.bias
    if inner.bias is not None:
        bias = write.call(torch.mv, outer.weight, inner.bias, like=inner.bias)
        if outer.bias is not None:
            bias = write.call(torch.add, bias, outer.bias, like=outer.bias)
    write.layer(outer, inner.x, weight, bias)
    return True


def channels_last(node: Node) -> bool:
    """Lay out the input of a convolution with channels last; later operators keep the layout.
    Weights do not change, since the harness writes to them as flat arrays."""
    if not _convolves(node) or not node.args or not isinstance(node.args[0], Node):
        return False
    x = node.args[0]
    layout = _FORMATS.get(len(shape(x) or ()))
    if layout is None or _has_layout(x):
        return False
    with node.graph.inserting_before(node):
        turned = node.graph.call_method("contiguous", (x,), {"memory_format": layout})
    turned.meta = dict(x.meta)
    node.replace_input_with(x, turned)
    _plain_results(node)
    return True


def _convolves(node: Node) -> bool:
    root = node.graph.owning_module
    if node.op == "call_module" and root is not None:
        return isinstance(root.get_submodule(str(node.target)), _CONVOLUTION_MODULES)
    return called(node) in _CONVOLUTION_NAMES


def _has_layout(x: Node) -> bool:
    """Whether it has the layout already, or comes from a tensor with it."""
    if called(x) == "contiguous" and "memory_format" in x.kwargs:
        return True
    return (
        bool(x.args)
        and isinstance(x.args[0], Node)
        and x.op != "placeholder"
        and (_has_layout(x.args[0]))
    )


def _plain_results(node: Node) -> None:
    """Replace views of the result, which need it contiguous, by reshape."""
    for user in list(node.users):
        if called(user) == "view":
            replace(user, torch.reshape, user.args, dict(user.kwargs))


# -- rules that remove operators without effect, repeated ones, and combine others

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


MAX_STEPS = 200  # of one rule, against rules that never end


@dataclass(frozen=True)
class RewriteRule:
    """A rewrite rule; `about` describes it. `fewer`: it must remove operators. `alone`: whether it
    pays depends on the machine, so the set of all exact rules leaves it out."""

    name: str
    about: str
    apply: Callable[[Node], bool]
    fewer: bool = True
    alone: bool = False


RULES: tuple[RewriteRule, ...] = (
    RewriteRule("idle_module", "leaves out modules that do nothing", idle_module),
    RewriteRule("done_twice", "computes equal expressions once", done_twice),
    RewriteRule("neutral_number", "leaves out * 1, / 1, - 0 and ** 1", neutral_number),
    RewriteRule("twice_undone", "leaves out pairs that undo each other", twice_undone),
    RewriteRule("same_again", "leaves out repeated casts and copies", same_again),
    RewriteRule("needless_copy", "leaves out clones of intermediate results", needless_copy),
    RewriteRule("same_shape", "leaves out views to the same shape", same_shape),
    RewriteRule("numbers_together", "combines constant numbers", numbers_together),
    RewriteRule("softmax", "calls softmax for exp over its sum", fuse.softmax),
    RewriteRule("log_softmax", "calls log_softmax", fuse.log_softmax),
    RewriteRule("logsumexp", "calls logsumexp", fuse.logsumexp),
    RewriteRule("layer_norm", "calls layer_norm", fuse.layer_norm),
    RewriteRule("rms_norm", "calls rms_norm", fuse.rms_norm),
    RewriteRule("gelu", "calls gelu", fuse.gelu),
    RewriteRule("silu", "calls silu", fuse.silu),
    RewriteRule("attention", "calls scaled_dot_product_attention", fuse.attention),
    RewriteRule(
        "cheaper_order", "multiplies in the cheaper order", fuse.cheaper_order, fewer=False
    ),
    RewriteRule("merged_products", "merges products into a batched one", fuse.merged_products),
    RewriteRule("linear", "calls linear for a product and its bias", fuse.linear),
    RewriteRule("added_product", "adds inside the product's operator", fuse.added_product),
    RewriteRule("common_factor", "multiplies by a common factor once", common_factor),
    RewriteRule("linear_twice", "multiplies two layers' weights first", linear_twice, fewer=False),
    RewriteRule(
        "norm_in_weights",
        "folds batch norm into the weights before it",
        norm_in_weights,
        fewer=False,
    ),
    RewriteRule(
        "scale_in_weights",
        "folds a scale into the weights before it",
        scale_in_weights,
        fewer=False,
    ),
    RewriteRule("kept_constant", "makes constant tensors once", cached_constant),
    RewriteRule(
        "channels_last",
        "lays images out with channels last",
        channels_last,
        fewer=False,
        alone=True,
    ),
)


@dataclass(frozen=True)
class Rewritten:
    """A rewritten forward; `before` and `after` count the operators of one call."""

    rules: tuple[RewriteRule, ...]
    text: ForwardText
    before: int
    after: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the applied rules, in their order."""
        return tuple(rule.name for rule in self.rules)


def rewrite(traced: SymbolicGraph, rules: Sequence[RewriteRule]) -> Rewritten | None:
    """The graph after those of these rules that apply; None if none does."""
    module = copy_of(traced.graph)
    before = operators(module.graph)
    applied = [rule for rule in rules if _applied(module, rule)]
    text = forward_text(module.graph) if applied else None
    if text is None:
        return None
    return Rewritten(tuple(applied), text, before, operators(module.graph))


def variants(traced: SymbolicGraph) -> list[Rewritten]:
    """All exact rules together, then all rules, then each rule alone."""
    exact = [rule for rule in RULES if not rule.alone]
    sets = [exact, list(RULES), *([rule] for rule in RULES)]
    rewrites: list[Rewritten] = []
    for rules in sets:
        rewritten = rewrite(traced, rules)
        if rewritten is not None and all(rewritten.text != other.text for other in rewrites):
            rewrites.append(rewritten)
    return rewrites


def copy_of(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph over the same modules."""
    graph = fx.Graph()
    places: dict[Node, Node] = {}
    result = graph.graph_copy(module.graph, places)
    graph.output(result)
    for old, new in places.items():
        new.meta = copy.copy(old.meta)
    return fx.GraphModule(module, graph)


def _applied(module: fx.GraphModule, rule: RewriteRule) -> bool:
    """Apply a rule as often as it matches; returns whether it did."""
    done = False
    for _ in range(MAX_STEPS):
        if not _once(module, rule):
            break
        done = True
    return done


def _once(module: fx.GraphModule, rule: RewriteRule) -> bool:
    for node in list(module.graph.nodes):
        if not node.users and node.op != "output":
            continue
        if rule.fewer and not _would_shrink(module, rule, node):
            continue
        if rule.apply(node):
            module.graph.eliminate_dead_code()
            return True
    return False


def _would_shrink(module: fx.GraphModule, rule: RewriteRule, node: Node) -> bool:
    """Whether the rule removes operators here; parts with other users stay."""
    trial = copy_of(module)
    twin = list(trial.graph.nodes)[list(module.graph.nodes).index(node)]
    before = operators(trial.graph)
    if not rule.apply(twin):
        return False
    trial.graph.eliminate_dead_code()
    return operators(trial.graph) < before
