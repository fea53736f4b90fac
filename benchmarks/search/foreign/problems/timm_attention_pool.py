"""A block of timm, with weights drawn at random: timm attention pool."""

import torch
from timm.layers import AttentionPoolLatent

BATCH = 4


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = AttentionPoolLatent(384, num_heads=6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def get_inputs():
    return [torch.randn(BATCH, 197, 384)]


def get_init_inputs():
    return []
