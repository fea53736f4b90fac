"""C[M][N] = A[M][K] * B[N][K]^T in the CuTe DSL for Hopper, persistent and with specialised warps:
one warp loads by TMA, two warpgroups multiply by wgmma and store by TMA. bf16, float32 sums.

M and N are free, since TMA reads zeros outside and does not write there. K and N: multiples of 8
(rows of 16 bytes). Compiled once for all sizes. `python gemm-cute-tma-wgmma.py` compares it with
float64 on a device.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64, pipeline
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp, warpgroup

BM, BN, BK, STAGES = 128, 256, 64, 4  # 192 KiB of stages
PIECE, HALVES = 64, 2  # columns of C a store, and buffers for them: 32 KiB
GROUPS = 2  # warpgroups that multiply: 64 rows each
CONSUMERS = 128 * GROUPS
THREADS = CONSUMERS + 128  # setmaxnreg counts whole warpgroups, so the producer has one too
STAGE_BYTES = (BM + BN) * BK * 2


def corner(tile, tiles_m, tiles_n):
    """Row and column of a tile. Eight rows of tiles go by together and share panels of B in L2."""
    group = 8 * tiles_n
    first = tile // group * 8
    rows = cutlass.min(tiles_m - first, 8)
    return first + tile % group % rows, tile % group // rows


@cute.jit
def load_tiles(pipe, copies, tiles_m, tiles_n, steps):
    """The producer: fills the ring, and does not stop where a tile ends."""
    (tma_a, source_a, ring_a), (tma_b, source_b, ring_b) = copies
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES)
    first, blocks = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
    for tile in cutlass.range(first, tiles_m * tiles_n, blocks, unroll=1):
        m, n = corner(tile, tiles_m, tiles_n)
        for step in cutlass.range(steps, unroll=1):
            pipe.producer_acquire(state)  # waits until the stage is empty, and expects its bytes
            bar = pipe.producer_get_barrier(state)
            slot = state.index
            cute.copy(tma_a, source_a[None, m, step], ring_a[None, slot], tma_bar_ptr=bar)
            cute.copy(tma_b, source_b[None, n, step], ring_b[None, slot], tma_bar_ptr=bar)
            state.advance()
    pipe.producer_tail(state)


@cute.jit
def store_tile(sums, to_shared, own_c, c_copy, m, n):
    """Sums to bf16 and by halves of a small buffer to global memory."""
    tma_c, halves, target = c_copy
    warp_index = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    together = pipeline.NamedBarrier(barrier_id=1, num_threads=CONSUMERS)
    piece = cute.make_rmem_tensor(cute.make_layout(cute.shape(own_c)[:3]), Float32)
    rounded = cute.make_rmem_tensor_like(piece, BFloat16)
    for i in cutlass.range_constexpr(BN // PIECE):
        for j in cutlass.range_constexpr(cute.size(piece)):
            piece[j] = sums[i * cute.size(piece) + j]
        rounded.store(piece.load().to(BFloat16))
        if warp_index == 0:  # the store that read this half of the buffer has read it
            cute.arch.cp_async_bulk_wait_group(HALVES - 1, read=True)
        together.arrive_and_wait()
        cute.copy(to_shared, rounded, own_c[None, None, None, i % HALVES])
        cute.arch.fence_proxy("async.shared", space="cta")
        together.arrive_and_wait()
        if warp_index == 0:
            at = (None, m, n * (BN // PIECE) + i)
            cute.copy(tma_c, halves[None, i % HALVES], target[at])
            cute.arch.cp_async_bulk_commit_group()


@cute.jit
def multiply_tiles(pipe, mma: cute.TiledMma, buffers, c_copy, tiles):
    """The consumers: both warpgroups take the same stage, 64 rows each."""
    s_a, s_b, s_c = buffers
    tiles_m, tiles_n, steps = tiles
    thread, _, _ = cute.arch.thread_idx()
    own = mma.get_slice(thread)
    frag_a = mma.make_fragment_A(own.partition_A(s_a))
    frag_b = mma.make_fragment_B(own.partition_B(s_b))
    acc = cute.make_rmem_tensor(own.partition_shape_C((BM, BN)), Float32)
    # stmatrix writes four 8 x 8 blocks; a thread's sums of PIECE columns stand side by side.
    store = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), BFloat16)
    to_shared = cute.make_tiled_copy_S(store, cute.make_tiled_copy_C_atom(store, mma))
    own_c = to_shared.get_slice(thread).partition_D(s_c)
    sums = to_shared.retile(acc)

    full = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
    free = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
    first, blocks = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]
    for tile in cutlass.range(first, tiles_m * tiles_n, blocks, unroll=1):
        m, n = corner(tile, tiles_m, tiles_n)
        # `set` rebinds the atom, so it stands in the loop's own body, not in a function of it.
        mma.set(warpgroup.Field.ACCUMULATE, False)
        for step in cutlass.range(steps, unroll=1):
            pipe.consumer_wait(full)
            warpgroup.fence()
            for k in cutlass.range_constexpr(BK // 16):
                at = (None, None, k, full.index)
                cute.gemm(mma, acc, frag_a[at], frag_b[at], acc)
                mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            full.advance()
            if step > 0:
                warpgroup.wait_group(1)  # the products of the stage before are done
                pipe.consumer_release(free)
                free.advance()
        warpgroup.wait_group(0)
        pipe.consumer_release(free)
        free.advance()
        store_tile(sums, to_shared, own_c, c_copy, m, n)
    cute.arch.cp_async_bulk_wait_group(0)  # the buffer lives until the last store has read it


@cute.kernel
def gemm_kernel(
    mma: cute.TiledMma,
    tma_a: cute.CopyAtom,
    a: cute.Tensor,
    tma_b: cute.CopyAtom,
    b: cute.Tensor,
    tma_c: cute.CopyAtom,
    c: cute.Tensor,
    a_layout: cute.ComposedLayout,
    b_layout: cute.ComposedLayout,
    c_layout: cute.ComposedLayout,
):
    warp_index = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if warp_index == CONSUMERS // 32:
        for atom in (tma_a, tma_b, tma_c):
            cpasync.prefetch_descriptor(atom)

    smem = cutlass.memory.SmemAllocator()
    barriers = smem.allocate_array(Int64, STAGES * 2)
    s_a = smem.allocate_tensor(BFloat16, a_layout.outer, 1024, swizzle=a_layout.inner)
    s_b = smem.allocate_tensor(BFloat16, b_layout.outer, 1024, swizzle=b_layout.inner)
    s_c = smem.allocate_tensor(BFloat16, c_layout.outer, 1024, swizzle=c_layout.inner)
    pipe = pipeline.PipelineTmaAsync.create(
        barrier_storage=barriers,
        num_stages=STAGES,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        # One lane of each warp that multiplies says that a stage is empty.
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, CONSUMERS // 32),
        tx_count=STAGE_BYTES,
        cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
    )

    # (BM, BK, tiles of M, tiles of K) and so on: coordinates that TMA takes, not data.
    tiles_a = cute.local_tile(a, (BM, BK), (None, None))
    tiles_b = cute.local_tile(b, (BN, BK), (None, None))
    tiles_c = cute.local_tile(c, (BM, PIECE), (None, None))
    alone = cute.make_layout(1)
    ring_a, source_a = cpasync.tma_partition(
        tma_a, 0, alone, cute.group_modes(s_a, 0, 2), cute.group_modes(tiles_a, 0, 2)
    )
    ring_b, source_b = cpasync.tma_partition(
        tma_b, 0, alone, cute.group_modes(s_b, 0, 2), cute.group_modes(tiles_b, 0, 2)
    )
    halves, target = cpasync.tma_partition(
        tma_c, 0, alone, cute.group_modes(s_c, 0, 2), cute.group_modes(tiles_c, 0, 2)
    )
    tiles_m, tiles_n = cute.size(tiles_a, mode=[2]), cute.size(tiles_b, mode=[2])
    steps = cute.size(tiles_a, mode=[3])

    if warp_index >= CONSUMERS // 32:
        cute.arch.setmaxregister_decrease(40)
        if warp_index == CONSUMERS // 32:
            copies = ((tma_a, source_a, ring_a), (tma_b, source_b, ring_b))
            load_tiles(pipe, copies, tiles_m, tiles_n, steps)
    else:
        cute.arch.setmaxregister_increase(232)
        tiles = (tiles_m, tiles_n, steps)
        multiply_tiles(pipe, mma, (s_a, s_b, s_c), (tma_c, halves, target), tiles)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, blocks: Int32, stream: cuda.CUstream):
    """a [M][K], b [N][K], c [M][N]; `blocks` is at most the number of multiprocessors."""
    k_major, shared = OperandMajorMode.K, warpgroup.OperandSource.SMEM
    op = warpgroup.MmaF16BF16Op(BFloat16, Float32, (64, BN, 16), shared, k_major, k_major)
    mma = cute.make_tiled_mma(op, (GROUPS, 1, 1))
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, BFloat16)
    a_layout = cute.tile_to_shape(atom, (BM, BK, STAGES), (0, 1, 2))
    b_layout = cute.tile_to_shape(atom, (BN, BK, STAGES), (0, 1, 2))
    c_layout = cute.tile_to_shape(atom, (BM, PIECE, HALVES), (0, 1, 2))
    stage = (None, None, 0)
    load, save = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
    tma_a, t_a = cpasync.make_tiled_tma_atom(load, a, cute.slice_(a_layout, stage), (BM, BK))
    tma_b, t_b = cpasync.make_tiled_tma_atom(load, b, cute.slice_(b_layout, stage), (BN, BK))
    tma_c, t_c = cpasync.make_tiled_tma_atom(save, c, cute.slice_(c_layout, stage), (BM, PIECE))
    tiles = cute.ceil_div(c.shape[0], BM) * cute.ceil_div(c.shape[1], BN)
    gemm_kernel(mma, tma_a, t_a, tma_b, t_b, tma_c, t_c, a_layout, b_layout, c_layout).launch(
        grid=(cutlass.min(blocks, tiles), 1, 1), block=(THREADS, 1, 1), stream=stream
    )


def compiled():
    """The product for any sizes, compiled without a device where CUTE_DSL_ARCH names one."""
    from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

    def matrix():
        sizes = (cute.sym_int(), cute.sym_int(divisibility=8))
        return make_fake_compact_tensor(BFloat16, sizes, stride_order=(1, 0), assumed_align=16)

    return cute.compile(gemm, matrix(), matrix(), matrix(), Int32(1), make_fake_stream())


def main():
    """Compare with float64 on this machine's GPU."""
    import torch
    from cutlass.cute.runtime import from_dlpack

    def dynamic(tensor):
        described = from_dlpack(tensor, assumed_align=16)
        return described.mark_compact_shape_dynamic(0, (0, 1)).mark_compact_shape_dynamic(
            1, (0, 1), divisibility=8
        )

    multiply = compiled()
    units = torch.cuda.get_device_properties(0).multi_processor_count
    stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
    for m, n, k in ((128, 256, 64), (1000, 1304, 776), (65, 8, 8), (3000, 4096, 1024)):
        a = torch.randn(m, k, device="cuda").bfloat16()
        b = torch.randn(n, k, device="cuda").bfloat16()
        c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        multiply(dynamic(a), dynamic(b), dynamic(c), units, stream)
        expected = a.double() @ b.double().T
        error = ((c.double() - expected).norm() / expected.norm()).item()
        print(m, n, k, error)
        assert error < 4e-3


if __name__ == "__main__":
    main()
