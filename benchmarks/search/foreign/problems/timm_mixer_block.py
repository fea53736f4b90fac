"""A block of timm, with weights drawn at random: timm mixer block."""

import torch
from timm.models.mlp_mixer import MixerBlock

BATCH = 2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = MixerBlock(512, 196)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def get_inputs():
    return [torch.randn(BATCH, 196, 512)]


def get_init_inputs():
    return []
