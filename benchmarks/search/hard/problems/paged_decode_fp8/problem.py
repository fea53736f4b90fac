"""Decoding step of grouped-query attention over a paged cache of 8-bit floats."""

import torch
import torch.nn as nn

batch = 3
heads = 8
groups = 2
width = 32
page = 16
pages = 6


class Model(nn.Module):
    """`keys` and `values` hold the bits of float8_e4m3fn, as pages of the cache. Sequence i has
    `lengths[i]` places, in the pages that its row of `table` names."""

    def forward(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        table: torch.Tensor,
        lengths: torch.Tensor,
        scales: torch.Tensor,
    ) -> torch.Tensor:
        table = table.long() % keys.shape[0]

        def gathered(cache: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            real = cache.view(torch.float8_e4m3fn).to(query.dtype) * scale
            real = real[table].flatten(1, 2).transpose(1, 2)
            return real.repeat_interleave(query.shape[1] // real.shape[1], 1)

        key, value = gathered(keys, scales[0]), gathered(values, scales[1])
        logits = (query[:, :, None] @ key.transpose(-1, -2))[:, :, 0] / query.shape[-1] ** 0.5
        place = torch.arange(key.shape[2], device=key.device)
        beyond = place[None, None, :] >= lengths.clamp(min=1)[:, None, None]
        weights = torch.softmax(logits.masked_fill(beyond, float("-inf")), -1)
        return (weights[:, :, None] @ value)[:, :, 0]


def get_inputs() -> list[torch.Tensor]:
    def cache() -> torch.Tensor:
        real = torch.randn(batch * pages, page, groups, width)
        return real.to(torch.float8_e4m3fn).view(torch.uint8)

    return [
        torch.randn(batch, heads, width),
        cache(),
        cache(),
        torch.randperm(batch * pages).reshape(batch, pages).to(torch.int32),
        torch.randint(1, page * pages + 1, (batch,), dtype=torch.int32),
        torch.rand(2) + 0.5,
    ]


def get_init_inputs() -> list[int]:
    return []
