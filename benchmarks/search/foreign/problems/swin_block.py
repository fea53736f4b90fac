"""A block of torchvision, with weights drawn at random: swin block."""

import torch
from torchvision.models.swin_transformer import SwinTransformerBlock

BATCH = 1


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = SwinTransformerBlock(96, 3, [7, 7], [3, 3])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def get_inputs():
    return [torch.randn(BATCH, 56, 56, 96)]


def get_init_inputs():
    return []
