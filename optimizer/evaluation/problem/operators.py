"""Observation of the operators of a reference: the floating-point operations that they cost, and
their numeric arguments (strides, windows, epsilons, limits), which no tensor shows.

Both are found by running the reference once and watching what torch dispatches, so it does not
matter how the problem file spells them. Also the terms of a sum by a problem's own formula.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import flop_registry, shape_wrapper

from kb.errors import InvalidRequest
from kb.predicates import Bindings, compile_expression
from kb.problem_terms import op_family
from optimizer.evaluation.problem.spec import ATTENTION, MatrixProduct, Observed, Problem, Trait
from optimizer.evaluation.runner.kernels import DispatchWatch

if TYPE_CHECKING:
    from optimizer.evaluation.problem.open_case import OpenCase


# Queries to tensors with a custom layout, which compute nothing.
LAYOUT = frozenset(
    {
        *("aten::sym_is_contiguous", "aten::is_contiguous", "aten::is_strides_like_format"),
        *("aten::is_non_overlapping_and_dense", "aten::size", "aten::sym_size", "aten::stride"),
        *("aten::sym_stride", "aten::storage_offset", "aten::sym_storage_offset", "aten::numel"),
        *("aten::sym_numel", "aten::dim", "prim::layout"),
    }
)

ALLOCATION = ("empty", "new_empty", "zeros", "new_zeros", "ones", "full", "arange", "scalar_tensor")
ADDED_TO = ("addmm", "baddbmm")  # their first argument is added to the product
COPY = ("_to_copy", "clone", "copy_", "detach", "lift_fresh", "set_")


# Operators that leave a part of an earlier result out.
POINTWISE = "pointwise.names"  # trait
MASKING = frozenset(("tril", "triu", "masked_fill", "masked_scatter", "where", "topk"))


class ReferenceCost(NamedTuple):
    """Cost of one run of a reference by the formulas of its operators.

    `flops` are floating-point operations of the operators that torch's counter knows, 0 without
    any. `result_bytes` is the size of all intermediate results. `masks`: an operator leaves a part
    of an earlier result out, so that fewer operations may be needed than the formulas give.
    `scanned` is the length of the longest sum or product over a prefix, 0 without one.
    """

    flops: int
    result_bytes: int
    masks: bool
    scanned: int = 0


def reference_cost(run: Callable[[], Any]) -> ReferenceCost:
    counter = _Flops()
    with counter:
        run()
    return ReferenceCost(counter.flops, counter.result_bytes, counter.masks, counter.scanned)


# torch's fused attention; its counter omits that of the CPU.
ATTENTIONS = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
    torch.ops.aten._scaled_dot_product_flash_attention,
    torch.ops.aten._scaled_dot_product_efficient_attention,
    torch.ops.aten._scaled_dot_product_cudnn_attention,
)


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    """From the counter's shapes, each (batch, heads, length, width). Both products are made for
    every head of the query; PyTorch 2.11's own formula refuses shared heads of keys."""
    *heads, length, width = query
    return int(2 * prod(heads) * length * key[-2] * (width + value[-1]))


def _layer(rows: Any, *weights: Any, **_: Any) -> int:
    """One recurrent layer in one direction: at each position a product with both matrices."""
    matrices = [weight for weight in weights[:2] if len(weight) == 2]
    return int(2 * prod(rows[:-1]) * sum(map(prod, matrices)))


def _recurrent(rows: Any, weights: Any, *args: Any, **kwargs: Any) -> int:
    """All layers and directions of a recurrent network."""
    matrices = [weight for weight in weights if len(weight) == 2]
    return int(2 * prod(rows[:-1]) * sum(map(prod, matrices)))


# In place of torch's formulas, or of none, by operator.
_FORMULAS = {
    name: shape_wrapper(formula)  # type: ignore[no-untyped-call]
    for name, formula in (
        *((name, _attention) for name in ATTENTIONS),
        (torch.ops.aten.mkldnn_rnn_layer, _layer),
        (torch.ops.aten._cudnn_rnn, _recurrent),
        (torch.ops.aten.miopen_rnn, _recurrent),
    )
}
_PREFIX_SUMS = frozenset(("cumsum", "cumprod", "logcumsumexp"))
_SPARSE_PRODUCTS = frozenset(("mm", "addmm", "mv", "addmv", "_sparse_addmm"))


