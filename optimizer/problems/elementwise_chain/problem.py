"""Scale and shift by column, SiLU, gate and residual in one chain."""

import torch
import torch.nn as nn
import torch.nn.functional as F

rows = 2048
cols = 1024


class Model(nn.Module):
    """silu(x * scale + shift) * gate + x, with scale and shift for every column."""

    def __init__(self, cols: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(cols) + 0.5)
        self.shift = nn.Parameter(torch.randn(cols))

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return F.silu(x * self.scale + self.shift) * gate + x


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(rows, cols), torch.randn(rows, cols)]


def get_init_inputs() -> list[int]:
    return [cols]
