"""Layer norm over the last dimension with scale and bias."""

import torch
import torch.nn as nn

tokens = 8192
width = 1024


class Model(nn.Module):
    """Each token to mean 0 and variance 1, then a scale and a bias for each column."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(x)
        return result


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(tokens, width)]


def get_init_inputs() -> list[int]:
    return [width]
