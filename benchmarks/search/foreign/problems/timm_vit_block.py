"""A block of timm, with weights drawn at random: timm vit block."""

import torch
from timm.models.vision_transformer import Block

BATCH = 2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block(384, 6, qkv_bias=True, init_values=1e-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def get_inputs():
    return [torch.randn(BATCH, 197, 384)]


def get_init_inputs():
    return []
