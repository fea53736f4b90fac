"""Causal scaled dot-product attention."""

import torch
import torch.nn as nn
import torch.nn.functional as F

batch = 2
heads = 8
length = 512
width = 64


class Model(nn.Module):
    """softmax(query @ key.T / sqrt(width)) @ value, where a place sees itself and those before."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(batch, heads, length, width) for _ in range(3)]


def get_init_inputs() -> list[int]:
    return []
