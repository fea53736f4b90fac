"""Sum of each stretch of a ragged list of rows."""

import torch
import torch.nn as nn

segments = 2048
total = 65_536
width = 64


class Model(nn.Module):
    """Row i of the result is the sum of values[offsets[i] : offsets[i + 1]]; stretches may be
    empty."""

    def forward(self, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch.segment_reduce(values, "sum", offsets=offsets, axis=0, initial=0)


def get_inputs() -> list[torch.Tensor]:
    cuts = torch.randint(0, total + 1, (segments - 1,)).sort().values
    offsets = torch.cat([torch.tensor([0]), cuts, torch.tensor([total])])
    return [torch.randn(total, width), offsets]


def get_init_inputs() -> list[int]:
    return []
