"""Matrix product with bias and exact GELU behind it."""

import torch
import torch.nn as nn
import torch.nn.functional as F

rows = 512
inner = 1024
cols = 1024


class Model(nn.Module):
    """gelu(x @ weight.T + bias)."""

    def __init__(self, inner: int, cols: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, cols)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.linear(x))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(rows, inner)]


def get_init_inputs() -> list[int]:
    return [inner, cols]
