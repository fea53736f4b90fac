"""Every row plus the three that lie a quarter of the matrix apart."""

import torch
import torch.nn as nn

rows = 64
cols = 512


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        quarter = x.shape[0] // 4
        return x + x.roll(quarter, 0) + 0.5 * x.roll(2 * quarter, 0) + x.roll(3 * quarter, 0)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(rows, cols)]
