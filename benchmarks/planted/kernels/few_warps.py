"""So many stages that one block of four warps has the whole multiprocessor."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def product(x_ptr, w_ptr, y_ptr, inner, cols, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, inner, K):
        x = tl.load(x_ptr + m[:, None] * inner + start + k[None, :])
        w = tl.load(w_ptr + (start + k[:, None]) * cols + n[None, :])
        total = tl.dot(x, w, total)
    tl.store(y_ptr + m[:, None] * cols + n[None, :], total.to(y_ptr.dtype.element_ty))


class ModelNew(nn.Module):
    def forward(self, x, w):
        (rows, inner), cols = x.shape, w.shape[1]
        y = torch.empty((rows, cols), dtype=x.dtype, device=x.device)
        grid = (rows // 64, cols // 64)
        product[grid](x, w, y, inner, cols, M=64, N=64, K=64, num_stages=12, num_warps=4)
        return y
