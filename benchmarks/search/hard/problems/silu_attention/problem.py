"""Attention of a sequential recommender: SiLU in place of softmax, a bias by distance, causal."""

import torch
import torch.nn as nn
import torch.nn.functional as F

batch = 2
heads = 2
length = 64
width = 32


class Model(nn.Module):
    """`silu(query @ key.T + bias[head, distance]) / length` times the gated values."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        gate: torch.Tensor,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        length = query.shape[2]
        place = torch.arange(length, device=query.device)
        distance = place[:, None] - place[None, :]
        logits = query @ key.transpose(-1, -2) + bias[:, distance.clamp(min=0)]
        weights = F.silu(logits).masked_fill(distance < 0, 0.0) / length
        return (weights @ value) * F.silu(gate)


def get_inputs() -> list[torch.Tensor]:
    vectors = [torch.randn(batch, heads, length, width) for _ in range(4)]
    return [*vectors[:1], vectors[1] * width**-0.5, *vectors[2:], torch.randn(heads, length)]


def get_init_inputs() -> list[int]:
    return []