def formula_of(func: Any, args: Sequence[Any]) -> Callable[..., int] | None:
    """The formula for the floating-point operations of a call; None if they are not counted."""
    if func._schema.name.split("::")[-1] in _SPARSE_PRODUCTS:
        sparse = [t for t in _tensors(args) if t.layout is not torch.strided]
        if sparse:
            return _sparse_product
    formula: Callable[..., int] | None = _FORMULAS.get(func._overloadpacket)
    return formula or flop_registry.get(func._overloadpacket)


def _sparse_product(*args: Any, **_: Any) -> int:
    """Of one sparse factor, by its elements that are stored; 0 for two, whose common positions are
    unknown."""
    factors = _tensors(args)[-2:]
    dense = [t for t in factors if t.layout is torch.strided]
    sparse = [t for t in factors if t.layout is not torch.strided]
    if len(dense) != 1 or len(sparse) != 1:
        return 0
    matrix, stored = dense[0], sparse[0].values() if _compressed(sparse[0]) else sparse[0]._values()
    if matrix.dim() < 2:
        return 2 * stored.numel()
    return 2 * stored.numel() * int(matrix.shape[-1 if factors[0] is sparse[0] else 0])


def _compressed(tensor: torch.Tensor) -> bool:
    return tensor.layout is not torch.sparse_coo


