"""Rewrites of linear layers and convolutions: operators before or after one are folded into its
weights, and convolutions use channels-last.

Weights are folded in every call, since they may change between calls. So a rule applies only if the
weights are smaller than the activations that it saves a pass over. Results differ by rounding,
since sums are computed in another order. Channels-last does not change the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from optimizer.search.synthesizers.compiler.rewrites.pattern import (
    argument,
    called,
    either,
    is_number,
    only_user,
    replace,
    same_dtype,
    shape,
    tensor,
)

_CONVOLUTIONS: dict[type, Callable[..., Any]] = {
    torch.nn.Conv1d: F.conv1d,
    torch.nn.Conv2d: F.conv2d,
    torch.nn.Conv3d: F.conv3d,
}
_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
_FUNCTIONS = (F.linear, *_CONVOLUTIONS.values())
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
        """Replace the node by the layer with other weights."""
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
    if node.target not in _FUNCTIONS or not set(node.kwargs) <= {"weight", "bias"}:
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
