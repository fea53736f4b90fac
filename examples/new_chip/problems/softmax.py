"""Softmax of each row of a matrix."""

import torch


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(64, 128)]


def get_init_inputs() -> list[object]:
    return []
