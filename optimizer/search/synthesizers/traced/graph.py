"""The forward of a case's Model as a graph of primitive operators, with its sizes.

make_fx follows execution over fake tensors, so the graph includes gradients that forward takes, and
nothing is computed or allocated. torch's decompositions leave some eighty primitive operators.
Problem files are their user's own code and run in this process, as when the harness opens them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from optimizer.evaluation.problem.user_code import positional
from optimizer.evaluation.runner.constructor import script_module

# A failure is reported as the reason of a missing graph, not as a traceback on the terminal.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
_ATEN = torch.ops.aten
# Operators that core ATen keeps whole and lowering needs decomposed.
_WHOLE = (
    *(_ATEN._softmax, _ATEN._log_softmax, _ATEN._softmax_backward_data),
    *(_ATEN._log_softmax_backward_data, _ATEN.logsumexp, _ATEN.native_layer_norm),
    *(_ATEN.native_layer_norm_backward, _ATEN.native_group_norm, _ATEN.native_batch_norm),
    *(_ATEN._native_batch_norm_legit_no_training, _ATEN.var, _ATEN.var_mean, _ATEN.std),
    *(_ATEN.mean, _ATEN.gelu, _ATEN.gelu_backward, _ATEN.silu, _ATEN.mish, _ATEN.elu),
    *(_ATEN.leaky_relu, _ATEN.hardtanh, _ATEN.hardsigmoid, _ATEN.hardswish, _ATEN.softplus),
    *(_ATEN.upsample_bilinear2d, _ATEN.upsample_bicubic2d, _ATEN.grid_sampler_2d, _ATEN.ldexp),
    *(_ATEN.upsample_nearest1d, _ATEN.upsample_nearest2d, _ATEN.upsample_nearest3d),
    *(_ATEN.upsample_linear1d, _ATEN.upsample_trilinear3d, _ATEN.pixel_unshuffle),
    _ATEN.diagonal_scatter,
)
# torch decomposes these into an operator for each of possibly thousands of places of a window.
_NOT_DECOMPOSED = (_ATEN._adaptive_avg_pool2d.default, _ATEN.adaptive_max_pool2d.default)
MOST_OPERATORS = 2_000  # compilers do not finish in time with the code of more

ATTENTION = "kernlore.attention.default"  # torch's scaled_dot_product_attention, whole
_FUSED = torch.nn.functional.scaled_dot_product_attention
# After query, key and value.
ATTENTION_OPTIONS = ("attn_mask", "is_causal", "scale", "enable_gqa")
_FUSED_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@dataclass(frozen=True)
class Traced:
    """A graph whose placeholders are inputs, then weights and buffers in state_dict order, then the
    buffers of `hidden`, by their path in the Model: those outside of the state_dict, such as the
    frequencies of a rotary embedding, with their elements if requested."""

    graph: fx.Graph
    hidden: Mapping[str, torch.Tensor | None] = field(default_factory=dict)


@dataclass(frozen=True)
class NotTraced:
    """The reason for a missing graph."""

    reason: str


@lru_cache(maxsize=32)
def trace(
    source: str, dtype: str | None, attention: bool = False, values: bool = True
) -> Traced | NotTraced:
    """The forward of the `Model` in a case's source, in evaluation mode.

    `dtype` is that of all floating inputs and weights, None for those of the file. With
    `attention`, calls of scaled_dot_product_attention stay one operator, `ATTENTION`, which torch
    has fused kernels for; otherwise they become products and a softmax. With `values`, a Model with
    hidden buffers is constructed with memory, to read them.
    """
    try:
        if attention:
            with suppress(Exception):  # such as under vmap: then without
                return _traced(source, dtype, attention, values)
        return _traced(source, dtype, False, values)
    # The file is foreign code, and tracers raise errors of any kind.
    except Exception as error:
        return NotTraced(f"{type(error).__name__}: {str(error)[:300]}")


def _traced(source: str, dtype: str | None, attention: bool, values: bool) -> Traced | NotTraced:
    module = script_module(source)
    model_class, known = module.__dict__["Model"], module.__dict__
    wanted = getattr(torch, dtype) if dtype else None
    make_init = known.get("get_init_inputs")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        init = make_init() if make_init is not None else []
        model = _model(model_class, init).eval().requires_grad_(False)
        given = positional(model_class.forward, known["get_inputs"](), "get_inputs()", 1)
        if not all(isinstance(value, torch.Tensor) for value in given):
            return NotTraced("forward takes Python numbers, whose values may change")
        inputs = [_of_dtype(value, wanted) for value in given]
        state = {
            name: _of_dtype(v if isinstance(v, FakeTensor) else mode.from_tensor(v), wanted)
            for name, v in _every(model).items()
        }

        def run(*tensors: torch.Tensor) -> Any:
            weights = dict(zip(state, tensors[len(inputs) :], strict=True))
            with _WholeAttention() if attention else nullcontext():
                return torch.func.functional_call(model, weights, tuple(tensors[: len(inputs)]))

        tensors = (*inputs, *state.values())
        graph = make_fx(run, decomposition_table=_decompositions())(*tensors).graph
        if any(_writes(node) for node in graph.nodes):
            # From a graph without decompositions: inside operators that torch decomposes, such as
            # a smoothed cross entropy, operators in place would stay.
            plain = make_fx(run)(*tensors)
            functional = torch.func.functionalize(plain, remove="mutations")
            graph = make_fx(functional, decomposition_table=_decompositions())(*tensors).graph
            _leave_inputs(graph)
    graph.eliminate_dead_code()
    _merge_equal_views(graph)
    if len(graph.nodes) > MOST_OPERATORS:
        return NotTraced(f"it is made of {len(graph.nodes)} operators")
    names = tuple(state)[len(model.state_dict()) :]
    return Traced(graph, _held(known, names) if values and names else dict.fromkeys(names))


def _leave_inputs(graph: fx.Graph) -> None:
    """Remove copies into the graph's own inputs: a kernel returns the new values of an input that
    the reference changes in place, and only reads the input."""
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder":
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)


def _held(known: Mapping[str, Any], names: Sequence[str]) -> dict[str, torch.Tensor]:
    """The elements of these buffers of the Model. The harness rejects problems that draw them at
    random."""
    make_init = known.get("get_init_inputs")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        made = dict(_model(known["Model"], make_init() if make_init else []).named_buffers())
    return {name: made[name] for name in names}


def _merge_equal_views(graph: fx.Graph) -> None:
    """Replace equal views of a tensor by one: with a separate view for each of three products, a
    norm would be computed and written three times."""
    known: dict[str, fx.Node] = {}
    for node in list(graph.nodes):
        if not isinstance(node.target, torch._ops.OpOverload) or not node.target.is_view:
            continue
        if any(user.op == "output" for user in node.users):
            continue  # results are separate tensors
        same = known.setdefault(f"{node.target} {node.args!r} {node.kwargs!r}", node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _every(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The state_dict, followed by the other buffers."""
    state = model.state_dict()
    return state | {name: v for name, v in model.named_buffers() if name not in state}


