"""C[M][N] = A[M][K] * B[N][K]^T in Gluon for compute capability 10.0, one tile a block: a warp that
loads by TMA, a warp that issues tcgen05 products, four warps that empty tensor memory. bf16,
float32 sums.

Edges need no mask: TMA reads zeros outside and does not write there. N and K: multiples of 8,
because a row of a TMA tensor is a multiple of 16 bytes.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    fence_async_shared,
    get_tmem_reg_layout,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma,
    tma,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@gluon.jit
def load_tiles(a_desc, b_desc, a_ring, b_ring, full, empty, m, n, steps, STAGES: gl.constexpr):
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    for step in range(steps):
        slot = step % STAGES
        # The first round waits for the phase before the first, which counts as complete.
        mbarrier.wait(empty.index(slot), step // STAGES & 1 ^ 1)
        bar = full.index(slot)
        mbarrier.expect(bar, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        k = step * BLOCK_K
        tma.async_copy_global_to_shared(a_desc, [m, k], bar, a_ring.index(slot))
        tma.async_copy_global_to_shared(b_desc, [n, k], bar, b_ring.index(slot))


@gluon.jit
def multiply_tiles(a_ring, b_ring, acc, full, empty, finished, steps, STAGES: gl.constexpr):
    for step in range(steps):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), step // STAGES & 1)
        b = b_ring.index(slot).permute((1, 0))
        # Not waited for: the tensor core itself arrives at `empty` once it has read the stage.
        tcgen05_mma(a_ring.index(slot), b, acc, use_acc=step > 0, mbarriers=[empty.index(slot)])
    tcgen05_commit(finished)


@gluon.jit
def store_tile(c_desc, acc, finished, m, n):
    """Tensor memory -> registers -> shared memory -> TMA, in pieces of columns."""
    BLOCK_M: gl.constexpr = c_desc.block_type.shape[0]
    PIECE: gl.constexpr = c_desc.block_type.shape[1]
    pieces: gl.constexpr = acc.shape[1] // PIECE
    piece_layout: gl.constexpr = TensorMemoryLayout([BLOCK_M, PIECE], col_stride=1)
    registers: gl.constexpr = get_tmem_reg_layout(
        gl.float32, (BLOCK_M, PIECE), piece_layout, gl.num_warps()
    )
    c_ring = gl.allocate_shared_memory(c_desc.dtype, [2, BLOCK_M, PIECE], c_desc.layout)
    mbarrier.wait(finished, 0)
    for i in gl.static_range(pieces):
        values = acc.slice(i * PIECE, PIECE).load(registers)
        tma.store_wait(pendings=1)  # the store that read this half of the ring has read it
        half = c_ring.index(i % 2)
        half.store(values.to(c_desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(c_desc, [m, n + i * PIECE], half)
    tma.store_wait(pendings=0)


@gluon.jit
def tcgen05_gemm_kernel(a_desc, b_desc, c_desc, K, STAGES: gl.constexpr, num_warps: gl.constexpr):
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[0]
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_N, BLOCK_K], b_desc.layout)
    acc = allocate_tensor_memory(
        gl.float32, [BLOCK_M, BLOCK_N], TensorMemoryLayout([BLOCK_M, BLOCK_N], col_stride=1)
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    finished = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    mbarrier.init(finished, count=1)
    fence_async_shared()

    m = gl.program_id(0) * BLOCK_M
    n = gl.program_id(1) * BLOCK_N
    steps = gl.cdiv(K, BLOCK_K)
    gl.warp_specialize(
        [
            (store_tile, (c_desc, acc, finished, m, n)),
            (load_tiles, (a_desc, b_desc, a_ring, b_ring, full, empty, m, n, steps, STAGES)),
            (multiply_tiles, (a_ring, b_ring, acc, full, empty, finished, steps, STAGES)),
        ],
        worker_num_warps=[1, 1],
        worker_num_regs=[24, 24],
    )
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(i))
        mbarrier.invalidate(empty.index(i))
    mbarrier.invalidate(finished)


def tcgen05_gemm(a, b, block_m=128, block_n=256, block_k=64, stages=4, piece=64):
    (M, K), N = a.shape, b.shape[0]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    boxes = ((a, [block_m, block_k]), (b, [block_n, block_k]), (c, [block_m, piece]))
    descriptors = [
        TensorDescriptor.from_tensor(
            tensor, box, gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
        )
        for tensor, box in boxes
    ]
    grid = (triton.cdiv(M, block_m), triton.cdiv(N, block_n))
    tcgen05_gemm_kernel[grid](*descriptors, K, STAGES=stages, num_warps=4)
    return c
