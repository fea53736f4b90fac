"""Attention forward in Gluon for compute capability 10.0: heads of 128, bf16, causal or not,
grouped heads of K and V. Two tiles of 128 queries take turns: while the softmax of one is
computed, the tensor core works for the other. Five groups of warps: loads, products, two of
softmax, and one that rescales the sums of values and writes them.

As many keys as queries; any length.
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
    tcgen05_mma,
    tma,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

WIDTH = gl.constexpr(128)  # of a head
SLOTS = gl.constexpr(4)  # of the ring: K and V of two steps


@gluon.jit
def load_tiles(q_desc, k_desc, v_desc, q_tiles, ring, q_full, full, empty, m, head, kv_head, steps):
    BLOCK_M: gl.constexpr = q_desc.block_type.shape[1]
    BLOCK_N: gl.constexpr = k_desc.block_type.shape[1]
    for t in gl.static_range(2):
        mbarrier.expect(q_full.index(t), q_desc.block_type.nbytes)
        at = [head, m + t * BLOCK_M, 0]
        tma.async_copy_global_to_shared(q_desc, at, q_full.index(t), q_tiles.index(t))
    for i in range(2 * steps):  # K of step 0, V of step 0, K of step 1 ...
        slot = i % SLOTS
        mbarrier.wait(empty.index(slot), i // SLOTS & 1 ^ 1)
        mbarrier.expect(full.index(slot), k_desc.block_type.nbytes)
        at = [kv_head, i // 2 * BLOCK_N, 0]
        if i % 2 == 0:
            tma.async_copy_global_to_shared(k_desc, at, full.index(slot), ring.index(slot))
        else:
            tma.async_copy_global_to_shared(v_desc, at, full.index(slot), ring.index(slot))


@gluon.jit
def tile_of(stage):
    """[1][rows][width] as [rows][width]."""
    return stage.reshape((stage.shape[1], stage.shape[2]))


@gluon.jit
def weights_of(scores):
    """The weights, bf16, lie in the first half of the columns of the scores that they replace."""
    BLOCK_M: gl.constexpr = scores.shape[0]
    BLOCK_N: gl.constexpr = scores.shape[1]
    layout: gl.constexpr = TensorMemoryLayout([BLOCK_M, BLOCK_N], col_stride=1)
    half = scores.slice(0, BLOCK_N // 2)
    return half._reinterpret(gl.bfloat16, [BLOCK_M, BLOCK_N], layout)


@gluon.jit
def multiply_tiles(
    q_tiles, ring, scores, sums, q_full, full, empty, s_full, p_full, o_full, o_ready, steps
):
    mbarrier.wait(full.index(0), 0)
    for t in gl.static_range(2):
        mbarrier.wait(q_full.index(t), 0)
        keys = tile_of(ring.index(0)).permute((1, 0))
        q = tile_of(q_tiles.index(t))
        ended = [s_full.index(t), empty.index(0)]
        tcgen05_mma(q, keys, scores.index(t), use_acc=False, mbarriers=ended)
    for step in range(steps):
        v_slot = (2 * step + 1) % SLOTS
        k_slot = (2 * step + 2) % SLOTS
        more = step + 1 < steps
        for t in gl.static_range(2):
            if t == 0:
                mbarrier.wait(full.index(v_slot), (2 * step + 1) // SLOTS & 1)
            mbarrier.wait(p_full.index(t), step & 1)
            mbarrier.wait(o_ready.index(t), step & 1 ^ 1, pred=step > 0)
            tcgen05_mma(
                weights_of(scores.index(t)),
                tile_of(ring.index(v_slot)),
                sums.index(t),
                use_acc=step > 0,
                mbarriers=[o_full.index(t), empty.index(v_slot)],
            )
            if more:
                if t == 0:
                    mbarrier.wait(full.index(k_slot), (2 * step + 2) // SLOTS & 1)
                # The next scores overwrite the weights that this product reads.
                mbarrier.wait(o_full.index(t), step & 1)
                keys = tile_of(ring.index(k_slot)).permute((1, 0))
                tcgen05_mma(
                    tile_of(q_tiles.index(t)),
                    keys,
                    scores.index(t),
                    use_acc=False,
                    mbarriers=[s_full.index(t), empty.index(k_slot)],
                )


@gluon.constexpr_function
def half_layout(rows, columns, warps):
    layout = TensorMemoryLayout([rows, columns], col_stride=1)
    return get_tmem_reg_layout(gl.float32, (rows, columns), layout, warps)


@gluon.jit
def masked(s, first_key, first_row, length, CAUSAL: gl.constexpr):
    layout: gl.constexpr = s.type.layout
    key = first_key + gl.arange(0, s.shape[1], layout=gl.SliceLayout(0, layout))
    keep = (key < length)[None, :]
    if CAUSAL:
        row = first_row + gl.arange(0, s.shape[0], layout=gl.SliceLayout(1, layout))
        keep = keep & (key[None, :] <= row[:, None])
    return gl.where(keep, s, float("-inf"))


@gluon.jit
def softmax_step(
    scores, s_full, p_full, message, told, taken, top, total, step, first_row, length, scale,
    CAUSAL: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    HALF: gl.constexpr = scores.shape[1] // 2
    layout: gl.constexpr = half_layout(scores.shape[0], HALF, gl.num_warps())
    mbarrier.wait(s_full, step & 1)
    # A thread holds a row, so that its maximum needs no shuffle; in halves, so that weights of one
    # half leave before those of the other are computed.
    left = scores.slice(0, HALF).load(layout)
    right = scores.slice(HALF, HALF).load(layout)
    if MASKED:
        key = 2 * HALF * step
        left = masked(left, key, first_row, length, CAUSAL)
        right = masked(right, key + HALF, first_row, length, CAUSAL)
    new_top = gl.maximum(top, gl.maximum(gl.max(left, 1), gl.max(right, 1)) * scale)
    # The other warps need the shrinking factor first: they rescale while exponentials are taken.
    factor = gl.exp2(top - new_top)
    mbarrier.wait(taken, step & 1 ^ 1)
    message.store(factor)
    mbarrier.arrive(told, count=1)
    weights = weights_of(scores)
    left = gl.exp2(left * scale - new_top[:, None])
    weights.slice(0, HALF).store(left.to(gl.bfloat16))
    total = total * factor + gl.sum(left, 1)
    right = gl.exp2(right * scale - new_top[:, None])
    weights.slice(HALF, HALF).store(right.to(gl.bfloat16))
    mbarrier.arrive(p_full, count=1)
    return new_top, total + gl.sum(right, 1)


@gluon.jit
def softmax_tile(
    scores, s_full, p_full, message, told, taken, first_row, length, scale, free_steps, steps,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    BLOCK_M: gl.constexpr = scores.shape[0]
    layout: gl.constexpr = half_layout(BLOCK_M, scores.shape[1] // 2, gl.num_warps())
    top = gl.full([BLOCK_M], float("-inf"), gl.float32, gl.SliceLayout(1, layout))
    total = gl.full([BLOCK_M], 0.0, gl.float32, gl.SliceLayout(1, layout))
    for step in range(free_steps):
        top, total = softmax_step(
            scores, s_full, p_full, message, told, taken, top, total, step, first_row, length,
            scale, CAUSAL, False,
        )  # fmt: skip
    for step in range(free_steps, steps):
        top, total = softmax_step(
            scores, s_full, p_full, message, told, taken, top, total, step, first_row, length,
            scale, CAUSAL, True,
        )  # fmt: skip
    mbarrier.wait(taken, steps & 1 ^ 1)
    message.store(total)
    mbarrier.arrive(told, count=1)


@gluon.jit
def rescale_and_store(o_desc, sums, o_full, o_ready, messages, told, taken, m, head, steps):
    BLOCK_M: gl.constexpr = sums.shape[1]
    PIECE: gl.constexpr = o_desc.block_type.shape[2]
    pieces: gl.constexpr = WIDTH // PIECE
    layout: gl.constexpr = get_tmem_reg_layout(
        gl.float32,
        (BLOCK_M, PIECE),
        TensorMemoryLayout([BLOCK_M, PIECE], col_stride=1),
        gl.num_warps(),
    )
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    for t in gl.static_range(2):  # the first factor has nothing to shrink
        mbarrier.wait(told.index(t), 0)
        mbarrier.arrive(taken.index(t), count=1)
    for step in range(1, steps):
        for t in gl.static_range(2):
            mbarrier.wait(told.index(t), step & 1)
            factor = messages.index(t).load(row_layout)
            mbarrier.arrive(taken.index(t), count=1)
            mbarrier.wait(o_full.index(t), step & 1 ^ 1)
            for i in gl.static_range(pieces):
                part = sums.index(t).slice(i * PIECE, PIECE)
                part.store(part.load(layout) * factor[:, None])
            mbarrier.arrive(o_ready.index(t), count=1)
    o_ring = gl.allocate_shared_memory(o_desc.dtype, [2, 1, BLOCK_M, PIECE], o_desc.layout)
    for t in gl.static_range(2):
        mbarrier.wait(told.index(t), steps & 1)
        inverse = 1.0 / messages.index(t).load(row_layout)
        mbarrier.wait(o_full.index(t), steps & 1 ^ 1)
        for i in gl.static_range(pieces):
            values = sums.index(t).slice(i * PIECE, PIECE).load(layout) * inverse[:, None]
            tma.store_wait(pendings=1)
            half = o_ring.index(i % 2)
            tile_of(half).store(values.to(o_desc.dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(o_desc, [head, m + t * BLOCK_M, i * PIECE], half)
    tma.store_wait(pendings=0)


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit
def attention_kernel(
    q_desc, k_desc, v_desc, o_desc, length, group, scale, CAUSAL: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    BLOCK_M: gl.constexpr = q_desc.block_type.shape[1]
    BLOCK_N: gl.constexpr = k_desc.block_type.shape[1]
    # The second tile of queries begins with the first half of the ring that takes the results.
    gl.static_assert(WIDTH // o_desc.block_type.shape[2] % 2 == 0)
    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [2, 1, BLOCK_M, WIDTH], q_desc.layout)
    ring = gl.allocate_shared_memory(k_desc.dtype, [SLOTS, 1, BLOCK_N, WIDTH], k_desc.layout)
    messages = gl.allocate_shared_memory(
        gl.float32, [2, BLOCK_M], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    scores = allocate_tensor_memory(
        gl.float32, [2, BLOCK_M, BLOCK_N], TensorMemoryLayout([BLOCK_M, BLOCK_N], col_stride=1)
    )
    sums = allocate_tensor_memory(
        gl.float32, [2, BLOCK_M, WIDTH], TensorMemoryLayout([BLOCK_M, WIDTH], col_stride=1)
    )
    full = barriers(SLOTS, 1)
    empty = barriers(SLOTS, 2)  # read by the products of both tiles
    q_full = barriers(2, 1)
    s_full = barriers(2, 1)  # scores are there
    p_full = barriers(2, 1)  # weights are there
    o_full = barriers(2, 1)  # a product with values has ended
    o_ready = barriers(2, 1)  # sums of values are rescaled
    told = barriers(2, 1)  # a factor, at last the sum of weights, is in shared memory
    taken = barriers(2, 1)
    fence_async_shared()

    # The blocks with most keys begin first.
    m = (gl.num_programs(0) - 1 - gl.program_id(0)) * (2 * BLOCK_M)
    head = gl.program_id(1)
    steps = gl.cdiv(length, BLOCK_N)
    free_steps = length // BLOCK_N  # of which no key is masked
    if CAUSAL:
        steps = gl.minimum(steps, gl.cdiv(m + 2 * BLOCK_M, BLOCK_N))
        free_steps = m // BLOCK_N
    gl.warp_specialize(
        [
            (
                rescale_and_store,
                (o_desc, sums, o_full, o_ready, messages, told, taken, m, head, steps),
            ),
            (
                softmax_tile,
                (
                    scores.index(0), s_full.index(0), p_full.index(0), messages.index(0),
                    told.index(0), taken.index(0), m, length, scale, free_steps, steps, CAUSAL,
                ),
            ),
            (
                softmax_tile,
                (
                    scores.index(1), s_full.index(1), p_full.index(1), messages.index(1),
                    told.index(1), taken.index(1), m + BLOCK_M, length, scale, free_steps, steps,
                    CAUSAL,
                ),
            ),
            (
                multiply_tiles,
                (
                    q_tiles, ring, scores, sums, q_full, full, empty, s_full, p_full, o_full,
                    o_ready, steps,
                ),
            ),
            (
                load_tiles,
                (
                    q_desc, k_desc, v_desc, q_tiles, ring, q_full, full, empty, m, head,
                    head // group, steps,
                ),
            ),
        ],
        worker_num_warps=[4, 4, 1, 1],
        worker_num_regs=[192, 192, 24, 24],
    )  # fmt: skip


def attention(q, k, v, causal=False, block_m=128, block_n=128, piece=32):
    """q: [batch][heads][length][128]; k, v: [batch][kv_heads][length][128]; all bf16."""
    batch, heads, length, width = q.shape
    # Not `empty_like`: of a transposed q it is transposed, and its `reshape` below would be a copy.
    out = torch.empty((batch, heads, length, width), device=q.device, dtype=q.dtype)

    def describe(tensor, rows, columns):
        flat = tensor.reshape(-1, length, width)
        box = [1, rows, columns]
        layout = gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
        return TensorDescriptor.from_tensor(flat, box, layout)

    grid = (triton.cdiv(length, 2 * block_m), batch * heads)
    attention_kernel[grid](
        describe(q, block_m, width),
        describe(k, block_n, width),
        describe(v, block_n, width),
        describe(out, block_m, piece),
        length,
        heads // k.shape[1],
        width**-0.5 * 1.4426950408889634,
        causal,
        num_warps=4,
    )
    return out
