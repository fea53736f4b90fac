"""Rotary position embedding of queries, halves turned against each other."""

import torch


class Model(torch.nn.Module):
    def forward(self, q: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        first, second = q.chunk(2, dim=-1)
        turned = torch.cat((-second, first), dim=-1)
        return q * cosine[:, None] + turned * sine[:, None]


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(4, 700, 16, 96), torch.randn(700, 96), torch.randn(700, 96)]


def get_init_inputs() -> list[object]:
    return []
