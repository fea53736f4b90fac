"""Largest value of overlapping windows in a volume."""

import torch
import torch.nn as nn
import torch.nn.functional as F

batch = 4
channels = 32
depth = 12
height = 48
width = 48


class Model(nn.Module):
    """Windows of 3 by 3 by 3, every second place, the border padded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool3d(x, kernel_size=3, stride=2, padding=1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(batch, channels, depth, height, width)]


def get_init_inputs() -> list[int]:
    return []
