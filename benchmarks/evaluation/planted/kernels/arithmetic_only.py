"""No defect: 256 multiply-adds an element in single precision, in registers."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def contract(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count, other=0.0)
    q = 0.9 * x / (1 + tl.abs(x))
    p = tl.full((BLOCK,), 1.0, tl.float32)
    for _ in range(256):
        p = 1.0 - p * q
    tl.store(y_ptr + at, p, mask=at < count)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        contract[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