def formula_value(text: str, names: Mapping[str, Any], problem: Problem) -> int:
    """A reduction length from a problem file's constants, at least 1. Raises InvalidRequest for a
    formula without a value."""
    constants = {
        name: value
        for name, value in names.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    result = compile_expression(text).compute(Bindings(parameters=constants))
    if not isinstance(result.value, int | float):
        raise InvalidRequest(
            f"{problem.name}: policy.reduction_length {text!r} has no value",
            hint=f"Use the file's constants: {', '.join(sorted(constants)) or 'it has none'}.",
        )
    return max(1, int(result.value))


def traits_of(case: OpenCase, device: str = "cpu") -> dict[str, Trait]:
    """The traits of `observe`. Runs the reference once."""
    return dict(observe(case, device).traits)


def observe(case: OpenCase, device: str = "cpu") -> Observed:
    """The operators that the reference dispatches, by torch's names (`native_layer_norm`, not
    `LayerNorm`). Runs it once, on arrays without memory if the case infers shapes."""
    # Building the model dispatches operators too, and must not be watched.
    own, seen = case.attributes(), None
    if case.infers:
        with suppress(InvalidRequest), FakeTensorMode(allow_non_fake_inputs=True):
            _, _, forward = case.fake_run()
            with _ArgumentRecorder() as watched:
                forward()
            seen = watched
    if seen is None:  # what it dispatches depends on values, which must be drawn
        inputs, state = case.drawn(0)
        with _ArgumentRecorder() as seen:
            case.reference(inputs, state, device=device)
    traits = {**own, **seen.traits, POINTWISE: " ".join(sorted(seen.pointwise))}
    return Observed(traits, dict(seen.kinds), seen.product, dict(seen.work))


class _Flops(DispatchWatch):  # type: ignore[no-untyped-call]
    """Counts by torch's formulas; an operator without one counts as the operators it consists
    of."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.result_bytes = self.scanned = 0
        self.masks = False

    def dispatched(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        name = func._schema.name
        if name in LAYOUT:
            return NotImplemented  # the tensor answers
        formula = formula_of(func, args)
        if formula is None and name != "prim::device":
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if formula is not None:
            self.flops += int(formula(*args, **kwargs, out_val=result))
        operator = name.split("::")[-1].removesuffix("_")
        self.masks |= operator in MASKING
        if operator in _PREFIX_SUMS and args[0].ndim:
            dim = kwargs["dim"] if "dim" in kwargs else args[1]
            self.scanned = max(self.scanned, args[0].shape[dim])
        if not func.is_view:
            values = result if isinstance(result, tuple | list) else [result]
            self.result_bytes += sum(t.numel() * t.element_size() for t in _tensors(values))
        return result


class _ArgumentRecorder(DispatchWatch):  # type: ignore[no-untyped-call]
    """Records every argument that is a number, a word or a list of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.traits: dict[str, Trait] = {}
        self.kinds: Counter[str] = Counter()
        self.pointwise: list[str] = []
        self.product: MatrixProduct | None = None
        self.work: dict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()

    def dispatched(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        arguments = dict(kwargs)
        name = func._schema.name.split("::")[-1]
        self._counts[name] += 1
        if (kind := _kind(func, name)) is not None:
            self.kinds[kind] += 1
        if kind == "pointwise":
            self.pointwise.append(name)
        if kind == "product" and (product := _product(name, args)) is not None:
            largest = self.product.multiplications if self.product else 0
            self.product = product if product.multiplications > largest else self.product
        count = self._counts[name]
        label = name if count == 1 else f"{name}#{count}"
        for argument, value in zip(func._schema.arguments, args, strict=False):
            arguments[argument.name] = value
        for key, value in arguments.items():
            self._record(f"{label}.{key}", value)
        if name.startswith("_scaled_dot_product_"):
            self._record_attention(label.partition("#"), func._schema.arguments, arguments)
        result = func(*args, **kwargs)
        if kind is not None:
            self.work[operator_of(func, name)] += work_of(func, args, kwargs, result)
        return result

    def _record_attention(
        self, label: tuple[str, str, str], schema: Any, arguments: Mapping[str, Any]
    ) -> None:
        """The same traits for all of torch's attention kernels, which differ by device."""
        given = {a.name: a.default_value for a in schema if a.has_default_value()}
        given.update(arguments)
        masked = any(given.get(name) is not None for name in ("attn_mask", "attn_bias"))
        name = f"{ATTENTION}{label[1]}{label[2]}"
        self.traits[f"{name}.masked"] = masked
        self.traits[f"{name}.is_causal"] = bool(given["is_causal"])
        self.traits[f"{name}.dropout_p"] = float(given["dropout_p"])
        width = given["query"].shape[-1]
        self.traits[f"{name}.scale"] = float(given.get("scale") or width**-0.5)
        self.traits[f"{name}.query_length"] = int(given["query"].shape[-2])
        self.traits[f"{name}.key_length"] = int(given["key"].shape[-2])

    def _record(self, name: str, value: Any) -> None:
        if isinstance(value, bool | int | float | str):
            self.traits[name] = value
        elif isinstance(value, list | tuple):
            for number, item in enumerate(value):
                if isinstance(item, bool | int | float):
                    self.traits[f"{name}[{number}]"] = item


def _kind(func: Any, name: str) -> str | None:
    """Kind of an operator; None for a view, a copy, an allocation or a query of layout."""
    asks = func._schema.name in LAYOUT or func.namespace == "prim"
    if func.is_view or asks or name in COPY or name.startswith(ALLOCATION):
        return None
    if torch.Tag.pointwise in func.tags:
        return "pointwise"
    if "conv" in name:
        return "convolution"
    if "attention" in name:
        return "attention"
    return "product" if func._overloadpacket in flop_registry else "other"


def _product(name: str, args: tuple[Any, ...]) -> MatrixProduct | None:
    """Product of an operator's two matrices, after the term that it adds; None if they are no
    matrices."""
    first = 1 if name in ADDED_TO else 0
    pair = [arg.shape for arg in args[first : first + 2] if isinstance(arg, torch.Tensor)]
    if len(pair) < 2 or not 2 <= len(pair[0]) == len(pair[1]) <= 3:
        return None
    left, right = pair
    count = int(left[0]) if len(left) == 3 else 1
    return MatrixProduct(count, int(left[-2]), int(right[-1]), int(left[-1]))


# -- the operator that most of the work is in
#
# A guess by the calls in a file may name a small part of it: votes are counted by a scatter, after
# distances that are all of the work.

FLOPS_A_BYTE = 10.0  # about what processors compute while a byte comes from memory
MOST = 0.6  # share of the work that makes an operator dominant
LITTLE = 0.2  # share below which the guessed operator is incidental
FUSED = 0.2  # of the work of elementwise operators, above which another operator absorbs them
# Operators that often surround other work; a product or a norm does not.
INCIDENTAL = frozenset(
    ("embedding_bag", "embedding", "bucketize", "sort", "scatter", "gather", "elementwise")
)
UNKNOWN = "unknown"  # the guess for a file that calls no known operator
# Operator (of kb/problem_terms.toml) -> prefixes of torch's operators.
_BEGINNINGS = {
    "attention": ("_scaled_dot_product", "_flash_attention", "_efficient_attention"),
    "conv": ("convolution", "_convolution", "conv"),
    "recurrent": ("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn"),
    "bmm": ("bmm", "baddbmm"),
    "matmul": ("mm", "addmm", "mv", "addmv", "dot", "_cdist", "cdist", "linear"),
    "softmax": ("_softmax", "_log_softmax", "logsumexp"),
    "layernorm": ("native_layer_norm", "native_group_norm", "native_batch_norm", "_fused_rms_norm"),
    "loss": ("nll_loss", "mse_loss", "smooth_l1_loss", "huber_loss"),
    "pooling": ("max_pool", "avg_pool", "adaptive_", "_adaptive_"),
    "scan": ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "_cummax", "_cummin"),
    "bucketize": ("bucketize", "searchsorted"),
    "sort": ("sort", "topk", "argsort", "kthvalue", "median", "mode", "unique"),
    "scatter": ("scatter", "index_add", "index_put", "_index_put", "index_copy", "bincount"),
    "embedding": ("embedding", "_embedding_bag"),
    "gather": ("gather", "index_select", "index", "take"),
    "reduction": (
        *("sum", "mean", "amax", "amin", "aminmax", "max", "min", "prod", "var", "std", "argmax"),
        *("argmin", "norm", "linalg_vector_norm", "any", "all", "count_nonzero"),
    ),
}


def operator_of(func: Any, name: str) -> str:
    """The operator of kb/problem_terms.toml for one of torch's, or ""."""
    if torch.Tag.pointwise in func.tags:  # first: `maximum` begins like a reduction
        return "elementwise"
    of = (op for op, beginnings in _BEGINNINGS.items() if name.startswith(beginnings))
    return next(of, "")


def work_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> float:
    """Cost of a call in bytes: those that it reads and writes, or its operations converted by
    FLOPS_A_BYTE, whichever is more."""
    tensors = [*_tensors(args), *_tensors(list(kwargs.values())), *_tensors([result])]
    moved = float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))
    formula = formula_of(func, args)
    if formula is None:
        return moved
    try:
        return max(moved, float(formula(*args, **kwargs, out_val=result)) / FLOPS_A_BYTE)
    except (TypeError, ValueError, AssertionError, IndexError):  # torch does not count this form
        return moved


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    parts = [v if isinstance(v, list | tuple) else [v] for v in values]
    return [value for part in parts for value in part if isinstance(value, torch.Tensor)]


def dominant(work: Mapping[str, float], op: str) -> str:
    """The operator that most of the work is in, if it is not the guessed `op`; "" if `op` has its
    share, cannot be incidental, or no operator has most. Elementwise operators count only if `op`
    is unknown, because they are fused into what they feed.

    `work` is by operator, "" for work without one.
    """
    total = sum(work.values())
    if op not in (*INCIDENTAL, UNKNOWN) or not total:
        return ""
    share = {name: amount / total for name, amount in work.items() if name}
    alone = share.pop("elementwise", 0.0)
    families: dict[str, float] = defaultdict(float)
    for name, part in share.items():
        families[op_family(name)] += part
    own = families.pop(op_family(op), 0.0)
    first = max(families, key=lambda family: families[family], default="")
    if not first or families[first] < FUSED * alone:
        return "elementwise" if op == UNKNOWN and alone > MOST else ""
    if own >= LITTLE or families[first] + alone <= MOST:
        return ""
    return max((n for n in share if op_family(n) == first), key=lambda name: share[name])
