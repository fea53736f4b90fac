"""One cast, and all of the arithmetic is in double precision."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def contract_doubles(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count, other=0.0).to(tl.float64)
    q = 0.9 * x / (1 + tl.abs(x))
    p = tl.full((BLOCK,), 1.0, tl.float64)
    for _ in range(256):
        p = 1.0 - p * q
    tl.store(y_ptr + at, p.to(tl.float32), mask=at < count)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        contract_doubles[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y
