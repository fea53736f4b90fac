"""Grouped-query attention over a sliding window, with soft-capped logits and a sink per head."""

import torch
import torch.nn as nn

batch = 1
heads = 4
groups = 2
length = 96
width = 32
window = 40
cap = 30.0


class Model(nn.Module):
    """A query sees itself and the `window - 1` keys before it. The logit of the sink takes part in
    the softmax and has no value."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sink: torch.Tensor
    ) -> torch.Tensor:
        share = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
        logits = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        logits = cap * torch.tanh(logits / cap)
        place = torch.arange(query.shape[2], device=query.device)
        distance = place[:, None] - place[None, :]
        logits = logits.masked_fill((distance < 0) | (distance >= window), float("-inf"))
        column = sink[None, :, None, None].expand(*logits.shape[:3], 1)
        weights = torch.softmax(torch.cat([logits, column], -1), -1)[..., :-1]
        return weights @ value


def get_inputs() -> list[torch.Tensor]:
    query = torch.randn(batch, heads, length, width)
    key, value = (torch.randn(batch, groups, length, width) for _ in range(2))
    return [query, key, value, torch.randn(heads)]


def get_init_inputs() -> list[int]:
    return []
