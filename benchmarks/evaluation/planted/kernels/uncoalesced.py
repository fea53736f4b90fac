"""Neighbouring lanes work on neighbouring rows, so each fetches a separate sector."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def down_the_columns(x_ptr, y_ptr, rows, cols, BLOCK: tl.constexpr):
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = number % rows * cols + number // rows
    inside = number < rows * cols
    x = tl.load(x_ptr + at, mask=inside)
    tl.store(y_ptr + at, x * 1.5 + 0.5, mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 1024),)
        down_the_columns[grid](x, y, x.shape[0], x.shape[1], BLOCK=1024)
        return y
