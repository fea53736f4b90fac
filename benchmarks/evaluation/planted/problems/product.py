"""A matrix product in 16 bits."""

import torch
import torch.nn as nn

rows = 128
inner = 128
cols = 128


class Model(nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(rows, inner), torch.randn(inner, cols)]
