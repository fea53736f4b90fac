"""Bucketize every dense feature by its own borders, and squash its values."""

import torch
import torch.nn as nn

features = 64
batch = 6144
borders_each = 15


class Model(nn.Module):
    """Merged bucketized dense transform: every feature of a batch at once.

    Id of a value: how many of its feature's borders are not above it, moved so that features share
    no id. Beside it the value itself, squashed as a dense feature: sign(x) * log(1 + |x|).
    """

    def __init__(self, features: int, borders_each: int) -> None:
        super().__init__()
        self.borders: torch.Tensor
        self.first_id: torch.Tensor
        self.register_buffer("borders", torch.randn(features, borders_each).sort(dim=1).values)
        self.register_buffer("first_id", torch.arange(features).unsqueeze(1) * (borders_each + 1))

    def forward(self, dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.searchsorted(self.borders, dense, right=True) + self.first_id
        return ids, torch.sign(dense) * torch.log1p(dense.abs())


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(features, batch)]


def get_init_inputs() -> list[int]:
    return [features, borders_each]
