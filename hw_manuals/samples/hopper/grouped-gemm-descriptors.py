"""Grouped matrix product: rows of A belong to groups that lie one after the other, each group has
its own B (the experts of a mixture). One persistent launch; tiles of A and B come by TMA.

A[rows][K], B[groups][N][K], C[rows][N] in bf16; offsets[groups + 1] in int32 say where groups
begin. K: a multiple of 8.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def grouped_gemm_kernel(
    a_desc,
    b_desc,
    c_ptr,
    offsets_ptr,
    groups,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0)
    tiles_n = tl.cdiv(N, BLOCK_N)
    before = 0  # tiles of earlier groups
    for group in range(groups):
        begin = tl.load(offsets_ptr + group)
        end = tl.load(offsets_ptr + group + 1)
        tiles_m = tl.cdiv(end - begin, BLOCK_M)
        while tile < before + tiles_m * tiles_n:
            # Rows move fastest: the programs of a wave share a panel of this group's B.
            m = begin + (tile - before) % tiles_m * BLOCK_M
            n = (tile - before) // tiles_m * BLOCK_N
            acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for k in range(0, K, BLOCK_K):
                a = a_desc.load([m, k])
                b = b_desc.load([group * N + n, k])
                acc = tl.dot(a, b.T, acc)
            # A tile may begin anywhere and reach into the next group, whose rows are not ours: a
            # descriptor would write them, so the store is masked.
            rows = m + tl.arange(0, BLOCK_M)
            columns = n + tl.arange(0, BLOCK_N)
            mask = (rows < end)[:, None] & (columns < N)[None, :]
            out = c_ptr + rows[:, None].to(tl.int64) * N + columns[None, :]
            tl.store(out, acc.to(c_ptr.dtype.element_ty), mask=mask)
            tile += tl.num_programs(0)
        before += tiles_m * tiles_n


def grouped_gemm(a, b, offsets, block_m=128, block_n=128, block_k=64):
    groups, N, K = b.shape
    c = torch.empty((a.shape[0], N), device=a.device, dtype=a.dtype)
    a_desc = TensorDescriptor.from_tensor(a, [block_m, block_k])
    b_desc = TensorDescriptor.from_tensor(b.view(groups * N, K), [block_n, block_k])
    units = torch.cuda.get_device_properties(a.device).multi_processor_count
    grouped_gemm_kernel[(units,)](
        a_desc,
        b_desc,
        c,
        offsets,
        groups,
        N,
        K,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        num_warps=8,
        num_stages=4,
    )
    return c
