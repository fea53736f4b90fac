"""Convolution of one pixel: a matrix product over channels."""

import torch
import torch.nn as nn

batch = 8
channels = 64
filters = 128
height = 64
width = 64


class Model(nn.Module):
    """Mixes channels pixel by pixel."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.conv(x)
        return result


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs() -> list[int]:
    return [channels, filters]
