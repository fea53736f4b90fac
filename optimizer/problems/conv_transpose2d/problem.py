"""Transposed convolution that doubles height and width."""

import torch
import torch.nn as nn

batch = 8
channels = 64
filters = 32
height = 48
width = 48


class Model(nn.Module):
    """Stride 2 with a filter of 4 by 4: four taps reach every output pixel."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, filters, 4, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.conv(x)
        return result


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs() -> list[int]:
    return [channels, filters]
