"""Decoding step of multi-head latent attention over a compressed cache."""

import torch
import torch.nn as nn

batch = 3
heads = 4
places = 64
latent = 32
rotary = 8


class Model(nn.Module):
    """All heads share the cache: a latent vector, which is key and value, and a rotary part of the
    key. Sequence i has `lengths[i]` places."""

    def forward(
        self,
        query: torch.Tensor,
        query_rotary: torch.Tensor,
        cache: torch.Tensor,
        cache_rotary: torch.Tensor,
        lengths: torch.Tensor,
    ) -> torch.Tensor:
        scale = (query.shape[-1] + query_rotary.shape[-1]) ** -0.5
        logits = query @ cache.transpose(-1, -2) + query_rotary @ cache_rotary.transpose(-1, -2)
        place = torch.arange(cache.shape[1], device=cache.device)
        beyond = place[None, None, :] >= lengths.clamp(min=1)[:, None, None]
        weights = torch.softmax((logits * scale).masked_fill(beyond, float("-inf")), -1)
        return weights @ cache


def get_inputs() -> list[torch.Tensor]:
    return [
        torch.randn(batch, heads, latent),
        torch.randn(batch, heads, rotary),
        torch.randn(batch, places, latent),
        torch.randn(batch, places, rotary),
        torch.randint(1, places + 1, (batch,), dtype=torch.int32),
    ]


def get_init_inputs() -> list[int]:
    return []
