"""Multi-head latent attention of one new query per sequence (decoding) for Hopper, in Gluon: all
heads share one cached row, 512 latent values, which are key and value, and 64 with positions.

query[batch][heads][512] (absorbed) and query_rotary[batch][heads][64], cache[batch][places][512]
and cache_rotary[batch][places][64], out[batch][heads][512], all bf16 and contiguous;
lengths[batch] in int32, from 1 to places. heads: a multiple of 64.

All tiles of keys of all sequences form one list, of which each pair of blocks takes an equal part.
A sequence that is cut leaves float32 sums and logarithms, which a second kernel joins.
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

# Triton 3.6 and 3.7 name it differently.
block_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
LATENT = gl.constexpr(512)
ROTARY = gl.constexpr(64)
ROWS = gl.constexpr(64)  # heads of a block
KEYS = gl.constexpr(64)  # keys of a tile


@gluon.jit
def load_keys(c_desc, r_desc, c_ring, r_ring, full, step, row):
    slot = step % 2
    mbarrier.expect(full.index(slot), c_desc.block_type.nbytes + r_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(c_desc, [row, 0], full.index(slot), c_ring.index(slot))
    tma.async_copy_global_to_shared(r_desc, [row, 0], full.index(slot), r_ring.index(slot))


@gluon.jit
def mla_kernel(
    q_desc,
    qr_desc,
    c_desc,
    r_desc,
    lengths_ptr,
    out_ptr,
    part_ptr,
    log_ptr,
    batch,
    heads,
    places,
    shares,
    scale,
    BATCH: gl.constexpr,
    num_warps: gl.constexpr,
):
    group = gl.program_id(0)
    share = gl.program_id(1)
    # Which sequences this share meets: tiles of all sequences before and up to each.
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
    b = gl.arange(0, BATCH, layout=flat)
    lengths = gl.load(lengths_ptr + b, mask=b < batch, other=0)
    tiles = (lengths + KEYS - 1) // KEYS
    ends = gl.associative_scan(tiles, 0, add)
    total = gl.sum(tiles, 0)
    each = (total + shares - 1) // shares

    q_tile = gl.allocate_shared_memory(q_desc.dtype, [ROWS, LATENT], q_desc.layout)
    qr_tile = gl.allocate_shared_memory(q_desc.dtype, [ROWS, ROTARY], qr_desc.layout)
    c_ring = gl.allocate_shared_memory(c_desc.dtype, [2, KEYS, LATENT], c_desc.layout)
    r_ring = gl.allocate_shared_memory(c_desc.dtype, [2, KEYS, ROTARY], r_desc.layout)
    p_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, KEYS], gl.bfloat16)
    p_tile = gl.allocate_shared_memory(gl.bfloat16, [ROWS, KEYS], p_layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full.index(0), count=1)
    mbarrier.init(full.index(1), count=1)
    mbarrier.init(q_full, count=1)
    fence_async_shared()

    # Both groups of warps take all 64 heads: of the scores half of the keys each, of the sums half
    # of the latent values.
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, KEYS // 2, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, LATENT // 2, 16])
    s_rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    o_rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    key = gl.arange(0, KEYS, layout=gl.SliceLayout(0, s_layout))

    tile = share * each
    last = gl.minimum(tile + each, total)
    step = 0
    segment = 0
    while tile < last:
        sequence = gl.sum((ends <= tile).to(gl.int32), 0)
        end = gl.sum(gl.where(b == sequence, ends, 0), 0)
        begin = end - gl.sum(gl.where(b == sequence, tiles, 0), 0)
        length = gl.load(lengths_ptr + sequence)
        stop = gl.minimum(last, end)
        first = tile - begin
        count = stop - tile
        row = sequence * heads + group * ROWS
        block_barrier()  # all have left the last segment: its tiles may be overwritten
        mbarrier.expect(q_full, q_desc.block_type.nbytes + qr_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(q_desc, [row, 0], q_full, q_tile)
        tma.async_copy_global_to_shared(qr_desc, [row, 0], q_full, qr_tile)
        place = sequence * places + first * KEYS
        load_keys(c_desc, r_desc, c_ring, r_ring, full, step, place)
        mbarrier.wait(q_full, segment & 1)

        highest = gl.full([ROWS], -1e30, gl.float32, s_rows)
        sums = gl.zeros([ROWS, KEYS], gl.float32, s_layout)  # added up along the keys at the end
        acc = gl.zeros([ROWS, LATENT], gl.float32, o_layout)
        for i in range(count):
            slot = step % 2
            block_barrier()  # both groups have read the tile before: the next takes its place
            if i + 1 < count:
                load_keys(c_desc, r_desc, c_ring, r_ring, full, step + 1, place + (i + 1) * KEYS)
            mbarrier.wait(full.index(slot), step // 2 & 1)
            c_tile = c_ring.index(slot)
            s = gl.zeros([ROWS, KEYS], gl.float32, s_layout)
            s = warpgroup_mma(q_tile, c_tile.permute((1, 0)), s, use_acc=False, is_async=True)
            s = warpgroup_mma(qr_tile, r_ring.index(slot).permute((1, 0)), s, is_async=True)
            s = warpgroup_mma_wait(num_outstanding=0, deps=(s,))
            known = (first + i) * KEYS + key < length
            s = gl.where(known[None, :], s * scale, float("-inf"))
            above = gl.maximum(highest, gl.max(s, 1))
            p = gl.exp2(s - above[:, None])
            p_tile.store(p.to(gl.bfloat16))
            fence_async_shared()
            shrink = gl.exp2(highest - above)
            sums = sums * shrink[:, None] + p
            highest = above
            acc = acc * gl.convert_layout(shrink, o_rows)[:, None]
            acc = warpgroup_mma(p_tile, c_tile, acc, is_async=True)
            acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
            step += 1

        weight = gl.sum(sums, 1)
        acc = acc * gl.convert_layout(1.0 / weight, o_rows)[:, None]
        h = gl.arange(0, ROWS, layout=o_rows)
        d = gl.arange(0, LATENT, layout=gl.SliceLayout(0, o_layout))
        if (tile == begin) & (stop == end):
            gl.store(out_ptr + (row + h)[:, None] * LATENT + d[None, :], acc.to(gl.bfloat16))
        else:
            at = (share + sequence) * heads + group * ROWS  # a share meets a sequence once
            gl.store(part_ptr + (at + h)[:, None] * LATENT + d[None, :], acc)
            log = highest + gl.log2(weight)
            gl.store(log_ptr + at + gl.arange(0, ROWS, layout=s_rows), log)
        tile = stop
        segment += 1


@gluon.jit
def add(a, b):
    return a + b


@triton.jit
def join_kernel(
    lengths_ptr,
    out_ptr,
    part_ptr,
    log_ptr,
    batch,
    heads,
    shares,
    BATCH: tl.constexpr,
    TILE: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    sequence = tl.program_id(1)
    h = tl.program_id(0) * HEADS + tl.arange(0, HEADS)
    d = tl.arange(0, WIDTH)
    b = tl.arange(0, BATCH)
    tiles = tl.cdiv(tl.load(lengths_ptr + b, mask=b < batch, other=0), TILE)
    total = tl.sum(tiles, 0)
    each = tl.cdiv(total, shares)
    begin = tl.sum(tl.where(b < sequence, tiles, 0), 0)
    end = begin + tl.sum(tl.where(b == sequence, tiles, 0), 0)
    first = begin // each
    last = (end - 1) // each
    if last > first:
        highest = tl.full((HEADS,), float("-inf"), dtype=tl.float32)
        total_weight = tl.zeros((HEADS,), dtype=tl.float32)
        acc = tl.zeros((HEADS, WIDTH), dtype=tl.float32)
        for share in range(first, last + 1):
            at = (share + sequence) * heads + h
            log = tl.load(log_ptr + at)
            sums = tl.load(part_ptr + at[:, None] * WIDTH + d[None, :])
            above = tl.maximum(highest, log)
            shrink = tl.exp2(highest - above)
            weight = tl.exp2(log - above)
            total_weight = total_weight * shrink + weight
            acc = acc * shrink[:, None] + sums * weight[:, None]
            highest = above
        acc = acc / total_weight[:, None]
        at = (sequence * heads + h)[:, None] * WIDTH + d[None, :]
        tl.store(out_ptr + at, acc.to(out_ptr.dtype.element_ty))


def descriptor(tensor, box):
    layout = gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
    return TensorDescriptor.from_tensor(tensor, box, layout)


def mla_decode(query, query_rotary, cache, cache_rotary, lengths, scale=None):
    batch, heads, latent = query.shape
    places, rotary = cache.shape[1], cache_rotary.shape[2]
    assert (latent, rotary) == (512, 64) and heads % 64 == 0
    device = query.device
    units = torch.cuda.get_device_properties(device).multi_processor_count
    groups = heads // 64
    shares = max(1, units // groups)
    out = torch.empty_like(query)
    part = torch.empty((shares + batch, heads, latent), device=device, dtype=torch.float32)
    log = torch.empty((shares + batch, heads), device=device, dtype=torch.float32)
    size = max(32, triton.next_power_of_2(batch))
    scale = (latent + rotary) ** -0.5 if scale is None else scale
    mla_kernel[(groups, shares)](
        descriptor(query.view(batch * heads, latent), [64, latent]),
        descriptor(query_rotary.view(batch * heads, rotary), [64, rotary]),
        descriptor(cache.view(batch * places, latent), [64, latent]),
        descriptor(cache_rotary.view(batch * places, rotary), [64, rotary]),
        lengths,
        out,
        part,
        log,
        batch,
        heads,
        places,
        shares,
        scale * 1.4426950408889634,
        BATCH=size,
        num_warps=8,
    )
    join_kernel[(heads // 8, batch)](
        lengths, out, part, log, batch, heads, shares, BATCH=size, TILE=64, HEADS=8, WIDTH=latent
    )
    return out
