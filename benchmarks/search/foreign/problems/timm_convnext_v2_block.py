"""A block of timm, with weights drawn at random: timm convnext v2 block."""

import torch
from timm.models.convnext import ConvNeXtBlock

BATCH = 2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = ConvNeXtBlock(128, use_grn=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def get_inputs():
    return [torch.randn(BATCH, 128, 28, 28)]


def get_init_inputs():
    return []
