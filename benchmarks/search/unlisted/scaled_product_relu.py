"""Matrix product whose rows and columns are scaled, with bias and squared ReLU behind it."""

import torch


class Model(torch.nn.Module):
    def forward(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        rows: torch.Tensor,
        columns: torch.Tensor,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        y = (a @ b) * rows[:, None] * columns + bias
        return torch.relu(y).square()


def get_inputs() -> list[torch.Tensor]:
    return [
        torch.randn(777, 640),
        torch.randn(640, 1100),
        torch.rand(777),
        torch.rand(1100),
        torch.randn(1100),
    ]


def get_init_inputs() -> list[object]:
    return []
