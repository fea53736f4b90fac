"""C[M][N] = A[M][K] * B[N][K]^T in Gluon for compute capability 10.0 by pairs of blocks: each loads
half of the rows of A and half of the rows of B, and one product of 256 x 256 serves both.
Persistent, with two accumulators. bf16, float32 sums.

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

ACCUMULATORS = gl.constexpr(2)  # of 256 columns: all 512 of each block's tensor memory
HALVES = ((1, 0),)  # a pair's tensor is cut along its first dimension
PAIR = gl.constexpr(HALVES)


@gluon.jit
def corner(tile, tiles_m, tiles_n, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """Tiles go by in groups of 8 rows, so that what is in flight shares panels of A and B in L2."""
    group_size: gl.constexpr = 8
    first = tile // (group_size * tiles_n) * group_size
    rows = gl.minimum(tiles_m - first, group_size)
    place = tile % (group_size * tiles_n)
    return (first + place % rows) * BLOCK_M, place // rows * BLOCK_N


@gluon.jit
def load_tiles(
    a_desc, b_desc, rings, full, empty, drained, tiles_m, tiles_n, steps, STAGES: gl.constexpr
):
    """Runs in both blocks: a copy of the pair's box brings a block its own half, and the bytes of
    both count on the barrier of the first."""
    a_ring, b_ring = rings
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[0]
    count = 0
    for done in range(gl.cdiv(tiles_m * tiles_n - gl.program_id(0), gl.num_programs(0))):
        tile = gl.program_id(0) + done * gl.num_programs(0)
        m, n = corner(tile, tiles_m, tiles_n, BLOCK_M, BLOCK_N)
        # The product overwrites the sums of both blocks and needs the bytes of both. So a block
        # whose sums are still being read holds its loads back, and no arrival crosses the pair:
        # in Triton 3.7.1 `mbarrier.arrive` reaches the own block's barrier only.
        mbarrier.wait(drained.index(done % ACCUMULATORS), done // ACCUMULATORS & 1 ^ 1)
        for step in range(steps):
            slot = count % STAGES
            mbarrier.wait(empty.index(slot), count // STAGES & 1 ^ 1)
            bar = full.index(slot)
            mbarrier.expect(bar, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
            k = step * BLOCK_K
            tma.async_copy_global_to_shared(a_desc, [m, k], bar, a_ring.index(slot))
            tma.async_copy_global_to_shared(b_desc, [n, k], bar, b_ring.index(slot))
            count += 1


@gluon.jit
def multiply_tiles(rings, accs, full, empty, summed, tiles, steps, STAGES: gl.constexpr):
    """Only the first block of a pair waits and issues here; what it commits arrives in both."""
    a_ring, b_ring = rings
    count = 0
    for done in range(gl.cdiv(tiles - gl.program_id(0), gl.num_programs(0))):
        turn = done % ACCUMULATORS
        acc = accs.index(turn)
        for step in range(steps):
            slot = count % STAGES
            mbarrier.wait(full.index(slot), count // STAGES & 1)
            a, b = a_ring.index(slot), b_ring.index(slot).permute((1, 0))
            tcgen05_mma(a, b, acc, use_acc=step > 0, multicast=True, mbarriers=[empty.index(slot)])
            count += 1
        tcgen05_commit(summed.index(turn), descs=[a_ring.index(0), b_ring.index(0)])


@gluon.jit
def store_tiles(c_desc, accs, summed, drained, tiles_m, tiles_n):
    """Each block has the sums of its own 128 rows in its own tensor memory."""
    BLOCK_M: gl.constexpr = accs.shape[1]
    BLOCK_N: gl.constexpr = accs.shape[2]
    PIECE: gl.constexpr = c_desc.block_type.shape[1]
    pieces: gl.constexpr = BLOCK_N // PIECE
    piece_layout: gl.constexpr = TensorMemoryLayout(
        [BLOCK_M // 2, PIECE], col_stride=1, cta_split_num=[2, 1], two_ctas=True
    )
    registers: gl.constexpr = get_tmem_reg_layout(
        gl.float32, (BLOCK_M, PIECE), piece_layout, gl.num_warps(), cga_layout=PAIR
    )
    c_ring = gl.allocate_shared_memory(c_desc.dtype, [2, BLOCK_M, PIECE], c_desc.layout)
    for done in range(gl.cdiv(tiles_m * tiles_n - gl.program_id(0), gl.num_programs(0))):
        tile = gl.program_id(0) + done * gl.num_programs(0)
        m, n = corner(tile, tiles_m, tiles_n, BLOCK_M, BLOCK_N)
        turn = done % ACCUMULATORS
        mbarrier.wait(summed.index(turn), done // ACCUMULATORS & 1)
        acc = accs.index(turn)
        for i in gl.static_range(pieces):
            values = acc.slice(i * PIECE, PIECE).load(registers)
            if i == pieces - 1:
                # All of it is in registers: the products may overwrite it while it is stored.
                mbarrier.arrive(drained.index(turn), count=1)
            tma.store_wait(pendings=1)
            half = c_ring.index(i % 2)
            half.store(values.to(c_desc.dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(c_desc, [m, n + i * PIECE], half)
    tma.store_wait(pendings=0)


@gluon.jit
def pair_gemm_kernel(
    a_desc, b_desc, c_desc, M, N, K, STAGES: gl.constexpr, num_warps: gl.constexpr
):
    gl.static_assert(gl.num_ctas() == 2)
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[0]
    # The next tile begins with the first half of the ring.
    gl.static_assert(BLOCK_N // c_desc.block_type.shape[1] % 2 == 0)
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_N, BLOCK_K], b_desc.layout)
    accs = allocate_tensor_memory(
        gl.float32,
        [ACCUMULATORS, BLOCK_M, BLOCK_N],
        TensorMemoryLayout(
            [BLOCK_M // 2, BLOCK_N], col_stride=1, cta_split_num=[2, 1], two_ctas=True
        ),
    )
    # What the issuing block waits for is one barrier of the pair; all others are one a block.
    full = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=True)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    summed = mbarrier.allocate_mbarrier(batch=ACCUMULATORS)
    drained = mbarrier.allocate_mbarrier(batch=ACCUMULATORS)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    for i in gl.static_range(ACCUMULATORS):
        mbarrier.init(summed.index(i), count=1)
        mbarrier.init(drained.index(i), count=1)
    mbarrier.sync_cluster_init()  # before any block signals its neighbour's

    tiles_m = gl.cdiv(M, BLOCK_M)
    tiles_n = gl.cdiv(N, BLOCK_N)
    tiles = tiles_m * tiles_n
    steps = gl.cdiv(K, BLOCK_K)
    rings = (a_ring, b_ring)
    load = (a_desc, b_desc, rings, full, empty, drained, tiles_m, tiles_n, steps, STAGES)
    gl.warp_specialize(
        [
            (store_tiles, (c_desc, accs, summed, drained, tiles_m, tiles_n)),
            (load_tiles, load),
            (multiply_tiles, (rings, accs, full, empty, summed, tiles, steps, STAGES)),
        ],
        worker_num_warps=[1, 1],
        worker_num_regs=[40, 40],
    )


def pair_gemm(a, b, block_m=256, block_n=256, block_k=64, stages=6, piece=64):
    """block_m and block_n are those of a pair."""
    (M, K), N = a.shape, b.shape[0]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    boxes = ((a, [block_m, block_k]), (b, [block_n, block_k]), (c, [block_m, piece]))
    descriptors = [
        TensorDescriptor.from_tensor(
            tensor,
            box,
            gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16, cga_layout=HALVES),
        )
        for tensor, box in boxes
    ]
    pairs = torch.cuda.get_device_properties(a.device).multi_processor_count // 2
    grid = (min(pairs, triton.cdiv(M, block_m) * triton.cdiv(N, block_n)),)
    pair_gemm_kernel[grid](*descriptors, M, N, K, STAGES=stages, num_warps=4, num_ctas=2)
    return c
