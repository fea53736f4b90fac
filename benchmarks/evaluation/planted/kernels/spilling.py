"""A whole row of 16,384 in the registers of two warps."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def whole_row(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * cols
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + start + at, mask=at < cols, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + start + at, e / tl.sum(e, 0), mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        whole_row[(x.shape[0],)](x, y, x.shape[1], BLOCK=block, num_warps=2)
        return y
