"""A block of torchvision, with weights drawn at random: convnext block."""

import torch
from torchvision.models.convnext import CNBlock

BATCH = 2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = CNBlock(96, 1e-2, 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def get_inputs():
    return [torch.randn(BATCH, 96, 56, 56)]


def get_init_inputs():
    return []
