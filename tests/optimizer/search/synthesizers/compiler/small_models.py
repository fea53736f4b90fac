"""Small models whose graphs are rewritten, and whether their results are preserved."""

from __future__ import annotations

from typing import Any

import torch

from optimizer.search.synthesizers.compiler.configurations import rewritten_bundle
from optimizer.search.synthesizers.compiler.rewrites.rules import RULES, Rewritten, rewrite
from optimizer.search.synthesizers.compiler.rewrites.trace import SymbolicGraph, trace

MODEL = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {arguments}):
        {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def model(forward: str, inputs: str = "torch.randn(5, 8)", init: str = "self.eps = 1e-5") -> str:
    count = len(eval(f"[{inputs}]"))
    names = ", ".join("xyz"[:count])
    body = forward.replace("\n", "\n        ")
    return MODEL.format(forward=body, inputs=inputs, init=init, arguments=names)


def loaded(source: str, entry: str) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    names: dict[str, Any] = {}
    exec(compile(source, "model.py", "exec"), names)
    torch.manual_seed(3)
    model_: torch.nn.Module = names[entry](*names["get_init_inputs"]()).eval()
    torch.manual_seed(4)
    return model_, names["get_inputs"]()


def applied(source: str, *rules: str) -> Rewritten | None:
    traced = trace(source)
    assert isinstance(traced, SymbolicGraph), traced
    return rewrite(traced, [rule for rule in RULES if rule.name in rules])


def same_result(source: str, rewritten: Rewritten) -> None:
    """With the initial weights, and with others written over them as the harness does."""
    bundle = rewritten_bundle(source, rewritten.text, rewritten.names)
    reference, inputs = loaded(source, "Model")
    candidate, _ = loaded(bundle.source, "ModelNew")
    assert list(reference.state_dict()) == list(candidate.state_dict())
    with torch.no_grad():
        nearly_equal(candidate(*inputs), reference(*inputs))
        other_weights(reference, candidate)
        nearly_equal(candidate(*inputs), reference(*inputs))


def nearly_equal(result: torch.Tensor, wanted: torch.Tensor) -> None:
    """Within an error relative to the size of the results, not to each of them."""
    scale = float(wanted[wanted.isfinite()].square().mean().sqrt())
    torch.testing.assert_close(result, wanted, rtol=2e-5, atol=2e-5 * max(1.0, scale))


def other_weights(*models: torch.nn.Module) -> None:
    """Written past the tensors, so that no version counter of a parameter changes."""
    for number, values in enumerate(zip(*(list(state_of(m)) for m in models), strict=True)):
        torch.manual_seed(number)
        new = torch.rand_like(values[0].double()).to(values[0].dtype) + 0.5
        for value in values:
            value.data.copy_(new)


def state_of(model: torch.nn.Module) -> list[torch.Tensor]:
    return [v for v in model.state_dict(keep_vars=True).values() if v.is_floating_point()]
