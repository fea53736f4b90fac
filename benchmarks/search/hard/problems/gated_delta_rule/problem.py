"""Linear attention with a gated delta rule, whose state is decayed and corrected at each step."""

import torch
import torch.nn as nn
import torch.nn.functional as F

batch = 1
heads = 2
length = 24
width = 16


class Model(nn.Module):
    """`state = decay * state`, then `state += key (rate * (value - key state))`, and the result is
    `query state / sqrt(width)`, step after step. Queries and keys are normalised."""

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        gate: torch.Tensor,
        rate: torch.Tensor,
    ) -> torch.Tensor:
        query, key = F.normalize(query, dim=-1), F.normalize(key, dim=-1)
        decay, rate = torch.exp(-F.softplus(gate)), torch.sigmoid(rate)
        state = query.new_zeros(*query.shape[:2], query.shape[-1], value.shape[-1])
        results = []
        for step in range(query.shape[2]):
            now = key[:, :, step]
            state = state * decay[:, :, step, None, None]
            error = value[:, :, step] - (now[:, :, None] @ state)[:, :, 0]
            state = state + now[..., None] * (rate[:, :, step, None] * error)[:, :, None]
            results.append((query[:, :, step, None] @ state)[:, :, 0])
        return torch.stack(results, 2) / query.shape[-1] ** 0.5


def get_inputs() -> list[torch.Tensor]:
    vectors = [torch.randn(batch, heads, length, width) for _ in range(3)]
    return [*vectors, torch.randn(batch, heads, length) - 3, torch.randn(batch, heads, length)]


def get_init_inputs() -> list[int]:
    return []
