"""Attention within sequences of different lengths that lie one after the other, in Gluon for
compute capability 9.0. One warp loads keys and values by TMA, two groups of four have 64 queries
each.

query, out [rows][heads][WIDTH], key and value [rows][kv_heads][WIDTH] in bf16, contiguous, WIDTH 64
or 128; rows offsets[s] to offsets[s + 1] are sequence s, which may be empty and sees itself alone,
all of it or, with the causal mask, a row and those before it; offsets[sequences + 1] in int32.
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

ROWS = gl.constexpr(64)  # queries of a group of warps


@gluon.jit
def load_tiles(
    q_desc, k_desc, v_desc, q_tiles, k_ring, v_ring, q_full, k_full, k_empty, v_full, v_empty,
    q_row, q_column, kv_row, kv_column, tiles, STAGES: gl.constexpr,
):  # fmt: skip
    for c in gl.static_range(2):
        mbarrier.expect(q_full.index(c), q_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(
            q_desc, [q_row + c * ROWS, q_column], q_full.index(c), q_tiles.index(c)
        )
    for i in range(tiles):
        slot = i % STAGES
        phase = i // STAGES & 1 ^ 1
        at = [kv_row + i * k_desc.block_type.shape[0], kv_column]
        mbarrier.wait(k_empty.index(slot), phase)
        mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(k_desc, at, k_full.index(slot), k_ring.index(slot))
        mbarrier.wait(v_empty.index(slot), phase)
        mbarrier.expect(v_full.index(slot), v_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(v_desc, at, v_full.index(slot), v_ring.index(slot))


@gluon.jit
def masked(s, start, free_keys, last_key):
    """Scores with those of keys behind `last_key` of a row removed; tiles before `free_keys`
    have none."""
    layout: gl.constexpr = s.type.layout
    if start + s.shape[1] > free_keys:
        n = start + gl.arange(0, s.shape[1], layout=gl.SliceLayout(0, layout))
        s = gl.where(n[None, :] <= last_key[:, None], s, float("-inf"))
    return s


@gluon.jit
def attend(
    q_tile, k_ring, v_ring, q_full, k_full, k_empty, v_full, v_empty, out_ptr,
    begin, column, stride, first_row, length, tiles, scale, CAUSAL: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    KEYS: gl.constexpr = k_ring.shape[1]
    WIDTH: gl.constexpr = k_ring.shape[2]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    s_rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    rows = first_row + gl.arange(0, ROWS, layout=s_rows)
    if CAUSAL:
        last_key = gl.minimum(rows, length - 1)
        free_keys = gl.minimum(first_row + 1, length)
    else:
        last_key = gl.full([ROWS], 0, gl.int32, s_rows) + (length - 1)
        free_keys = length
    blank = gl.zeros([ROWS, KEYS], gl.float32, s_layout)
    acc = gl.zeros([ROWS, WIDTH], gl.float32, o_layout)

    mbarrier.wait(q_full, 0)
    mbarrier.wait(k_full.index(0), 0)
    s = warpgroup_mma(q_tile, k_ring.index(0).permute((1, 0)), blank, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(num_outstanding=0, deps=(s,))
    mbarrier.arrive(k_empty.index(0), count=1)
    s = masked(s, 0, free_keys, last_key)
    highest = gl.max(s, 1) * scale
    p = gl.exp2(s * scale - highest[:, None])
    total = gl.sum(p, 1)
    p = gl.convert_layout(p.to(gl.bfloat16), p_layout)
    for i in range(1, tiles):
        slot = i % STAGES
        v_slot = (i - 1) % STAGES
        mbarrier.wait(k_full.index(slot), i // STAGES & 1)
        s = warpgroup_mma(
            q_tile, k_ring.index(slot).permute((1, 0)), blank, use_acc=False, is_async=True
        )
        mbarrier.wait(v_full.index(v_slot), (i - 1) // STAGES & 1)
        acc = warpgroup_mma(p, v_ring.index(v_slot), acc, is_async=True)
        s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
        mbarrier.arrive(k_empty.index(slot), count=1)
        s = masked(s, i * KEYS, free_keys, last_key)
        above = gl.maximum(highest, gl.max(s, 1) * scale)
        shrink = gl.exp2(highest - above)
        weight = gl.exp2(s * scale - above[:, None])
        total = total * shrink + gl.sum(weight, 1)
        highest = above
        # P is an operand in registers: it lives until the product has read it.
        acc, p = warpgroup_mma_wait(num_outstanding=0, deps=(acc, p))
        mbarrier.arrive(v_empty.index(v_slot), count=1)
        acc = acc * gl.convert_layout(shrink, o_rows)[:, None]
        p = gl.convert_layout(weight.to(gl.bfloat16), p_layout)
    v_slot = (tiles - 1) % STAGES
    mbarrier.wait(v_full.index(v_slot), (tiles - 1) // STAGES & 1)
    acc = warpgroup_mma(p, v_ring.index(v_slot), acc, is_async=True)
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))

    acc = acc * gl.convert_layout(1.0 / total, o_rows)[:, None]
    m = first_row + gl.arange(0, ROWS, layout=o_rows)
    d = column + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, o_layout))
    at = (begin + m).to(gl.int64)[:, None] * stride + d[None, :]
    gl.store(out_ptr + at, acc.to(gl.bfloat16), mask=(m < length)[:, None])


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit
def jagged_attention_kernel(
    q_desc, k_desc, v_desc, out_ptr, offsets_ptr, heads, share, sequences, scale,
    CAUSAL: gl.constexpr, SEQUENCES: gl.constexpr, STAGES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    KEYS: gl.constexpr = k_desc.block_type.shape[0]
    WIDTH: gl.constexpr = k_desc.block_type.shape[1]
    BLOCK: gl.constexpr = 2 * ROWS
    # Sequence s has the blocks from offsets[s] // BLOCK + s on: at least as many as it needs, in
    # the order of the sequences, and known without a sum over those before it.
    head = gl.program_id(0) % heads
    block = gl.program_id(0) // heads
    s = gl.arange(0, SEQUENCES, layout=gl.BlockedLayout([1], [32], [num_warps], [0]))
    starts = gl.load(offsets_ptr + s, mask=s < sequences, other=0)
    before = (starts // BLOCK + s <= block) & (s < sequences)
    sequence = gl.sum(before.to(gl.int32), 0) - 1
    begin = gl.load(offsets_ptr + sequence)
    length = gl.load(offsets_ptr + sequence + 1) - begin
    first_row = (block - begin // BLOCK - sequence) * BLOCK
    if CAUSAL:  # the last block of a sequence has the most keys and begins first
        first_row = ((begin + length) // BLOCK - begin // BLOCK) * BLOCK - first_row
    end = length
    if CAUSAL:
        end = gl.minimum(first_row + BLOCK, length)
    tiles = gl.cdiv(end, KEYS)

    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, WIDTH], q_desc.layout)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES, KEYS, WIDTH], k_desc.layout)
    v_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES, KEYS, WIDTH], v_desc.layout)
    q_full = barriers(2, 1)
    k_full = barriers(STAGES, 1)
    k_empty = barriers(STAGES, 2)  # both groups have read it
    v_full = barriers(STAGES, 1)
    v_empty = barriers(STAGES, 2)
    fence_async_shared()
    if first_row < length:
        gl.warp_specialize(
            [
                (
                    attend,
                    (
                        q_tiles.index(0), k_ring, v_ring, q_full.index(0), k_full, k_empty, v_full,
                        v_empty, out_ptr, begin, head * WIDTH, heads * WIDTH, first_row, length,
                        tiles, scale, CAUSAL, STAGES,
                    ),
                ),
                (
                    attend,
                    (
                        q_tiles.index(1), k_ring, v_ring, q_full.index(1), k_full, k_empty, v_full,
                        v_empty, out_ptr, begin, head * WIDTH, heads * WIDTH, first_row + ROWS,
                        length, tiles, scale, CAUSAL, STAGES,
                    ),
                ),
                (
                    load_tiles,
                    (
                        q_desc, k_desc, v_desc, q_tiles, k_ring, v_ring, q_full, k_full, k_empty,
                        v_full, v_empty, begin + first_row, head * WIDTH, begin,
                        head // share * WIDTH, tiles, STAGES,
                    ),
                ),
            ],
            worker_num_warps=[4, 1],
            worker_num_regs=[240, 24],
        )  # fmt: skip


def describe(tensor, box):
    layout = gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
    return TensorDescriptor.from_tensor(tensor.view(tensor.shape[0], -1), box, layout)


def jagged_attention(query, key, value, offsets, causal=False, scale=None, tile=128, stages=2):
    """Needs neither the longest length nor a copy of the offsets on the host."""
    rows, heads, width = query.shape
    sequences = len(offsets) - 1
    out = torch.empty_like(query)
    jagged_attention_kernel[((rows // 128 + sequences) * heads,)](
        describe(query, [64, width]),
        describe(key, [tile, width]),
        describe(value, [tile, width]),
        out,
        offsets,
        heads,
        heads // key.shape[1],
        sequences,
        (width**-0.5 if scale is None else scale) * 1.4426950408889634,
        CAUSAL=causal,
        SEQUENCES=max(128, triton.next_power_of_2(sequences)),
        STAGES=stages,
        num_warps=4,
    )
    return out
