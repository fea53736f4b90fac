"""Feature interactions projected to a few columns: X times (X transposed times Y)."""

import torch
import torch.nn as nn

batch = 512
features = 128
width = 64
projected = 32


class Model(nn.Module):
    """Interactions of all pairs of features are x @ x.T; only their product with y is wanted, and
    in this order the square matrix is never made."""

    def __init__(self, features: int, projected: int) -> None:
        super().__init__()
        self.y = nn.Parameter(torch.randn(features, projected) / features**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x, torch.matmul(x.transpose(1, 2), self.y))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(batch, features, width)]


def get_init_inputs() -> list[int]:
    return [features, projected]
