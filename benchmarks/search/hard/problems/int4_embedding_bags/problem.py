"""Sums of rows of embedding tables whose weights have four bits."""

import torch
import torch.nn as nn

tables = 2
rows = 64
width = 16
bags = 6
mean = 4


class Model(nn.Module):
    """Bag b of table t is the sum of the rows that `indices` names from `offsets[t * bags +
    b]` to the next offset. A byte holds two weights, the lower four bits first; a weight is
    `bits * scale + bias` of its row."""

    def forward(
        self,
        packed: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor,
        indices: torch.Tensor,
        offsets: torch.Tensor,
    ) -> torch.Tensor:
        count = (offsets.shape[0] - 1) // packed.shape[0]
        lengths = offsets[1:] - offsets[:-1]
        bag = torch.repeat_interleave(
            torch.arange(lengths.shape[0], device=lengths.device), lengths
        )
        table, row = bag // count, indices.long() % packed.shape[1]
        taken = packed[table, row]
        weights = torch.stack([taken & 15, taken >> 4], -1).flatten(1).to(scale.dtype)
        weights = weights * scale[table, row, None] + bias[table, row, None]
        result = weights.new_zeros(lengths.shape[0], weights.shape[1])
        return result.index_add(0, bag, weights).reshape(packed.shape[0], count, -1)


def get_inputs() -> list[torch.Tensor]:
    total = tables * bags * mean
    cuts = torch.randint(0, total + 1, (tables * bags - 1,)).sort().values
    return [
        torch.randint(0, 256, (tables, rows, width // 2), dtype=torch.uint8),
        torch.rand(tables, rows) * 0.1,
        torch.randn(tables, rows),
        torch.randint(0, rows, (total,), dtype=torch.int32),
        torch.cat([torch.tensor([0]), cuts, torch.tensor([total])]),
    ]


def get_init_inputs() -> list[int]:
    return []
