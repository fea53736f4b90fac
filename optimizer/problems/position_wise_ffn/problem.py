"""Two products with weights of each position's own, GELU between, residual and RMS norm behind."""

import torch
import torch.nn as nn
import torch.nn.functional as F

positions = 16
batch = 256
width = 128
hidden = 256


class Model(nn.Module):
    """rmsnorm(x + gelu(x @ rise) @ fall), where every position has its own rise and fall."""

    def __init__(self, positions: int, width: int, hidden: int) -> None:
        super().__init__()
        self.rise = nn.Parameter(torch.randn(positions, width, hidden) / width**0.5)
        self.fall = nn.Parameter(torch.randn(positions, hidden, width) / hidden**0.5)
        self.scale = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + torch.bmm(F.gelu(torch.bmm(x, self.rise)), self.fall)
        return y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + 1e-6) * self.scale


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(positions, batch, width)]


def get_init_inputs() -> list[int]:
    return [positions, width, hidden]
