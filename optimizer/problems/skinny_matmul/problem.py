"""A few rows times a large weight matrix, as in decoding."""

import torch
import torch.nn as nn

rows = 8
inner = 4096
cols = 4096


class Model(nn.Module):
    """x @ weight.T, where reading the weight is the work."""

    def __init__(self, inner: int, cols: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, cols, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(x)
        return result


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(rows, inner)]


def get_init_inputs() -> list[int]:
    return [inner, cols]