@torch.library.custom_op("kernlore::attention", mutates_args=())
def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    return _FUSED(
        query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    ).clone()


@_attention.register_fake
def _attention_shape(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    shapes = [tensor.shape[:-2] for tensor in (query, key, value)]
    batch = shapes[0] if enable_gqa else torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return query.new_empty((*batch, query.shape[-2], value.shape[-1]))


class _WholeAttention(TorchFunctionMode):
    """Attention without dropout or gradients becomes one operator."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(zip(_FUSED_ARGUMENTS, args, strict=False)) | dict(kwargs or {})
        if func is not _FUSED or given.pop("dropout_p", 0.0) or _has_gradients(given):
            return func(*args, **(kwargs or {}))
        return _attention(**given)


def _has_gradients(given: Mapping[str, Any]) -> bool:
    tensors = [value for value in given.values() if isinstance(value, torch.Tensor)]
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _model(model_class: Any, init: Any) -> torch.nn.Module:
    """The Model, without memory unless torch fails to change the dtype of fake weights."""
    arguments = positional(model_class.__init__, init, "get_init_inputs()", 1)
    try:
        model: torch.nn.Module = model_class(*arguments)
    except RuntimeError as problem:
        if "swap" not in str(problem):
            raise
        with unset_fake_temporarily():
            model = model_class(*arguments)
    return model


def _writes(node: fx.Node) -> bool:
    """Whether an operator writes into its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _of_dtype(value: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """The tensor as a kernel gets it: contiguous, floats in the case's dtype."""
    value = value.detach().contiguous()
    return value.to(dtype) if dtype is not None and value.is_floating_point() else value


@lru_cache(maxsize=1)
def _decompositions() -> dict[Any, Any]:
    every = {**core_aten_decompositions(), **get_decompositions(_WHOLE)}
    return {name: made for name, made in every.items() if name not in _NOT_DECOMPOSED}
