"""C[M][N] = A[M][K] * B[N][K]^T in Gluon for compute capability 9.0: the ring of stages, the
barriers and the wait for the tensor cores are written out, where Triton would derive them. bf16,
float32 sums.

Edges need no mask: TMA reads zeros outside and does not write there. N and K: multiples of 8,
because a row of a TMA tensor is a multiple of 16 bytes.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@gluon.jit
def load_stage(a_desc, b_desc, a_ring, b_ring, ready, step, m, n, STAGES: gl.constexpr):
    """One thread's work: say how many bytes come, start both copies."""
    slot = step % STAGES
    bar = ready.index(slot)
    mbarrier.expect(bar, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
    k = step * a_desc.block_type.shape[1]
    tma.async_copy_global_to_shared(a_desc, [m, k], bar, a_ring.index(slot))
    tma.async_copy_global_to_shared(b_desc, [n, k], bar, b_ring.index(slot))


@gluon.jit
def gluon_gemm_kernel(a_desc, b_desc, c_desc, K, STAGES: gl.constexpr, num_warps: gl.constexpr):
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[0]
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_N, BLOCK_K], b_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    fence_async_shared()

    m = gl.program_id(0) * BLOCK_M
    n = gl.program_id(1) * BLOCK_N
    steps = gl.cdiv(K, BLOCK_K)
    for i in gl.static_range(STAGES - 1):
        if i < steps:
            load_stage(a_desc, b_desc, a_ring, b_ring, ready, i, m, n, STAGES)
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, BLOCK_N, 16]
    )
    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, layout)
    for step in range(steps):
        slot = step % STAGES
        mbarrier.wait(ready.index(slot), step // STAGES & 1)
        b = b_ring.index(slot).permute((1, 0))
        acc = warpgroup_mma(a_ring.index(slot), b, acc, is_async=True)
        # All but the newest product have ended, so the slot that the one before read is free.
        acc = warpgroup_mma_wait(num_outstanding=1, deps=(acc,))
        if step + STAGES - 1 < steps:
            load_stage(a_desc, b_desc, a_ring, b_ring, ready, step + STAGES - 1, m, n, STAGES)
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(ready.index(i))

    c_tile = gl.allocate_shared_memory(c_desc.dtype, [BLOCK_M, BLOCK_N], c_desc.layout)
    c_tile.store(acc.to(c_desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(c_desc, [m, n], c_tile)
    tma.store_wait(pendings=0)


def gluon_gemm(a, b, block_m=128, block_n=256, block_k=64, stages=3, num_warps=8):
    (M, K), N = a.shape, b.shape[0]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    boxes = ((a, [block_m, block_k]), (b, [block_n, block_k]), (c, [block_m, block_n]))
    descriptors = [
        TensorDescriptor.from_tensor(
            tensor, box, gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
        )
        for tensor, box in boxes
    ]
    grid = (triton.cdiv(M, block_m), triton.cdiv(N, block_n))
    gluon_gemm_kernel[grid](*descriptors, K, STAGES=stages, num_warps=num_warps)
    return c
