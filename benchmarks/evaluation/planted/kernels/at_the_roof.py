"""No defect: one pass, wide loads, nothing moved twice."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def one_pass(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count)
    tl.store(y_ptr + at, x * 1.5 + 0.5, mask=at < count)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        one_pass[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
