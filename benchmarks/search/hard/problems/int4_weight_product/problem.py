"""Product of 16-bit activations and 4-bit weights with a scale and a zero for each group."""

import torch
import torch.nn as nn

rows = 4
columns = 64
depth = 256
group = 128


class Model(nn.Module):
    """A byte of `packed` holds two weights, the lower four bits first. Group g of 128 weights of a
    row is `(weight - zero) * scale`."""

    def forward(
        self, x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor
    ) -> torch.Tensor:
        weight = torch.stack([packed & 15, packed >> 4], -1).flatten(1).to(x.dtype)
        weight = (weight - zero.repeat_interleave(group, 1)) * scale.repeat_interleave(group, 1)
        return x @ weight.T


def get_inputs() -> list[torch.Tensor]:
    packed = torch.randint(0, 256, (columns, depth // 2), dtype=torch.uint8)
    scale = torch.rand(columns, depth // group) * 0.02 + 0.01
    return [torch.randn(rows, depth), packed, scale, torch.rand(columns, depth // group) * 15]


def get_init_inputs() -> list[int]:
    return []
