"""One program for each of 64 rows, on a chip of 132 multiprocessors."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def whole_row_sum(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, cols, BLOCK):
        total += tl.load(x_ptr + row * cols + start + at, mask=start + at < cols, other=0.0)
    tl.store(y_ptr + row, tl.sum(total, 0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty((x.shape[0],), dtype=x.dtype, device=x.device)
        whole_row_sum[(x.shape[0],)](x, y, x.shape[1], BLOCK=2048, num_warps=8)
        return y
