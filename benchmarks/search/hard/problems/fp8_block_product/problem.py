"""Matrix product of 8-bit floats with scales by blocks of 128."""

import torch
import torch.nn as nn

rows = 32
columns = 128
depth = 256
block = 128


class Model(nn.Module):
    """`a` and `b` hold the bits of float8_e4m3fn. `a` has a scale for each row and 128
    terms, `b` for each 128 columns and 128 terms."""

    def forward(
        self, a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor
    ) -> torch.Tensor:
        kind = a_scale.dtype
        left = a.view(torch.float8_e4m3fn).to(kind) * a_scale.repeat_interleave(block, 1)
        scale = b_scale.repeat_interleave(block, 0).repeat_interleave(block, 1)
        return left @ (b.view(torch.float8_e4m3fn).to(kind) * scale).T


def get_inputs() -> list[torch.Tensor]:
    a, b = (
        torch.randn(n, depth).to(torch.float8_e4m3fn).view(torch.uint8) for n in (rows, columns)
    )
    a_scale = torch.rand(rows, depth // block) + 0.5
    return [a, b, a_scale, torch.rand(columns // block, depth // block) + 0.5]


def get_init_inputs() -> list[int]:
    return []
