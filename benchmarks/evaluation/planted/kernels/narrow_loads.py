"""Rows of odd length, two elements of two bytes a thread: every load is a scalar one."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_piece(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * cols
    x = tl.load(x_ptr + start + at, mask=at < cols)
    y = (x.to(tl.float32) * 1.5 + 0.5).to(x.dtype)
    tl.store(y_ptr + start + at, y, mask=at < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        grid = (x.shape[0], triton.cdiv(x.shape[1], 256))
        row_piece[grid](x, y, x.shape[1], BLOCK=256)
        return y
