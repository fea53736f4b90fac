"""Two long computations, one for each sign."""

import torch
import torch.nn as nn

rows = 32
cols = 1024


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = 0.9 * x.abs() / (1 + x.abs())
        one = torch.ones_like(x)
        half = 0.5 * one
        p, r = torch.ones_like(x), torch.ones_like(x)
        for _ in range(128):
            p = torch.addcmul(one, p, q, value=-1)
            r = torch.addcmul(half, r, q, value=0.5)
        return torch.where(x > 0, p, r)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(rows, cols)]
