"""Convolution along sequences, with bias."""

import torch
import torch.nn as nn

batch = 8
channels = 64
filters = 64
length = 4096
taps = 5


class Model(nn.Module):
    """Length is kept by padding."""

    def __init__(self, channels: int, filters: int, taps: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, filters, taps, padding=taps // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.conv(x)
        return result


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(batch, channels, length)]


def get_init_inputs() -> list[int]:
    return [channels, filters, taps]
