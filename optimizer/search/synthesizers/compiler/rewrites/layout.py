"""Convolutions in channels-last: the same numbers, where the channels of one pixel lie together."""

from __future__ import annotations

import torch
from torch.fx import Node

from optimizer.search.synthesizers.compiler.rewrites.pattern import called, replace, shape

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_CONVOLUTIONS = (
    torch.nn.Conv2d,
    torch.nn.Conv3d,
    torch.nn.ConvTranspose2d,
    torch.nn.ConvTranspose3d,
)
_FUNCTIONS = ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")


def channels_last(node: Node) -> bool:
    """The input of a convolution is laid out anew; what follows keeps the layout. Weights stay as
    they are, because the harness writes to them as flat arrays."""
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
        return isinstance(root.get_submodule(str(node.target)), _CONVOLUTIONS)
    return called(node) in _FUNCTIONS


def _has_layout(x: Node) -> bool:
    """It was laid out, or comes through operators that keep the layout from one that was."""
    if called(x) == "contiguous" and "memory_format" in x.kwargs:
        return True
    return (
        bool(x.args)
        and isinstance(x.args[0], Node)
        and x.op != "placeholder"
        and (_has_layout(x.args[0]))
    )


def _plain_results(node: Node) -> None:
    """What views the result as an array of another shape needs it contiguous."""
    for user in list(node.users):
        if called(user) == "view":
            replace(user, torch.reshape, user.args, dict(user.kwargs))
