"""Attention of one new query per sequence over a paged cache (decoding) in the CuTe DSL for Hopper:
one warp brings pages by TMA into a ring, four warps multiply 16 keys of a stage each by mma.sync.

query and out[batch][kv_heads][share][128], keys and values[pages][page][kv_heads][128] in bf16;
table[batch][most pages] and lengths[batch] in int32; sums[batch][kv_heads][parts][share][128] and
logs[batch][kv_heads][parts][share] in float32 are room for the parts that a sequence is cut into.
At most 16 queries share a head of keys, a page has 16, 32 or 64 of them: both are known when
compiled, all else is free. An empty sequence gives zeros.
"""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64, pipeline
from cutlass.cute.nvgpu import cpasync, warp, warpgroup

D, KEYS, STAGES = 128, 64, 3  # 32 KiB of keys and values a stage, two blocks a multiprocessor
WARPS, ROWS = 4, 16  # warps that multiply, and rows of their products, of which `share` are queries
OWN = KEYS // WARPS  # keys of a stage that one warp takes
THREADS = 32 * (WARPS + 1)
STAGE_BYTES = 2 * KEYS * D * 2
LOWEST = -1e30  # finite, so that a warp that saw no key has the weight 0 and not NaN


@cute.jit
def page_number(table, place, page, length, none):
    """The page that holds the keys from `place * page` on, or `none` behind the last key."""
    number = none
    if place * page < length:
        number = table[place]
    return number


@cute.jit
def load_pages(pipe, copies, table, first, steps, length):
    """The producer: brings the stages from `first` on."""
    (tma_k, source_k, ring_k), (tma_v, source_v, ring_v) = copies
    pieces = cute.size(ring_k, mode=[1])
    page, none = KEYS // pieces, cute.size(source_k, mode=[1])  # TMA reads zeros there
    # Each lane looks up one page of a stage, a stage ahead, so that no copy waits for the table.
    place = first * pieces + cute.arch.lane_idx() % pieces
    following = page_number(table, place, page, length, none)
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES)
    for _ in cutlass.range(steps, unroll=1):
        number = following
        place += pieces
        following = page_number(table, place, page, length, none)
        pipe.producer_acquire(state)  # waits until the stage is empty, and expects its bytes
        bar = pipe.producer_get_barrier(state)
        for p in cutlass.range_constexpr(pieces):
            own, slot = (None, cute.arch.shuffle_sync(number, p)), (None, p, state.index)
            cute.copy(tma_k, source_k[own], ring_k[slot], tma_bar_ptr=bar)
            cute.copy(tma_v, source_v[own], ring_v[slot], tma_bar_ptr=bar)
        state.advance()
    pipe.producer_tail(state)


@cute.jit
def own_queries(mma: cute.TiledMma, query):
    """The queries as operand A; rows that are none are zero."""
    share, lane = cute.size(query, mode=[0]), cute.arch.lane_idx()
    rows = cute.make_tensor(query.iterator, cute.make_layout((ROWS, D), stride=(D, 1)))
    source = mma.get_slice(lane).partition_A(rows)
    queries = mma.make_fragment_A(source)
    queries.fill(0.0)
    for half in cutlass.range_constexpr(cute.ceil_div(share, 8)):
        if lane // 4 + half * 8 < share:
            at = ((None, half, None), 0, None)
            cute.autovec_copy(source[at], queries[at])
    return queries


