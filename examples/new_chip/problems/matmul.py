"""The product of two square matrices."""

import torch


class Model(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(64, 64), torch.randn(64, 64)]


def get_init_inputs() -> list[object]:
    return []
