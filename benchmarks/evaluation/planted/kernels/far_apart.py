"""Output by output: what one program fetches, three others fetch again when no cache holds it."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def four_quarters(x_ptr, y_ptr, rows, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < cols
    quarter = rows // 4
    total = tl.load(x_ptr + row * cols + at, mask=inside)
    total += tl.load(x_ptr + (row + 3 * quarter) % rows * cols + at, mask=inside)
    total += 0.5 * tl.load(x_ptr + (row + 2 * quarter) % rows * cols + at, mask=inside)
    total += tl.load(x_ptr + (row + quarter) % rows * cols + at, mask=inside)
    tl.store(y_ptr + row * cols + at, total, mask=inside)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        grid = (x.shape[0], triton.cdiv(x.shape[1], 1024))
        four_quarters[grid](x, y, x.shape[0], x.shape[1], BLOCK=1024)
        return y
