"""A launch for every four rows."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def four_rows(x_ptr, y_ptr, start, count, BLOCK: tl.constexpr):
    at = start + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < start + count
    x = tl.load(x_ptr + at, mask=inside)
    tl.store(y_ptr + at, x * 1.5 + 0.5, mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        count = 4 * x.shape[1]
        for start in range(0, x.numel(), count):
            four_rows[(triton.cdiv(count, 1024),)](x, y, start, count, BLOCK=1024)
        return y