@cute.jit
def weigh(scores, state, left, scale, share: cutlass.Constexpr, mma: cute.TiledMma):
    """Scores to weights of the online softmax in place; returns what older sums shrink by."""
    highest, total = state
    columns = mma.get_slice(cute.arch.lane_idx()).partition_C(
        cute.make_identity_tensor((ROWS, OWN))
    )
    shrink = cute.make_rmem_tensor_like(highest)
    for half in cutlass.range_constexpr(cute.ceil_div(share, 8)):
        above = highest[half]
        for i in cutlass.range_constexpr(cute.size(scores)):
            if cutlass.const_expr(i // 2 % 2 == half):
                score = scores[i] * scale
                if columns[i][1] >= left:  # also where the key is NaN
                    score = -Float32.inf
                scores[i] = score
                above = cute.arch.fmax(above, score)
        above = cute.arch.fmax(above, cute.arch.shuffle_sync_bfly(above, 1))
        above = cute.arch.fmax(above, cute.arch.shuffle_sync_bfly(above, 2))
        shrink[half] = cute.math.exp2(highest[half] - above, fastmath=True)
        highest[half] = above
        summed = total[half] * shrink[half]
        for i in cutlass.range_constexpr(cute.size(scores)):
            if cutlass.const_expr(i // 2 % 2 == half):
                scores[i] = cute.math.exp2(scores[i] - above, fastmath=True)
                summed += scores[i]
        total[half] = summed
    return shrink


@cute.jit
def attend(pipe, mma: cute.TiledMma, rings, query, first, steps, length, scale):
    """A consumer warp: its keys of every stage. Returns sums and, by halves of the rows, highest
    scores and totals of the weights."""
    s_k, s_v = rings
    lane = cute.arch.lane_idx()
    index = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    share = cutlass.const_expr(cute.size(query, mode=[0]))
    each = cute.size(s_k, mode=[0]) // OWN  # warps a page
    own = (index % each, 0, index // each, None)
    own_k = cute.local_tile(s_k, (OWN, D, 1), own)[None, None, 0, None]
    own_v = cute.local_tile(s_v, (OWN, D, 1), own)[None, None, 0, None]
    columns_v = cute.make_tensor(own_v.iterator, cute.select(own_v.layout, [1, 0, 2]))

    slice_mma = mma.get_slice(lane)
    queries = own_queries(mma, query)
    frag_k = mma.make_fragment_B(slice_mma.partition_B(own_k[None, None, 0]))
    frag_v = mma.make_fragment_B(slice_mma.partition_B(columns_v[None, None, 0]))
    scores = cute.make_rmem_tensor(mma.partition_shape_C((ROWS, OWN)), Float32)
    weights = cute.make_rmem_tensor(mma.partition_shape_A((ROWS, OWN)), BFloat16)
    # The scores' registers are, rounded, operand A of the product with the values.
    rounded = cute.make_tensor(weights.iterator, scores.layout)
    sums = cute.make_rmem_tensor(mma.partition_shape_C((ROWS, D)), Float32)
    sums.fill(0.0)
    highest = cute.make_rmem_tensor(2, Float32)
    total = cute.make_rmem_tensor(2, Float32)
    highest.fill(LOWEST)
    total.fill(0.0)

    straight = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), BFloat16)
    across = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), BFloat16)
    copy_k, copy_v = cute.make_tiled_copy_B(straight, mma), cute.make_tiled_copy_B(across, mma)
    from_k = copy_k.get_slice(lane).partition_S(own_k)
    from_v = copy_v.get_slice(lane).partition_S(columns_v)
    to_k, to_v = copy_k.retile(frag_k), copy_v.retile(frag_v)

    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
    for step in cutlass.range(steps, unroll=1):
        left = length - (first + step) * KEYS - index * OWN  # keys from this warp's first on
        pipe.consumer_wait(state)
        if left < OWN:  # NaN behind the end would survive a weight of 0
            for row in cutlass.range(cutlass.max(left, 0), OWN, unroll=1):
                for column in cutlass.range_constexpr(D // 32):
                    own_v[row, lane + column * 32, state.index] = BFloat16(0.0)
            cute.arch.sync_warp()
        scores.fill(0.0)
        for k in cutlass.range_constexpr(D // 16):
            at = (None, None, k)
            cute.copy(copy_k, from_k[None, None, k, state.index], to_k[at])
            cute.gemm(mma, scores, queries[at], frag_k[at], scores)
        shrink = weigh(scores, (highest, total), left, scale, share, mma)
        rounded.store(scores.load().to(BFloat16))
        cute.copy(copy_v, from_v[None, None, None, state.index], to_v)
        for i in cutlass.range_constexpr(cute.size(sums)):
            if cutlass.const_expr(i // 2 % 2 * 8 < share):
                sums[i] = sums[i] * shrink[i // 2 % 2]
        cute.gemm(mma, sums, weights[None, None, 0], frag_v[None, None, 0], sums)
        pipe.consumer_release(state)
        state.advance()
    for half in cutlass.range_constexpr(2):
        total[half] += cute.arch.shuffle_sync_bfly(total[half], 1)
        total[half] += cute.arch.shuffle_sync_bfly(total[half], 2)
    return sums, highest, total


@cute.jit
def join_warps(mma: cute.TiledMma, own, s_joined, s_marks, sums, logs):
    """Sums of the four warps, normalised, and the logarithm of their weight to global memory."""
    own_sums, highest, total = own
    thread, _, _ = cute.arch.thread_idx()
    lane, index = cute.arch.lane_idx(), cute.arch.warp_idx()
    share = cutlass.const_expr(cute.size(sums, mode=[0]))
    together = pipeline.NamedBarrier(barrier_id=1, num_threads=WARPS * 32)
    together.arrive_and_wait()  # nobody reads the ring any more, which `s_joined` takes
    to_shared = mma.get_slice(lane).partition_C(s_joined[None, None, index])
    for i in cutlass.range_constexpr(cute.size(own_sums)):
        if cutlass.const_expr(i // 2 % 2 * 8 < share):
            to_shared[i] = own_sums[i]
    if lane % 4 == 0:
        for half in cutlass.range_constexpr(2):
            s_marks[lane // 4 + half * 8, index, 0] = highest[half]
            s_marks[lane // 4 + half * 8, index, 1] = total[half]
    together.arrive_and_wait()
    for row in cutlass.range_constexpr(share):
        high, whole, value = Float32(LOWEST), Float32(0.0), Float32(0.0)
        for w in cutlass.range_constexpr(WARPS):
            high = cute.arch.fmax(high, s_marks[row, w, 0])
        for w in cutlass.range_constexpr(WARPS):
            weight = cute.math.exp2(s_marks[row, w, 0] - high, fastmath=True)
            whole += weight * s_marks[row, w, 1]
            value += weight * s_joined[row, thread, w]
        sums[row, thread] = value / whole
        if thread == row:
            logs[row] = high + cute.math.log2(whole, fastmath=True)


@cute.kernel
def part_kernel(
    mma: cute.TiledMma,
    tma_k: cute.CopyAtom,
    keys: cute.Tensor,
    tma_v: cute.CopyAtom,
    values: cute.Tensor,
    query: cute.Tensor,
    table: cute.Tensor,
    lengths: cute.Tensor,
    sums: cute.Tensor,
    logs: cute.Tensor,
    each: Int32,
    scale: Float32,
    layout: cute.ComposedLayout,
):
    cute.arch.griddepcontrol_launch_dependents()  # the join may take its place, and waits there
    head, part, batch = cute.arch.block_idx()  # heads go by together: their keys are neighbours
    length, first = lengths[batch], part * each
    steps = cutlass.min(each, cute.ceil_div(length, KEYS) - first)

    smem = cutlass.memory.SmemAllocator()
    barriers = smem.allocate_array(Int64, STAGES * 2)
    s_marks = smem.allocate_tensor(Float32, cute.make_layout((ROWS, WARPS, 2)), 16)
    s_k = smem.allocate_tensor(BFloat16, layout.outer, 1024, swizzle=layout.inner)
    s_v = smem.allocate_tensor(BFloat16, layout.outer, 1024, swizzle=layout.inner)
    if steps > 0:  # a part behind the end of its sequence is not looked at by the join either
        pipe = pipeline.PipelineTmaAsync.create(
            barrier_storage=barriers,
            num_stages=STAGES,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            # One lane of each warp that multiplies says that a stage is empty.
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, WARPS),
            tx_count=STAGE_BYTES,
            cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
        )
        if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == WARPS:
            page, alone = cute.size(s_k, mode=[0]), cute.make_layout(1)
            copies = ()
            for atom, cache, ring in ((tma_k, keys, s_k), (tma_v, values, s_v)):
                tiles = cute.local_tile(cache, (page, D), (0, 0, head, None))
                to_ring, source = cpasync.tma_partition(
                    atom, 0, alone, cute.group_modes(ring, 0, 2), cute.group_modes(tiles, 0, 2)
                )
                copies = (*copies, (atom, source, to_ring))
            load_pages(pipe, copies, table[batch, None], first, steps, length)
        else:
            own = attend(
                pipe, mma, (s_k, s_v), query[batch, head, None, None], first, steps, length, scale
            )
            plain = cute.recast_ptr(s_k.iterator, cute.make_swizzle(0, 4, 3), Float32)
            room = cute.make_layout((ROWS, D, WARPS), stride=(D, 1, ROWS * D))
            s_joined = cute.make_tensor(plain, room)
            at = (batch, head, part, None)
            join_warps(mma, own, s_joined, s_marks, sums[(*at, None)], logs[at])


@cute.kernel
def join_kernel(
    sums: cute.Tensor, logs: cute.Tensor, lengths: cute.Tensor, out: cute.Tensor, each: Int32
):
    row, head, batch = cute.arch.block_idx()
    column, _, _ = cute.arch.thread_idx()
    parts = cute.ceil_div(lengths[batch], each * KEYS)
    high, whole, value = Float32(LOWEST), Float32(0.0), Float32(0.0)
    cute.arch.griddepcontrol_wait()  # until all parts are done and seen
    for p in cutlass.range(parts, unroll=4):
        high = cute.arch.fmax(high, logs[batch, head, p, row])
    for p in cutlass.range(parts, unroll=4):
        weight = cute.math.exp2(logs[batch, head, p, row] - high, fastmath=True)
        whole += weight
        value += weight * sums[batch, head, p, row, column]
    if whole > 0.0:
        value = value / whole
    out[batch, head, row, column] = value.to(BFloat16)


@cute.jit
def paged_decode(
    query: cute.Tensor,
    keys: cute.Tensor,
    values: cute.Tensor,
    table: cute.Tensor,
    lengths: cute.Tensor,
    sums: cute.Tensor,
    logs: cute.Tensor,
    out: cute.Tensor,
    each: Int32,
    scale: Float32,
    stream: cuda.CUstream,
):
    """`each` is the number of stages of 64 keys in a part: parts * each * 64 >= every length.
    `scale` is that of the scores times log2(e)."""
    page, (batch, heads, parts) = keys.shape[1], sums.shape[:3]
    mma = cute.make_tiled_mma(
        warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)), permutation_mnk=(ROWS, 16, 16)
    )
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, BFloat16)
    layout = cute.tile_to_shape(atom, (page, D, KEYS // page, STAGES), (0, 1, 2, 3))
    atoms = ()
    for cache in (keys, values):  # modes: key of the page, column, head, page
        view = cute.make_tensor(cache.iterator, cute.select(cache.layout, [1, 3, 2, 0]))
        one = cute.slice_(layout, (None, None, 0, 0))
        load = cpasync.CopyBulkTensorTileG2SOp()
        atoms = (*atoms, *cpasync.make_tiled_tma_atom(load, view, one, (page, D)))
    part_kernel(mma, *atoms, query, table, lengths, sums, logs, each, scale, layout).launch(
        grid=(heads, parts, batch),
        block=(THREADS, 1, 1),
        min_blocks_per_mp=2,
        preferred_smem_carveout=100,  # left out, the compiler asks a device
        stream=stream,
    )
    join_kernel(sums, logs, lengths, out, each).launch(
        grid=(query.shape[2], heads, batch), block=(D, 1, 1), use_pdl=True, stream=stream
    )


def compiled(page, share):
    """For pages of that many keys and that many queries a head of keys; needs no device where
    CUTE_DSL_ARCH names one."""
    from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

    def tensor(dtype, *sizes):
        shape = tuple(cute.sym_int() if size is None else size for size in sizes)
        order = tuple(reversed(range(len(shape))))
        return make_fake_compact_tensor(dtype, shape, stride_order=order, assumed_align=16)

    query = tensor(BFloat16, None, None, share, D)
    cache = tensor(BFloat16, None, page, None, D)
    table, lengths = tensor(Int32, None, None), tensor(Int32, None)
    sums, logs = (
        tensor(Float32, None, None, None, share, D),
        tensor(Float32, None, None, None, share),
    )
    tensors = (query, cache, cache, table, lengths, sums, logs, query)
    return cute.compile(paged_decode, *tensors, Int32(1), Float32(1.0), make_fake_stream())
