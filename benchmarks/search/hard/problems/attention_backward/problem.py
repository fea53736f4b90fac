"""Gradients of causal attention with respect to query, key and value."""

import torch
import torch.nn as nn

batch = 1
heads = 2
length = 80
width = 32


class Model(nn.Module):
    """Gradients of the sum of `softmax(query @ key.T / sqrt(width)) @ value * upstream`, where a
    query sees itself and the keys before it."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, upstream: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scale = query.shape[-1] ** -0.5
        place = torch.arange(query.shape[2], device=query.device)
        logits = query @ key.transpose(-1, -2) * scale
        logits = logits.masked_fill(place[:, None] < place[None, :], float("-inf"))
        weights = torch.softmax(logits, -1)
        of_weights = upstream @ value.transpose(-1, -2)
        of_logits = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * scale
        return (
            of_logits @ key,
            of_logits.transpose(-1, -2) @ query,
            weights.transpose(-1, -2) @ upstream,
        )


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(batch, heads, length, width) for _ in range(4)]


def get_init_inputs() -> list[int]:
    return []
