"""Grouped FP8 product of experts with block scales as in DeepSeek-V3: a scale for each row and 128
terms of A, and for each 128 x 128 block of B. One launch; A and B come by TMA.

A[rows][K] and B[groups][N][K] float8_e4m3fn, scale_a[rows][K/128] and scale_b[groups][N/128][K/128]
float32, C[rows][N] bf16. Rows offsets[g] to offsets[g + 1] belong to group g. K and N: multiples
of 128. A, B and scale_b are contiguous, scale_a may have any strides.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def find_tile(tile, offsets_ptr, groups, tiles_n, GROUPS: tl.constexpr, BLOCK_M: tl.constexpr):
    """Group, first row, end of the group and column tile; `groups` behind the last tile."""
    g = tl.arange(0, GROUPS)
    begin = tl.load(offsets_ptr + g, mask=g < groups, other=0)
    end = tl.load(offsets_ptr + g + 1, mask=g < groups, other=0)
    tiles_m = (end - begin + BLOCK_M - 1) // BLOCK_M
    after = tl.cumsum(tiles_m * tiles_n, 0)
    group = tl.sum(((after <= tile) & (g < groups)).to(tl.int32), 0)
    here = g == group
    local = tile - tl.sum(tl.where(here, after - tiles_m * tiles_n, 0), 0)
    high = tl.maximum(tl.sum(tl.where(here, tiles_m, 0), 0), 1)
    first = tl.sum(tl.where(here, begin, 0), 0)
    last = tl.sum(tl.where(here, end, 0), 0)
    # Rows move fastest: the programs of a wave share a panel of this group's B.
    return group, first + local % high * BLOCK_M, last, local // high


@triton.jit
def fp8_grouped_kernel(
    a_desc,
    b_desc,
    scale_a_ptr,
    scale_b_ptr,
    c_ptr,
    offsets_ptr,
    groups,
    N,
    K,
    stride_am,
    stride_ak,
    GROUPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    BLOCK_K: tl.constexpr = 128
    tile = tl.program_id(0)
    group, row, last, column = find_tile(tile, offsets_ptr, groups, N // BLOCK_N, GROUPS, BLOCK_M)
    if group < groups:
        column = column * BLOCK_N
        rows = row + tl.arange(0, BLOCK_M)
        # Rows of the next group are computed and not stored; their scales must exist.
        scale_a = scale_a_ptr + tl.minimum(rows, last - 1) * stride_am
        scale_b = scale_b_ptr + (group * N + column) // 128 * (K // 128)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        # Triton does not pipeline loads this small: the next scales are read one step ahead.
        scale = tl.load(scale_a) * tl.load(scale_b)
        for k in range(K // BLOCK_K):
            a = a_desc.load([row, k * BLOCK_K])
            b = b_desc.load([group * N + column, k * BLOCK_K])
            ahead = tl.minimum(k + 1, K // BLOCK_K - 1)
            next_scale = tl.load(scale_a + ahead * stride_ak) * tl.load(scale_b + ahead)
            # The tensor cores sum one block alone; the promotion to float32 applies the scales.
            acc += tl.dot(a, b.T) * scale[:, None]
            scale = next_scale
        columns = column + tl.arange(0, BLOCK_N)
        out = c_ptr + rows[:, None].to(tl.int64) * N + columns[None, :]
        tl.store(out, acc.to(c_ptr.dtype.element_ty), mask=(rows < last)[:, None])


def fp8_grouped(a, b, scale_a, scale_b, offsets, block_m=64, block_n=128, warps=4, stages=4):
    groups, N, K = b.shape
    rows = a.shape[0]
    c = torch.empty((rows, N), device=a.device, dtype=torch.bfloat16)
    a_desc = TensorDescriptor.from_tensor(a, [block_m, 128])
    b_desc = TensorDescriptor.from_tensor(b.view(groups * N, K), [block_n, 128])
    # The borders are not known on the host: as many programs as the tiles can be at most.
    most = min(triton.cdiv(rows, block_m) + groups - 1, rows)
    fp8_grouped_kernel[(most * (N // block_n),)](
        a_desc,
        b_desc,
        scale_a,
        scale_b,
        c,
        offsets,
        groups,
        N,
        K,
        scale_a.stride(0),
        scale_a.stride(1),
        GROUPS=triton.next_power_of_2(groups),
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        num_warps=warps,
        num_stages=stages,
    )
    return c
