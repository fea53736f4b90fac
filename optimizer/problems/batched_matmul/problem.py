"""Many independent products of small matrices."""

import torch
import torch.nn as nn

batch = 128
rows = 128
inner = 256
cols = 128


class Model(nn.Module):
    """One product for each member of the batch; no weights."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.bmm(left, right)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(batch, rows, inner), torch.randn(batch, inner, cols)]


def get_init_inputs() -> list[int]:
    return []
