"""A block of torchvision, with weights drawn at random: resnet basic."""

import torch
from torchvision.models.resnet import BasicBlock

BATCH = 4


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = BasicBlock(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)


def get_inputs():
    return [torch.randn(BATCH, 128, 28, 28)]


def get_init_inputs():
    return []
