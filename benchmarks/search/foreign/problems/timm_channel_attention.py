"""A block of timm, with weights drawn at random: timm channel attention."""

import torch
from timm.layers import EcaModule

BATCH = 8


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = EcaModule(256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def get_inputs():
    return [torch.randn(BATCH, 256, 28, 28)]


def get_init_inputs():
    return []
