"""284 blocks of 1,024 threads where 264 fit at a time: the last twenty run alone."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

PROGRAMS = 284


@triton.jit
def contract_share(x_ptr, y_ptr, count, share, BLOCK: tl.constexpr):
    first = tl.program_id(0) * share
    for start in range(first, first + share, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = (at < first + share) & (at < count)
        x = tl.load(x_ptr + at, mask=inside, other=0.0)
        q = 0.9 * x / (1 + tl.abs(x))
        p = tl.full((BLOCK,), 1.0, tl.float32)
        for _ in range(256):
            p = 1.0 - p * q
        tl.store(y_ptr + at, p, mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        share = triton.cdiv(x.numel(), PROGRAMS)
        contract_share[(PROGRAMS,)](x, y, x.numel(), share, BLOCK=4096, num_warps=32)
        return y
