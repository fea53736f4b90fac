"""Gradients of attention in Gluon for compute capability 9.0: full or causal, grouped heads; two
kernels without atomics, each with a warp that loads and two groups of four that multiply.

query, out, upstream, dquery [batch][heads][queries][WIDTH], key, value, dkey, dvalue
[batch][kv_heads][keys][WIDTH] in bf16, contiguous, WIDTH 64 or 128; lse[batch][heads][queries] in
float32: the natural logarithm of the sum of exp(scale * query . key), from the forward pass. The
causal mask is aligned at the end: query m sees the keys up to m + keys - queries.
"""

import torch
import triton
import triton.language as tl
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

ROWS = gl.constexpr(64)  # of a group of warps


@triton.jit
def row_sums_kernel(
    out_ptr, upstream_ptr, lse_ptr, sums_ptr, logs_ptr, rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sums = out . upstream of each row; logs = lse in base 2, infinite where a row sees no key."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = row[:, None].to(tl.int64) * WIDTH + tl.arange(0, WIDTH)[None, :]
    mine = row < rows
    out = tl.load(out_ptr + at, mask=mine[:, None], other=0.0).to(tl.float32)
    upstream = tl.load(upstream_ptr + at, mask=mine[:, None], other=0.0).to(tl.float32)
    lse = tl.load(lse_ptr + row, mask=mine, other=0.0)
    tl.store(sums_ptr + row, tl.sum(out * upstream, axis=1), mask=mine)
    logs = tl.where(lse > -1e29, lse * 1.4426950408889634, float("inf"))
    tl.store(logs_ptr + row, logs, mask=mine)


@gluon.jit
def row_of(i, tiles, first, per_head, TILE: gl.constexpr):
    """The row at which tile i begins, where each head has `tiles` from tile `first` on."""
    return i // tiles * per_head + (first + i % tiles) * TILE


@gluon.jit
def load_tiles(
    own_a, own_b, a_desc, b_desc, own, a_ring, b_ring, own_full, full, empty,
    own_row, base, tiles, first, per_head, steps, STAGES: gl.constexpr,
):  # fmt: skip
    """Two tiles for each group, which stay, then pairs of tiles that go by."""
    TILE: gl.constexpr = a_desc.block_type.shape[0]
    for c in gl.static_range(2):
        mbarrier.expect(own_full.index(c), 2 * own_a.block_type.nbytes)
        row = own_row + c * ROWS
        tma.async_copy_global_to_shared(own_a, [row, 0], own_full.index(c), own.index(2 * c))
        tma.async_copy_global_to_shared(own_b, [row, 0], own_full.index(c), own.index(2 * c + 1))
    for i in range(steps):
        slot = i % STAGES
        row = base + row_of(i, tiles, first, per_head, TILE)
        mbarrier.wait(empty.index(slot), i // STAGES & 1 ^ 1)
        mbarrier.expect(full.index(slot), 2 * a_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(a_desc, [row, 0], full.index(slot), a_ring.index(slot))
        tma.async_copy_global_to_shared(b_desc, [row, 0], full.index(slot), b_ring.index(slot))


@gluon.jit
def sum_keys_values(
    key, value, q_ring, u_ring, own_full, full, empty, logs_ptr, sums_ptr, dkey_ptr, dvalue_ptr,
    base, tiles, first, per_head, steps, out_base, first_key, keys, queries, scale, scale_log2,
    CAUSAL: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Scores are transposed, keys by queries, so that they are the left operand of both sums."""
    TILE: gl.constexpr = q_ring.shape[1]
    WIDTH: gl.constexpr = q_ring.shape[2]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    columns: gl.constexpr = gl.SliceLayout(0, s_layout)
    n = first_key + gl.arange(0, ROWS, layout=gl.SliceLayout(1, s_layout))
    blank = gl.zeros([ROWS, TILE], gl.float32, s_layout)
    dkey = gl.zeros([ROWS, WIDTH], gl.float32, o_layout)
    dvalue = gl.zeros([ROWS, WIDTH], gl.float32, o_layout)
    mbarrier.wait(own_full, 0)
    for i in range(steps):
        slot = i % STAGES
        q = q_ring.index(slot)
        u = u_ring.index(slot)
        mbarrier.wait(full.index(slot), i // STAGES & 1)
        s = warpgroup_mma(key, q.permute((1, 0)), blank, use_acc=False, is_async=True)
        dweight = warpgroup_mma(value, u.permute((1, 0)), blank, use_acc=False, is_async=True)
        start = (first + i % tiles) * TILE
        m = start + gl.arange(0, TILE, layout=columns)
        row = base + i // tiles * per_head + gl.minimum(m, queries - 1)
        logs = gl.load(logs_ptr + row)
        s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
        weight = gl.exp2(s * scale_log2 - logs[None, :])
        ragged = start + TILE > queries
        if CAUSAL:
            if ragged | (start + keys - queries < first_key + ROWS - 1):
                seen = n[:, None] <= m[None, :] + (keys - queries)
                weight = gl.where(seen & (m < queries)[None, :], weight, 0.0)
        else:
            if ragged:
                weight = gl.where((m < queries)[None, :], weight, 0.0)
        p = gl.convert_layout(weight.to(gl.bfloat16), p_layout)
        dvalue = warpgroup_mma(p, u, dvalue, is_async=True)
        sums = gl.load(sums_ptr + row)
        dweight = warpgroup_mma_wait(num_outstanding=1, deps=(dweight,))
        dscore = weight * (dweight - sums[None, :])
        ds = gl.convert_layout(dscore.to(gl.bfloat16), p_layout)
        dkey = warpgroup_mma(ds, q, dkey, is_async=True)
        dkey, dvalue, p, ds = warpgroup_mma_wait(num_outstanding=0, deps=(dkey, dvalue, p, ds))
        mbarrier.arrive(empty.index(slot), count=1)
    n = first_key + gl.arange(0, ROWS, layout=gl.SliceLayout(1, o_layout))
    d = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, o_layout))
    at = (out_base + n).to(gl.int64)[:, None] * WIDTH + d[None, :]
    mine = (n < keys)[:, None]
    gl.store(dkey_ptr + at, (dkey * scale).to(gl.bfloat16), mask=mine)
    gl.store(dvalue_ptr + at, dvalue.to(gl.bfloat16), mask=mine)


@gluon.jit
def sum_queries(
    query, upstream, k_ring, v_ring, own_full, full, empty, logs_ptr, sums_ptr, dquery_ptr,
    base, first_row, queries, keys, steps, scale, scale_log2,
    CAUSAL: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    TILE: gl.constexpr = k_ring.shape[1]
    WIDTH: gl.constexpr = k_ring.shape[2]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    rows = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, s_layout))
    row = base + gl.minimum(rows, queries - 1)
    logs = gl.load(logs_ptr + row)
    sums = gl.load(sums_ptr + row)
    last_key = gl.minimum(rows + (keys - queries), keys - 1) if CAUSAL else rows * 0 + (keys - 1)
    free = gl.minimum(first_row + keys - queries + 1, keys) if CAUSAL else keys
    blank = gl.zeros([ROWS, TILE], gl.float32, s_layout)
    dquery = gl.zeros([ROWS, WIDTH], gl.float32, o_layout)
    mbarrier.wait(own_full, 0)
    for i in range(steps):
        slot = i % STAGES
        k = k_ring.index(slot)
        mbarrier.wait(full.index(slot), i // STAGES & 1)
        s = warpgroup_mma(query, k.permute((1, 0)), blank, use_acc=False, is_async=True)
        v = v_ring.index(slot).permute((1, 0))
        dweight = warpgroup_mma(upstream, v, blank, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(num_outstanding=1, deps=(s,))
        weight = gl.exp2(s * scale_log2 - logs[:, None])
        if i * TILE + TILE > free:
            n = i * TILE + gl.arange(0, TILE, layout=gl.SliceLayout(0, s_layout))
            weight = gl.where(n[None, :] <= last_key[:, None], weight, 0.0)
        dweight = warpgroup_mma_wait(num_outstanding=0, deps=(dweight,))
        dscore = weight * (dweight - sums[:, None])
        ds = gl.convert_layout(dscore.to(gl.bfloat16), p_layout)
        dquery = warpgroup_mma(ds, k, dquery, is_async=True)
        dquery, ds = warpgroup_mma_wait(num_outstanding=0, deps=(dquery, ds))
        mbarrier.arrive(empty.index(slot), count=1)
    m = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, o_layout))
    d = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, o_layout))
    at = (base + m).to(gl.int64)[:, None] * WIDTH + d[None, :]
    gl.store(dquery_ptr + at, (dquery * scale).to(gl.bfloat16), mask=(m < queries)[:, None])


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(made.index(i), count=ARRIVALS)
    return made


@gluon.jit
def key_value_kernel(
    k_desc, v_desc, q_desc, u_desc, logs_ptr, sums_ptr, dkey_ptr, dvalue_ptr, share, queries, keys,
    scale, scale_log2, CAUSAL: gl.constexpr, STAGES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """A block of keys stays; the queries of all heads that share it go by."""
    TILE: gl.constexpr = q_desc.block_type.shape[0]
    WIDTH: gl.constexpr = q_desc.block_type.shape[1]
    kv_head = gl.program_id(0)
    first_key = gl.program_id(1) * 2 * ROWS
    first = gl.program_id(1) * 0
    if CAUSAL:
        first = gl.maximum(first_key - (keys - queries), 0) // TILE
    tiles = gl.maximum(gl.cdiv(queries, TILE) - first, 0)
    steps = tiles * share
    own = gl.allocate_shared_memory(k_desc.dtype, [4, ROWS, WIDTH], k_desc.layout)
    q_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES, TILE, WIDTH], q_desc.layout)
    u_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES, TILE, WIDTH], u_desc.layout)
    own_full = barriers(2, 1)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, 2)
    fence_async_shared()
    base = kv_head * share * queries
    gl.warp_specialize(
        [
            (
                sum_keys_values,
                (
                    own.index(0), own.index(1), q_ring, u_ring, own_full.index(0), full, empty,
                    logs_ptr, sums_ptr, dkey_ptr, dvalue_ptr, base, tiles, first, queries, steps,
                    kv_head * keys, first_key, keys, queries, scale, scale_log2, CAUSAL, STAGES,
                ),
            ),
            (
                sum_keys_values,
                (
                    own.index(2), own.index(3), q_ring, u_ring, own_full.index(1), full, empty,
                    logs_ptr, sums_ptr, dkey_ptr, dvalue_ptr, base, tiles, first, queries, steps,
                    kv_head * keys, first_key + ROWS, keys, queries, scale, scale_log2, CAUSAL,
                    STAGES,
                ),
            ),
            (
                load_tiles,
                (
                    k_desc, v_desc, q_desc, u_desc, own, q_ring, u_ring, own_full, full, empty,
                    kv_head * keys + first_key, base, tiles, first, queries, steps, STAGES,
                ),
            ),
        ],
        worker_num_warps=[4, 1],
        worker_num_regs=[240, 24],
    )  # fmt: skip


@gluon.jit
def query_kernel(
    q_desc, u_desc, k_desc, v_desc, logs_ptr, sums_ptr, dquery_ptr, heads, share, queries, keys,
    scale, scale_log2, CAUSAL: gl.constexpr, STAGES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """A block of queries stays; keys and values go by."""
    TILE: gl.constexpr = k_desc.block_type.shape[0]
    WIDTH: gl.constexpr = k_desc.block_type.shape[1]
    head = gl.program_id(0)
    first_row = (gl.num_programs(1) - 1 - gl.program_id(1)) * 2 * ROWS  # with most keys first
    kv_head = head // heads * (heads // share) + head % heads // share
    end = keys
    if CAUSAL:
        end = gl.minimum(gl.maximum(first_row + 2 * ROWS + keys - queries, 0), keys)
    steps = gl.cdiv(end, TILE)
    own = gl.allocate_shared_memory(k_desc.dtype, [4, ROWS, WIDTH], q_desc.layout)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES, TILE, WIDTH], k_desc.layout)
    v_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES, TILE, WIDTH], v_desc.layout)
    own_full = barriers(2, 1)
    full = barriers(STAGES, 1)
    empty = barriers(STAGES, 2)
    fence_async_shared()
    base = head * queries
    gl.warp_specialize(
        [
            (
                sum_queries,
                (
                    own.index(0), own.index(1), k_ring, v_ring, own_full.index(0), full, empty,
                    logs_ptr, sums_ptr, dquery_ptr, base, first_row, queries, keys, steps, scale,
                    scale_log2, CAUSAL, STAGES,
                ),
            ),
            (
                sum_queries,
                (
                    own.index(2), own.index(3), k_ring, v_ring, own_full.index(1), full, empty,
                    logs_ptr, sums_ptr, dquery_ptr, base, first_row + ROWS, queries, keys, steps,
                    scale, scale_log2, CAUSAL, STAGES,
                ),
            ),
            (
                load_tiles,
                (
                    q_desc, u_desc, k_desc, v_desc, own, k_ring, v_ring, own_full, full, empty,
                    base + first_row, kv_head * keys, gl.maximum(steps, 1), 0, 0, steps, STAGES,
                ),
            ),
        ],
        worker_num_warps=[4, 1],
        worker_num_regs=[240, 24],
    )  # fmt: skip


def describe(tensor, rows):
    box = [rows, tensor.shape[-1]]
    layout = gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
    return TensorDescriptor.from_tensor(tensor.view(-1, tensor.shape[-1]), box, layout)


def attention_backward(
    query, key, value, out, lse, upstream, causal=False, scale=None, stages=2, tile=64
):
    """Returns the gradients of query, key and value."""
    batch, heads, queries, width = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    share = heads // kv_heads
    scale = width**-0.5 if scale is None else scale
    assert heads % kv_heads == 0 and width in (64, 128)
    dquery, dkey, dvalue = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    sums, logs = torch.empty_like(lse), torch.empty_like(lse)
    rows = batch * heads * queries
    row_sums_kernel[(triton.cdiv(rows, 32),)](
        out, upstream, lse, sums, logs, rows, WIDTH=width, BLOCK=32, num_warps=4
    )
    key_value_kernel[(batch * kv_heads, triton.cdiv(keys, 128))](
        describe(key, 64),
        describe(value, 64),
        describe(query, 64),
        describe(upstream, 64),
        logs,
        sums,
        dkey,
        dvalue,
        share,
        queries,
        keys,
        scale,
        scale * 1.4426950408889634,
        CAUSAL=causal,
        STAGES=stages,
        num_warps=4,
    )
    query_kernel[(batch * heads, triton.cdiv(queries, 128))](
        describe(query, 64),
        describe(upstream, 64),
        describe(key, tile),
        describe(value, tile),
        logs,
        sums,
        dquery,
        heads,
        share,
        queries,
        keys,
        scale,
        scale * 1.4426950408889634,
        CAUSAL=causal,
        STAGES=stages,
        num_warps=4,
    )
    return dquery, dkey, dvalue
