"""Attention of sequential recommenders (HSTU) in Gluon for compute capability 9.0: SiLU of the
scores in place of softmax. For each row m of a sequence, with n from its first row to m:

    out[m] = silu(gate[m]) / norm * sum of silu(scale * query[m] . key[n] + bias[m - n]) * value[n]

Rows offsets[s] to offsets[s + 1] belong to sequence s. query, key, value, gate and out
[rows][heads][WIDTH] in bf16, contiguous, WIDTH 64 or 128; offsets[sequences + 1] and
targets[sequences] in int32; bias[bias_heads][most distance] in float32 or bf16. The last
`targets[s]` rows of a sequence are candidates, which do not see each other.
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
def tile_start(i, jump_from, jump, KEYS: gl.constexpr):
    """Tiles between the history and a block of candidates are left out: the block sees none."""
    start = i * KEYS
    return gl.where(start < jump_from, start, start + jump)


@gluon.jit
def load_tiles(
    q_desc, k_desc, v_desc, q_tiles, k_ring, v_ring, q_full, k_full, k_empty, v_full, v_empty,
    begin, first_row, column, tiles, jump_from, jump, STAGES: gl.constexpr,
):  # fmt: skip
    for c in gl.static_range(2):
        mbarrier.expect(q_full.index(c), q_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(
            q_desc, [begin + first_row + c * ROWS, column], q_full.index(c), q_tiles.index(c)
        )
    for i in range(tiles):
        slot = i % STAGES
        phase = i // STAGES & 1 ^ 1
        at = [begin + tile_start(i, jump_from, jump, k_desc.block_type.shape[0]), column]
        mbarrier.wait(k_empty.index(slot), phase)
        mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(k_desc, at, k_full.index(slot), k_ring.index(slot))
        mbarrier.wait(v_empty.index(slot), phase)
        mbarrier.expect(v_full.index(slot), v_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(v_desc, at, v_full.index(slot), v_ring.index(slot))


@gluon.jit
def tanh(x):
    """One instruction of the special-function unit; relative error 2^-11, less than bf16 keeps."""
    return gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def silu_weights(
    s, bias, rows, start, first_row, history, scale, BIAS: gl.constexpr, TARGETS: gl.constexpr
):
    half = s * (0.5 * scale) + 0.5 * bias if BIAS else s * (0.5 * scale)
    weight = half + half * tanh(half)  # x * sigmoid(x)
    if start + s.shape[1] > gl.minimum(first_row, history):
        n = start + gl.arange(0, s.shape[1], layout=gl.SliceLayout(0, s.type.layout))
        seen = n[None, :] <= rows[:, None]
        if TARGETS:
            seen = seen & ((n < history)[None, :] | (n[None, :] == rows[:, None]))
        weight = gl.where(seen, weight, 0.0)
    return weight


@gluon.jit
def load_bias(bias_row, bias_length, rows, start, KEYS: gl.constexpr, layout: gl.constexpr):
    n = start + gl.arange(0, KEYS, layout=gl.SliceLayout(0, layout))
    # Rows beyond the end of a sequence are not stored, but must not read beyond the bias.
    distance = gl.minimum(gl.maximum(rows[:, None] - n[None, :], 0), bias_length - 1)
    return gl.load(bias_row + distance).to(gl.float32)


@gluon.jit
def attend(
    q_tile, k_ring, v_ring, q_full, k_full, k_empty, v_full, v_empty, gate_ptr, out_ptr, bias_row,
    bias_length, begin, first_row, length, history, column, stride, tiles, jump_from, jump, scale,
    inverse_norm,
    BIAS: gl.constexpr, GATE: gl.constexpr, TARGETS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    KEYS: gl.constexpr = k_ring.shape[1]
    WIDTH: gl.constexpr = k_ring.shape[2]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    rows = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, s_layout))
    blank = gl.zeros([ROWS, KEYS], gl.float32, s_layout)
    acc = gl.zeros([ROWS, WIDTH], gl.float32, o_layout)

    mbarrier.wait(q_full, 0)
    mbarrier.wait(k_full.index(0), 0)
    start = tile_start(0, jump_from, jump, KEYS)
    bias = blank
    s = warpgroup_mma(q_tile, k_ring.index(0).permute((1, 0)), blank, use_acc=False, is_async=True)
    if BIAS:
        bias = load_bias(bias_row, bias_length, rows, start, KEYS, s_layout)
    s = warpgroup_mma_wait(num_outstanding=0, deps=(s,))
    mbarrier.arrive(k_empty.index(0), count=1)
    p = silu_weights(s, bias, rows, start, first_row, history, scale, BIAS, TARGETS)
    p = gl.convert_layout(p.to(gl.bfloat16), p_layout)
    for i in range(1, tiles):
        slot = i % STAGES
        v_slot = (i - 1) % STAGES
        start = tile_start(i, jump_from, jump, KEYS)
        mbarrier.wait(k_full.index(slot), i // STAGES & 1)
        s = warpgroup_mma(
            q_tile, k_ring.index(slot).permute((1, 0)), blank, use_acc=False, is_async=True
        )
        mbarrier.wait(v_full.index(v_slot), (i - 1) // STAGES & 1)
        acc = warpgroup_mma(p, v_ring.index(v_slot), acc, is_async=True)
        if BIAS:  # while the products run
            bias = load_bias(bias_row, bias_length, rows, start, KEYS, s_layout)
        s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
        mbarrier.arrive(k_empty.index(slot), count=1)
        weight = silu_weights(s, bias, rows, start, first_row, history, scale, BIAS, TARGETS)
        # P is an operand in registers: it lives until the product has read it.
        acc, p = warpgroup_mma_wait(num_outstanding=0, deps=(acc, p))
        mbarrier.arrive(v_empty.index(v_slot), count=1)
        p = gl.convert_layout(weight.to(gl.bfloat16), p_layout)
    v_slot = (tiles - 1) % STAGES
    mbarrier.wait(v_full.index(v_slot), (tiles - 1) // STAGES & 1)
    acc = warpgroup_mma(p, v_ring.index(v_slot), acc, is_async=True)
    acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))

    acc = acc * inverse_norm
    m = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, o_layout))
    d = column + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, o_layout))
    at = (begin + m).to(gl.int64)[:, None] * stride + d[None, :]
    mine = (m < length)[:, None]
    if GATE:
        gate = gl.load(gate_ptr + at, mask=mine, other=0.0).to(gl.float32)
        acc = acc * gate * (0.5 + 0.5 * tanh(0.5 * gate))
    gl.store(out_ptr + at, acc.to(gl.bfloat16), mask=mine)


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit
def silu_attention_kernel(
    q_desc, k_desc, v_desc, gate_ptr, out_ptr, bias_ptr, offsets_ptr, targets_ptr, heads,
    bias_heads, bias_length, scale, inverse_norm,
    BIAS: gl.constexpr, GATE: gl.constexpr, TARGETS: gl.constexpr, STAGES: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    KEYS: gl.constexpr = k_desc.block_type.shape[0]
    WIDTH: gl.constexpr = k_desc.block_type.shape[1]
    head = gl.program_id(0) % heads
    sequence = gl.program_id(0) // heads
    begin = gl.load(offsets_ptr + sequence)
    length = gl.load(offsets_ptr + sequence + 1) - begin
    # The last blocks have the most keys and begin first; the grid fits the longest sequence.
    first_row = (gl.num_programs(1) - 1 - gl.program_id(1)) * 2 * ROWS
    history = length
    if TARGETS:
        history = length - gl.load(targets_ptr + sequence)
    jump_from = gl.minimum(gl.cdiv(history, KEYS) * KEYS, first_row)
    jump = first_row - jump_from
    end = gl.minimum(first_row + 2 * ROWS, length)
    tiles = jump_from // KEYS + gl.cdiv(end - first_row, KEYS)
    bias_row = out_ptr
    if BIAS:
        bias_row = bias_ptr + (sequence * heads + head) % bias_heads * bias_length

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
                        v_empty, gate_ptr, out_ptr, bias_row, bias_length, begin, first_row, length,
                        history, head * WIDTH, heads * WIDTH, tiles, jump_from, jump, scale,
                        inverse_norm, BIAS, GATE, TARGETS, STAGES,
                    ),
                ),
                (
                    attend,
                    (
                        q_tiles.index(1), k_ring, v_ring, q_full.index(1), k_full, k_empty, v_full,
                        v_empty, gate_ptr, out_ptr, bias_row, bias_length, begin,
                        first_row + ROWS, length, history, head * WIDTH, heads * WIDTH, tiles,
                        jump_from, jump, scale, inverse_norm, BIAS, GATE, TARGETS, STAGES,
                    ),
                ),
                (
                    load_tiles,
                    (
                        q_desc, k_desc, v_desc, q_tiles, k_ring, v_ring, q_full, k_full, k_empty,
                        v_full, v_empty, begin, first_row, head * WIDTH, tiles, jump_from, jump,
                        STAGES,
                    ),
                ),
            ],
            worker_num_warps=[4, 1],
            worker_num_regs=[240, 24],
        )  # fmt: skip


def silu_attention(
    query, key, value, offsets, longest, norm, scale=1.0, gate=None, bias=None, targets=None,
    tile=64, stages=4,
):  # fmt: skip
    """`gate` is multiplied in as silu(gate). `longest` is at least the longest sequence."""
    rows, heads, width = query.shape
    out = torch.empty_like(query)

    def describe(tensor, box):
        layout = gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
        return TensorDescriptor.from_tensor(tensor.view(rows, heads * width), box, layout)

    silu_attention_kernel[((len(offsets) - 1) * heads, triton.cdiv(longest, 128))](
        describe(query, [64, width]),
        describe(key, [tile, width]),
        describe(value, [tile, width]),
        out if gate is None else gate,
        out,
        out if bias is None else bias,
        offsets,
        offsets if targets is None else targets,
        heads,
        1 if bias is None else bias.shape[0],
        0 if bias is None else bias.shape[1],
        scale,
        1.0 / norm,
        BIAS=bias is not None,
        GATE=gate is not None,
        TARGETS=targets is not None,
        STAGES=stages,
        num_warps=4,
    )
    return out
