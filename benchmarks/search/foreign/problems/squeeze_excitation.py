"""A block of torchvision, with weights drawn at random: squeeze excitation."""

import torch
from torchvision.ops import SqueezeExcitation

BATCH = 8


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = SqueezeExcitation(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def get_inputs():
    return [torch.randn(BATCH, 256, 28, 28)]


def get_init_inputs():
    return []
