"""Attention within sequences of different lengths that lie one after the other."""

from itertools import pairwise

import torch
import torch.nn as nn

sequences = 3
total = 60
heads = 2
width = 16


class Model(nn.Module):
    """Rows `offsets[s]` to `offsets[s + 1]` of query, key and value are sequence s, which
    sees itself alone; sequences may be empty."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, offsets: torch.Tensor
    ) -> torch.Tensor:
        result = torch.zeros_like(value)
        ends = offsets.tolist()
        for first, last in pairwise(ends):
            if last > first:
                q, k, v = (part[first:last].transpose(0, 1) for part in (query, key, value))
                weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
                result[first:last] = (weights @ v).transpose(0, 1)
        return result


def get_inputs() -> list[torch.Tensor]:
    cuts = torch.randint(0, total + 1, (sequences - 1,)).sort().values
    offsets = torch.cat([torch.tensor([0]), cuts, torch.tensor([total])]).to(torch.int32)
    return [*(torch.randn(total, heads, width) for _ in range(3)), offsets]


def get_init_inputs() -> list[int]:
    return []
