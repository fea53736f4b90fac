"""Group norm of an image, then SiLU."""

import torch


class Model(torch.nn.Module):
    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        self.norm = torch.nn.GroupNorm(groups, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(self.norm(x))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(8, 192, 40, 56)]


def get_init_inputs() -> list[object]:
    return [12, 192]
