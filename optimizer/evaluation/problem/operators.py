"""What the operators of a reference show: the floating-point operations that they cost, and the
numbers that they are called with (strides, windows, epsilons, limits), which no tensor shows.

Both are found by running the reference once and watching what torch dispatches, so it does not
matter how the problem file spells them. Also the terms of a sum by a problem's own formula.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import flop_registry, shape_wrapper

from kb.errors import InvalidRequest
from kb.predicates import Bindings, compile_expression
from optimizer.evaluation.problem.dominant import operator_of, work_of
from optimizer.evaluation.problem.shapes import ATTENTION, Observed, Product, Trait
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.runner.dispatch import DispatchWatch

if TYPE_CHECKING:
    from optimizer.evaluation.problem.tensors import OpenCase

# What tensors of a layout of their own are asked for; no operator of a computation.
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


def counted_flops(run: Callable[[], Any]) -> int:
    """Floating-point operations of the operators that torch's counter knows; 0 where a run uses
    none of them."""
    counter = _Flops()
    with counter:
        run()
    return counter.flops


# torch's fused attention; its counter leaves out that of the CPU.
ATTENTIONS = (
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
    torch.ops.aten._scaled_dot_product_flash_attention,
    torch.ops.aten._scaled_dot_product_efficient_attention,
    torch.ops.aten._scaled_dot_product_cudnn_attention,
)


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    """Of the shapes that the counter hands over: (batch, heads, length, width) each. Both products
    are made for every head of the query; PyTorch 2.11's own formula refuses shared heads of keys.
    """
    *heads, length, width = query
    return int(2 * prod(heads) * length * key[-2] * (width + value[-1]))


def formula_value(text: str, names: Mapping[str, Any], problem: Problem) -> int:
    """A reduction length from a problem file's constants; at least 1. Raises InvalidRequest for a
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
    """Operators are those of torch's dispatcher (`native_layer_norm`, not `LayerNorm`). Runs the
    reference once, on arrays without memory where the case is computed elsewhere.
    """
    if case.imagines:
        with suppress(InvalidRequest):  # what it runs depends on values: they have to be made
            return _imagined(case)
    # Building the model runs operators too; it must be built before anything is watched.
    own, inputs, state = case.attributes(), case.inputs(0), case.state(0)
    with _Arguments() as seen:
        case.reference(inputs, state, device=device)
    return Observed({**own, **seen.traits}, dict(seen.kinds), seen.product, dict(seen.work))


def _imagined(case: OpenCase) -> Observed:
    """As `observe`, from shapes and dtypes alone."""
    own = case.attributes()
    with FakeTensorMode(allow_non_fake_inputs=True):
        _, _, forward = case.imagine()
        with _Arguments() as seen:
            forward()
    return Observed({**own, **seen.traits}, dict(seen.kinds), seen.product, dict(seen.work))


class _Flops(DispatchWatch):  # type: ignore[no-untyped-call]
    """Counts by torch's own formulas; an operator without one counts as what it is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        attention = shape_wrapper(_attention)  # type: ignore[no-untyped-call]
        self._formulas = {**flop_registry, **dict.fromkeys(ATTENTIONS, attention)}

    def dispatched(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        name = func._schema.name
        if name in LAYOUT:
            return NotImplemented  # the tensor answers
        formula = self._formulas.get(func._overloadpacket)
        if formula is None and name != "prim::device":
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if formula is not None:
            self.flops += int(formula(*args, **kwargs, out_val=result))
        return result


class _Arguments(DispatchWatch):  # type: ignore[no-untyped-call]
    """Remembers every argument that is a number, a word or a list of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.traits: dict[str, Trait] = {}
        self.kinds: Counter[str] = Counter()
        self.product: Product | None = None
        self.work: dict[str, float] = defaultdict(float)
        self._counts: Counter[str] = Counter()

    def dispatched(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        arguments = dict(kwargs)
        name = func._schema.name.split("::")[-1]
        self._counts[name] += 1
        if (kind := _kind(func, name)) is not None:
            self.kinds[kind] += 1
        if kind == "product" and (product := _product(name, args)) is not None:
            largest = self.product.multiplications if self.product else 0
            self.product = product if product.multiplications > largest else self.product
        count = self._counts[name]
        label = name if count == 1 else f"{name}#{count}"
        for argument, value in zip(func._schema.arguments, args, strict=False):
            arguments[argument.name] = value
        for key, value in arguments.items():
            self._keep(f"{label}.{key}", value)
        if name.startswith("_scaled_dot_product_"):
            self._keep_attention(label.partition("#"), func._schema.arguments, arguments)
        result = func(*args, **kwargs)
        if kind is not None:
            self.work[operator_of(func, name)] += work_of(func, args, kwargs, result)
        return result

    def _keep_attention(
        self, label: tuple[str, str, str], schema: Any, arguments: Mapping[str, Any]
    ) -> None:
        """The same traits whichever of its attention kernels torch takes on this device."""
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

    def _keep(self, name: str, value: Any) -> None:
        if isinstance(value, bool | int | float | str):
            self.traits[name] = value
        elif isinstance(value, list | tuple):
            for place, item in enumerate(value):
                if isinstance(item, bool | int | float):
                    self.traits[f"{name}[{place}]"] = item


def _kind(func: Any, name: str) -> str | None:
    """Of an operator; None for a view, a copy, an allocation or a question about layout."""
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


def _product(name: str, args: tuple[Any, ...]) -> Product | None:
    """Of an operator's first two matrices, behind what it adds to their product; None where they
    are none.
    """
    first = 1 if name in ADDED_TO else 0
    pair = [arg.shape for arg in args[first : first + 2] if isinstance(arg, torch.Tensor)]
    if len(pair) < 2 or not 2 <= len(pair[0]) == len(pair[1]) <= 3:
        return None
    left, right = pair
    count = int(left[0]) if len(left) == 3 else 1
    return Product(count, int(left[-2]), int(right[-1]), int(left[-1]))
