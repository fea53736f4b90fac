"""The loop's counter stands still."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def chain(x_ptr, gate_ptr, scale_ptr, shift_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place, inside = tl.program_id(0) * cols + at, at < cols
    x = tl.load(x_ptr + place, mask=inside)
    done = 0
    while done < cols:
        done = done * 2
    v = x * tl.load(scale_ptr + at, mask=inside) + tl.load(shift_ptr + at, mask=inside)
    y = v / (1 + tl.exp(-v)) * tl.load(gate_ptr + place, mask=inside) + x
    tl.store(y_ptr + place, y, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, cols):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(cols) + 0.5)
        self.shift = nn.Parameter(torch.randn(cols))

    def forward(self, x, gate):
        y = torch.empty_like(x)
        grid = (x.shape[0], triton.cdiv(x.shape[1], 128))
        chain[grid](x, gate, self.scale, self.shift, y, x.shape[1], BLOCK=128)
        return y
