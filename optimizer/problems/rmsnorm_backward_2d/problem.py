"""Gradients of a two-dimensional RMS norm for its input and its scale."""

import torch
import torch.nn as nn

rows = 2048
width = 1024


class Model(nn.Module):
    """For y = x / rms(x) * scale and the gradient of y: the gradients of x and of scale.

    One is a reduction along rows, the other down columns.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width) + 0.5)
        self.eps = 1e-6

    def forward(self, grad: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inverse = torch.rsqrt(x.square().mean(dim=1, keepdim=True) + self.eps)
        normed = x * inverse
        scaled = grad * self.scale
        along = (scaled * normed).mean(dim=1, keepdim=True)
        return (scaled - normed * along) * inverse, (grad * normed).sum(dim=0)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(rows, width), torch.randn(rows, width)]


def get_init_inputs() -> list[int]:
    return [width]
