"""A matrix turned over."""

import torch
import torch.nn as nn

rows = 128
cols = 96


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous()


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(rows, cols)]
