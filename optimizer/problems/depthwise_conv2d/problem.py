"""One small filter for each channel of an image."""

import torch
import torch.nn as nn

batch = 16
channels = 128
height = 56
width = 56
taps = 3


class Model(nn.Module):
    """Every channel has its own filter and sees no other channel."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, taps, padding=taps // 2, groups=channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.conv(x)
        return result


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs() -> list[int]:
    return [channels, taps]
