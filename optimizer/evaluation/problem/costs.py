"""What a case costs: floating-point operations as dispatched, terms of a sum by formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from kb.errors import InvalidRequest
from kb.predicate_nodes import Bindings
from kb.predicates import compile_expression
from optimizer.evaluation.problem.spec import Problem


def counted_flops(run: Callable[[], Any]) -> int:
    """Of the operators that torch's counter knows; 0 where a run uses none of them."""
    # The CPU's fused attention, which the counter leaves out.
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    counter = FlopCounterMode(display=False, custom_mapping={fused: _attention})
    with counter:
        run()
    return int(counter.get_total_flops())


def _attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    """Of the shapes that the counter hands over."""
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def formula_value(text: str, names: Mapping[str, Any], problem: Problem) -> int:
    """A reduction length from a problem file's constants; at least 1."""
    constants = {
        name: value
        for name, value in names.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    found = compile_expression(text).compute(Bindings(parameters=constants))
    if not isinstance(found.value, int | float):
        raise InvalidRequest(
            f"{problem.name}: policy.reduction_length {text!r} has no value",
            hint=f"Use the file's constants: {', '.join(sorted(constants)) or 'it has none'}.",
        )
    return max(1, int(found.value))
