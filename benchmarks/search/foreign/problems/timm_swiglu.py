"""A block of timm, with weights drawn at random: timm swiglu."""

import torch
from timm.layers import SwiGLU

BATCH = 2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = SwiGLU(512, 1408)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def get_inputs():
    return [torch.randn(BATCH, 256, 512)]


def get_init_inputs():
    return []
