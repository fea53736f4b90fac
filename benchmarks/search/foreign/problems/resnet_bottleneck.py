"""A block of torchvision, with weights drawn at random: resnet bottleneck."""

import torch
from torchvision.models.resnet import Bottleneck

BATCH = 1


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Bottleneck(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def get_inputs():
    return [torch.randn(BATCH, 256, 56, 56)]


def get_init_inputs():
    return []
