"""Causal attention over a sliding window, with soft-capped scores and a sink per head, in Gluon
for compute capability 9.0. One warp loads keys and values by TMA, two groups of four have 64
queries each; only tiles that a window touches are visited.

A query sees itself and the `window - 1` keys before it. Scores become cap * tanh(score / cap) where
a cap is given. The sink is a score without a value: it takes part in the softmax only.

query, out [batch][heads][length][WIDTH], key, value [batch][kv_heads][length][WIDTH] in bf16,
contiguous, WIDTH 64 or 128; sink[heads].
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
    q_row, kv_row, tiles, STAGES: gl.constexpr,
):  # fmt: skip
    for c in gl.static_range(2):
        mbarrier.expect(q_full.index(c), q_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(
            q_desc, [q_row + c * ROWS, 0], q_full.index(c), q_tiles.index(c)
        )
    for i in range(tiles):
        slot = i % STAGES
        phase = i // STAGES & 1 ^ 1
        row = kv_row + i * k_desc.block_type.shape[0]
        mbarrier.wait(k_empty.index(slot), phase)
        mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(k_desc, [row, 0], k_full.index(slot), k_ring.index(slot))
        mbarrier.wait(v_empty.index(slot), phase)
        mbarrier.expect(v_full.index(slot), v_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(v_desc, [row, 0], v_full.index(slot), v_ring.index(slot))


@gluon.jit
def tanh(x):
    """One instruction of the special-function unit; relative error 2^-11, less than bf16 keeps."""
    return gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def exp2_shared(x):
    """2^x: of two numbers one by the special-function unit, one by a polynomial of degree 3 on the
    multiply-add units. |x| below 126."""
    return gl.inline_asm_elementwise(
        """{
        .reg .f32 t, r, f, p; .reg .b32 i, q;
        ex2.approx.ftz.f32 $0, $2;
        add.rm.ftz.f32 t, $3, 0f4B400000;
        sub.ftz.f32 r, t, 0f4B400000;
        sub.ftz.f32 f, $3, r;
        fma.rn.ftz.f32 p, f, 0f3D9DF09D, 0f3E6906A4;
        fma.rn.ftz.f32 p, p, f, 0f3F31F519;
        fma.rn.ftz.f32 p, p, f, 0f3F800000;
        mov.b32 i, t; mov.b32 q, p; shl.b32 i, i, 23; add.s32 q, q, i; mov.b32 $1, q;
        }""",
        "=&f,=f,f,f",
        [x],
        dtype=gl.float32,
        is_pure=True,
        pack=2,
    )


@gluon.jit
def seen(s, start, first_row, window):
    layout: gl.constexpr = s.type.layout
    n = start + gl.arange(0, s.shape[1], layout=gl.SliceLayout(0, layout))
    m = first_row + gl.arange(0, s.shape[0], layout=gl.SliceLayout(1, layout))
    distance = m[:, None] - n[None, :]
    return (distance >= 0) & (distance < window)


@gluon.jit
def weights_of(
    s, highest, start, first_row, window, scale, cap, CAPPED: gl.constexpr, SHARED: gl.constexpr
):
    """Weights, the new maximum, and the factor of what was summed before."""
    # Only the tiles at the two ends of a window need a mask.
    inner = (start + s.shape[1] <= first_row + 1) & (start + window >= first_row + s.shape[0])
    if CAPPED:  # scores cannot exceed the cap, so no maximum is needed
        s = tanh(s * scale) * cap
        weight = exp2_shared(s) if SHARED else gl.exp2(s)
        if not inner:
            weight = gl.where(seen(s, start, first_row, window), weight, 0.0)
        return weight, highest, highest
    else:
        if not inner:
            s = gl.where(seen(s, start, first_row, window), s, float("-inf"))
        above = gl.maximum(highest, gl.max(s, 1) * scale)
        return gl.exp2(s * scale - above[:, None]), above, gl.exp2(highest - above)


@gluon.jit
def attend(
    q_tile, k_ring, v_ring, q_full, k_full, k_empty, v_full, v_empty, out_ptr, base, first_row,
    length, low, tiles, window, sink, scale, cap, CAPPED: gl.constexpr, SHARED: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    KEYS: gl.constexpr = k_ring.shape[1]
    WIDTH: gl.constexpr = k_ring.shape[2]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    s_rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    blank = gl.zeros([ROWS, KEYS], gl.float32, s_layout)
    acc = gl.zeros([ROWS, WIDTH], gl.float32, o_layout)
    if CAPPED:
        highest = gl.full([ROWS], 0.0, gl.float32, s_rows)
        total = gl.full([ROWS], 0.0, gl.float32, s_rows) + gl.exp2(sink)
    else:  # the sink is the first score
        highest = gl.full([ROWS], 0.0, gl.float32, s_rows) + sink
        total = gl.full([ROWS], 1.0, gl.float32, s_rows)

    mbarrier.wait(q_full, 0)
    mbarrier.wait(k_full.index(0), 0)
    s = warpgroup_mma(q_tile, k_ring.index(0).permute((1, 0)), blank, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(num_outstanding=0, deps=(s,))
    mbarrier.arrive(k_empty.index(0), count=1)
    weight, highest, shrink = weights_of(
        s, highest, low, first_row, window, scale, cap, CAPPED, SHARED
    )
    if not CAPPED:
        total = total * shrink
    total = total + gl.sum(weight, 1)
    p = gl.convert_layout(weight.to(gl.bfloat16), p_layout)
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
        weight, highest, shrink = weights_of(
            s, highest, low + i * KEYS, first_row, window, scale, cap, CAPPED, SHARED
        )
        if not CAPPED:
            total = total * shrink
        total = total + gl.sum(weight, 1)
        # P is an operand in registers: it lives until the product has read it.
        acc, p = warpgroup_mma_wait(num_outstanding=0, deps=(acc, p))
        mbarrier.arrive(v_empty.index(v_slot), count=1)
        if not CAPPED:
            acc = acc * gl.convert_layout(shrink, o_rows)[:, None]
        p = gl.convert_layout(weight.to(gl.bfloat16), p_layout)
    v_slot = (tiles - 1) % STAGES
    mbarrier.wait(v_full.index(v_slot), (tiles - 1) // STAGES & 1)
    acc = warpgroup_mma(p, v_ring.index(v_slot), acc, is_async=True)
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))

    acc = acc * gl.convert_layout(1.0 / total, o_rows)[:, None]
    m = first_row + gl.arange(0, ROWS, layout=o_rows)
    d = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, o_layout))
    at = (base + m).to(gl.int64)[:, None] * WIDTH + d[None, :]
    gl.store(out_ptr + at, acc.to(gl.bfloat16), mask=(m < length)[:, None])


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit
def window_attention_kernel(
    q_desc, k_desc, v_desc, sink_ptr, out_ptr, heads, all_heads, share, length, window, section,
    scale, cap, CAPPED: gl.constexpr, SHARED: gl.constexpr, STAGES: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    KEYS: gl.constexpr = k_desc.block_type.shape[0]
    WIDTH: gl.constexpr = k_desc.block_type.shape[1]
    # The heads of a section run side by side, so that the keys of their windows stay in L2.
    blocks = gl.cdiv(length, 2 * ROWS)
    first_head = gl.program_id(0) // (blocks * section) * section
    together = gl.minimum(section, all_heads - first_head)
    place = gl.program_id(0) - first_head * blocks
    head = first_head + place % together
    first_row = (blocks - 1 - place // together) * 2 * ROWS  # the first blocks see fewer keys
    kv_head = head // heads * (heads // share) + head % heads // share
    low = gl.maximum(first_row - window + 1, 0) // KEYS * KEYS
    tiles = gl.cdiv(gl.minimum(first_row + 2 * ROWS, length) - low, KEYS)
    sink = gl.load(sink_ptr + head % heads).to(gl.float32) * 1.4426950408889634

    q_tiles = gl.allocate_shared_memory(q_desc.dtype, [2, ROWS, WIDTH], q_desc.layout)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES, KEYS, WIDTH], k_desc.layout)
    v_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES, KEYS, WIDTH], v_desc.layout)
    q_full = barriers(2, 1)
    k_full = barriers(STAGES, 1)
    k_empty = barriers(STAGES, 2)  # both groups have read it
    v_full = barriers(STAGES, 1)
    v_empty = barriers(STAGES, 2)
    fence_async_shared()
    base = head * length
    gl.warp_specialize(
        [
            (
                attend,
                (
                    q_tiles.index(0), k_ring, v_ring, q_full.index(0), k_full, k_empty, v_full,
                    v_empty, out_ptr, base, first_row, length, low, tiles, window, sink, scale, cap,
                    CAPPED, SHARED, STAGES,
                ),
            ),
            (
                attend,
                (
                    q_tiles.index(1), k_ring, v_ring, q_full.index(1), k_full, k_empty, v_full,
                    v_empty, out_ptr, base, first_row + ROWS, length, low, tiles, window, sink,
                    scale, cap, CAPPED, SHARED, STAGES,
                ),
            ),
            (
                load_tiles,
                (
                    q_desc, k_desc, v_desc, q_tiles, k_ring, v_ring, q_full, k_full, k_empty,
                    v_full, v_empty, base + first_row, kv_head * length + low, tiles, STAGES,
                ),
            ),
        ],
        worker_num_warps=[4, 1],
        worker_num_regs=[240, 24],
    )  # fmt: skip


def describe(tensor, box):
    layout = gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
    return TensorDescriptor.from_tensor(tensor.view(-1, tensor.shape[-1]), box, layout)


def window_attention(
    query, key, value, sink, window, cap=None, scale=None, tile=128, stages=2, shared=False
):
    batch, heads, length, width = query.shape
    kv_heads = key.shape[1]
    assert heads % kv_heads == 0 and width in (64, 128)
    assert cap is None or 0 < cap <= 60  # exp(cap) times the keys has to fit float32
    scale = width**-0.5 if scale is None else scale
    out = torch.empty_like(query)
    all_heads, share = batch * heads, heads // kv_heads
    window_attention_kernel[(triton.cdiv(length, 128) * all_heads,)](
        describe(query, [64, width]),
        describe(key, [tile, width]),
        describe(value, [tile, width]),
        sink,
        out,
        heads,
        all_heads,
        share,
        length,
        window,
        min(4 * share, all_heads),
        scale * 1.4426950408889634 if cap is None else scale / cap,
        0.0 if cap is None else cap * 1.4426950408889634,
        CAPPED=cap is not None,
        SHARED=shared,
        STAGES=stages,
        num_warps=4,
    )
    return out
