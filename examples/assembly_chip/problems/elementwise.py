"""y = x * sigmoid(g) + z on matrices."""

import torch


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, g: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(g) + z


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(120, 160), torch.randn(120, 160), torch.randn(120, 160)]


def get_init_inputs() -> list[object]:
    return []
