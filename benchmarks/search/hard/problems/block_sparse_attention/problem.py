"""Attention over the blocks of keys that a mask names for each block of queries."""

import torch
import torch.nn as nn

batch = 1
heads = 2
length = 128
width = 32
block = 32
share = 0.3


class Model(nn.Module):
    """`mask` has a row for each block of queries and a column for each block of keys. A block
    always sees itself."""

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        blocks = torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device) | (mask > 0)
        seen = blocks.repeat_interleave(block, -2).repeat_interleave(block, -1)
        logits = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        return torch.softmax(logits.masked_fill(~seen, float("-inf")), -1) @ value


def get_inputs() -> list[torch.Tensor]:
    mask = (torch.rand(heads, length // block, length // block) < share).to(torch.int32)
    return [*(torch.randn(batch, heads, length, width) for _ in range(3)), mask]


def get_init_inputs() -> list[int]:
    return []
