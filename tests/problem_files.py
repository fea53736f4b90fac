"""Problem files and kernels of tests."""

from __future__ import annotations

from textwrap import indent


def model_text(
    forward: str, inputs: str, *, takes: str = "x", init: str = "", head: str = ""
) -> str:
    """The text of a problem. `forward` is the expression that the model returns, or statements that
    return it; `takes` are its arguments, `inputs` the items that `get_inputs` returns. `init` is a
    statement of the constructor, `head` one before the class."""
    lines = ["import torch", "from torch import nn", "import torch.nn.functional as F", head]
    lines += ["class Model(nn.Module):"]
    if init:
        lines += ["    def __init__(self):", "        super().__init__()", indent(init, " " * 8)]
    body = forward if "return " in forward else f"return {forward}"
    lines += [f"    def forward(self, {takes}):", indent(body, " " * 8)]
    lines += ["def get_inputs():", f"    return [{inputs}]"]
    return "\n".join(lines) + "\n"


def kernel_text(value: str) -> str:
    """A kernel in C++ that writes `value`, an expression of `x[i]`, for every element of its only
    input `x`, a matrix of float32."""
    return f"""#include "kernlore_abi.h"
KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *c) {{
  const float *x = (const float *)t[0].data;
  float *y = (float *)t[c->inputs + c->parameters].data;
  for (int64_t i = 0; i < t[0].shape[0] * t[0].shape[1]; i++) y[i] = {value};
  return 0;
}}
"""
