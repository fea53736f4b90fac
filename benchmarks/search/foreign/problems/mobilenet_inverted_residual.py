"""A block of torchvision, with weights drawn at random: mobilenet inverted residual."""

import torch
from torchvision.models.mobilenetv2 import InvertedResidual

BATCH = 2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = InvertedResidual(32, 32, 1, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def get_inputs():
    return [torch.randn(BATCH, 32, 56, 56)]


def get_init_inputs():
    return []
