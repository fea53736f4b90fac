"""FP8 product with block scales as in DeepSeek-V3: a scale for each row and 128 terms of A, and for
each 128 x 128 block of B. A and B come by TMA, sums are promoted to float32 every 128 terms.

A[M][K] and B[N][K] float8_e4m3fn, scale_a[M][K/128] and scale_b[N/128][K/128] float32, C[M][N]
bf16. K and N: multiples of 128. A, B and scale_b are contiguous, scale_a may have any strides.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def fp8_dense_kernel(
    a_desc,
    b_desc,
    scale_a_ptr,
    scale_b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BAND: tl.constexpr,
):
    BLOCK_K: tl.constexpr = 128
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = N // BLOCK_N
    # Tiles go by in bands of rows, so that a wave reads few panels of both operands.
    tile = tl.program_id(0)
    band = tile // (BAND * tiles_n)
    high = tl.minimum(tiles_m - band * BAND, BAND)
    row = (band * BAND + tile % (BAND * tiles_n) % high) * BLOCK_M
    column = tile % (BAND * tiles_n) // high * BLOCK_N
    rows = row + tl.arange(0, BLOCK_M)
    scale_a = scale_a_ptr + tl.minimum(rows, M - 1) * stride_am
    scale_b = scale_b_ptr + column // 128 * (K // 128)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    # Triton does not pipeline loads this small: the next scales are read one step ahead.
    scale = tl.load(scale_a) * tl.load(scale_b)
    for k in range(K // BLOCK_K):
        a = a_desc.load([row, k * BLOCK_K])
        b = b_desc.load([column, k * BLOCK_K])
        ahead = tl.minimum(k + 1, K // BLOCK_K - 1)
        next_scale = tl.load(scale_a + ahead * stride_ak) * tl.load(scale_b + ahead)
        # The tensor cores sum one block alone; the promotion to float32 applies the scales.
        acc += tl.dot(a, b.T) * scale[:, None]
        scale = next_scale
    columns = column + tl.arange(0, BLOCK_N)
    out = c_ptr + rows[:, None].to(tl.int64) * N + columns[None, :]
    tl.store(out, acc.to(c_ptr.dtype.element_ty), mask=(rows < M)[:, None])


def fp8_dense(a, b, scale_a, scale_b, block_m=64, block_n=128, warps=4, stages=3):
    (M, K), N = a.shape, b.shape[0]
    c = torch.empty((M, N), device=a.device, dtype=torch.bfloat16)
    a_desc = TensorDescriptor.from_tensor(a, [block_m, 128])
    b_desc = TensorDescriptor.from_tensor(b, [block_n, 128])
    fp8_dense_kernel[(triton.cdiv(M, block_m) * (N // block_n),)](
        a_desc,
        b_desc,
        scale_a,
        scale_b,
        c,
        M,
        N,
        K,
        scale_a.stride(0),
        scale_a.stride(1),
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BAND=8,
        num_warps=warps,
        num_stages=stages,
    )
    return c
