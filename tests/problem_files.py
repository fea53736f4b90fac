"""Problem files of tests."""

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
