"""Pairs of warps walk down 64 columns, a load and a store for every step."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def down(x_ptr, y_ptr, steps, cols, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < cols
    h = tl.zeros((BLOCK,), dtype=tl.float32)
    for step in range(steps):
        h = h * 0.75 + tl.load(x_ptr + step * cols + at, mask=inside)
        tl.store(y_ptr + step * cols + at, h, mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        grid = (triton.cdiv(x.shape[1], 64),)
        down[grid](x, y, x.shape[0], x.shape[1], BLOCK=64, num_warps=2)
        return y
