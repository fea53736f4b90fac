"""Multi-head latent attention of one new query per sequence (decoding) for Hopper, in Gluon: all
heads share one cached row, 512 latent values, which are key and value, and 64 with positions.

query[batch][heads][512] (absorbed) and query_rotary[batch][heads][64], cache[batch][places][512]
and cache_rotary[batch][places][64], out[batch][heads][512], all bf16 and contiguous;
lengths[batch] in int32, from 1 to places. batch: a power of two; heads: a multiple of 64.

All tiles of keys of all sequences form one list, of which each slot (a block for each group of 64
heads) takes an equal part. A sequence that is cut leaves sums in bf16 and logarithms, which a
second kernel joins.
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
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@gluon.jit
def exp2(x):
    return gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def mla_kernel(
    q_desc,
    qr_desc,
    c_desc,
    r_desc,
    len_ptr,
    o_ptr,
    part_ptr,
    lse_ptr,
    P: gl.constexpr,
    B: gl.constexpr,
    H: gl.constexpr,
    D: gl.constexpr,
    R: gl.constexpr,
    BH: gl.constexpr,
    BN: gl.constexpr,
    PARTS: gl.constexpr,
    SCALE: gl.constexpr,
):
    GROUPS: gl.constexpr = H // BH
    TILE_BYTES: gl.constexpr = BN * (D + R) * 2
    QUERY_BYTES: gl.constexpr = BH * (D + R) * 2

    # Each group of four warps takes half of the keys for the scores and half of the latent
    # columns for the sums.
    s_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 32, 16]
    )
    o_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 2], instr_shape=[16, 256, 16]
    )
    blocked: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0])
    table: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [8, 1], [1, 0])

    q_smem = gl.allocate_shared_memory(gl.bfloat16, [BH, D], q_desc.layout)
    qr_smem = gl.allocate_shared_memory(gl.bfloat16, [BH, R], qr_desc.layout)
    c_bufs = gl.allocate_shared_memory(gl.bfloat16, [2, BN, D], c_desc.layout)
    r_bufs = gl.allocate_shared_memory(gl.bfloat16, [2, BN, R], r_desc.layout)
    p_smem = gl.allocate_shared_memory(gl.bfloat16, [BH, BN], r_desc.layout)
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    slow_bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for w in gl.static_range(2):
        mbarrier.init(bars.index(w), count=1)
    mbarrier.init(q_bar, count=1)
    mbarrier.init(slow_bar, count=1)

    pid = gl.program_id(0)
    group = pid % GROUPS
    slot = pid // GROUPS
    head0 = group * BH

    # The part of the list of all tiles that belongs to this slot, which each group of heads visits.
    j = gl.arange(0, B, layout=gl.SliceLayout(0, table))
    i = gl.arange(0, B, layout=gl.SliceLayout(1, table))
    lens = gl.load(len_ptr + j)
    lens = gl.minimum(gl.maximum(lens, 1), P)
    tiles = (lens + (BN - 1)) // BN
    upto = j[None, :] <= i[:, None]
    ends = gl.sum(gl.where(upto, tiles[None, :], 0), 1)
    total = gl.sum(tiles, 0)
    pos = slot * total // PARTS
    stop = (slot + 1) * total // PARTS
    b_lo = gl.sum(gl.where(ends <= pos, 1, 0), 0)
    b_last = gl.sum(gl.where(ends < stop, 1, 0), 0)
    some = stop > pos
    b_hi = b_lo + (b_last + 1 - b_lo) * some.to(gl.int32)

    mbarrier.expect(q_bar, QUERY_BYTES, pred=some)
    tma.async_copy_global_to_shared(q_desc, [b_lo * H + head0, 0], q_bar, q_smem, pred=some)
    tma.async_copy_global_to_shared(qr_desc, [b_lo * H + head0, 0], q_bar, qr_smem, pred=some)
    start_lo = gl.sum(gl.where(j < b_lo, tiles, 0), 0)
    row_lo = b_lo * P + (pos - start_lo) * BN
    mbarrier.expect(bars.index(0), TILE_BYTES, pred=some)
    tma.async_copy_global_to_shared(c_desc, [row_lo, 0], bars.index(0), c_bufs.index(0), pred=some)
    tma.async_copy_global_to_shared(r_desc, [row_lo, 0], bars.index(0), r_bufs.index(0), pred=some)

    rs = gl.arange(0, BH, layout=gl.SliceLayout(1, s_layout))
    cs = gl.arange(0, BN, layout=gl.SliceLayout(0, s_layout))
    rq = gl.arange(0, BH, layout=gl.SliceLayout(1, blocked))
    cq = gl.arange(0, D, layout=gl.SliceLayout(0, blocked))
    s_zero = gl.zeros((BH, BN), dtype=gl.float32, layout=s_layout)

    k = 0
    slow_phase = 0
    for b in range(b_lo, b_hi):
        length = gl.load(len_ptr + b)
        length = gl.minimum(gl.maximum(length, 1), P)
        count = (length + (BN - 1)) // BN
        start = gl.sum(gl.where(j < b, tiles, 0), 0)
        t_lo = gl.maximum(pos, start)
        t_hi = gl.minimum(stop, start + count)

        mbarrier.wait(q_bar, (b - b_lo) & 1)
        lsum = gl.zeros((BH, BN), dtype=gl.float32, layout=s_layout)
        acc = warpgroup_mma_init(gl.zeros((BH, D), dtype=gl.float32, layout=o_layout))

        for t in range(t_lo, t_hi):
            buf = k & 1
            mbarrier.wait(bars.index(buf), (k >> 1) & 1)
            s = warpgroup_mma(
                q_smem, c_bufs.index(buf).permute((1, 0)), s_zero, use_acc=False, is_async=True
            )
            s = warpgroup_mma(qr_smem, r_bufs.index(buf).permute((1, 0)), s, is_async=True)
            # The sums of the tile before are done: its buffer takes the next tile, which may be the
            # first of the next sequence.
            acc = warpgroup_mma_wait(num_outstanding=2, deps=(acc,))
            n = t + 1
            same = (n < t_hi).to(gl.int32)
            row = (b + 1 - same) * P + same * (n - start) * BN
            more = n < stop
            other = 1 - buf
            mbarrier.expect(bars.index(other), TILE_BYTES, pred=more)
            tma.async_copy_global_to_shared(
                c_desc, [row, 0], bars.index(other), c_bufs.index(other), pred=more
            )
            tma.async_copy_global_to_shared(
                r_desc, [row, 0], bars.index(other), r_bufs.index(other), pred=more
            )
            s = warpgroup_mma_wait(num_outstanding=0, deps=(s,))
            # No running maximum: its exchange between the groups and the rescaling of 64 x 512
            # sums would stand between the products. Whether it was needed is tested below.
            p = exp2(s * SCALE)
            n0 = (t - start) * BN
            if n0 + BN > length:
                p = gl.where((n0 + cs < length)[None, :], p, 0.0)
            lsum = lsum + p
            p_smem.store(p.to(gl.bfloat16))
            fence_async_shared()
            acc = warpgroup_mma(p_smem, c_bufs.index(buf), acc, is_async=True)
            k = k + 1

        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))
        free = 1 - (k & 1)
        norm = gl.sum(lsum, 1)
        # Between 2^-40 and 2^40; false for NaN.
        fine = (norm > 9.094947017729282e-13) & (norm < 1099511627776.0)
        bad = gl.max(gl.where(fine, 0, 1), 0) > 0
        peak = gl.zeros((BH,), dtype=gl.float32, layout=gl.SliceLayout(1, s_layout))

        if bad:
            # Too far from zero for unshifted exponentials: once more, with a running maximum.
            acc = gl.zeros((BH, D), dtype=gl.float32, layout=o_layout)
            norm = gl.zeros((BH,), dtype=gl.float32, layout=gl.SliceLayout(1, s_layout))
            peak = gl.full(
                (BH,), float("-inf"), dtype=gl.float32, layout=gl.SliceLayout(1, s_layout)
            )
            for u in range(t_lo, t_hi):
                first = (u - start) * BN
                mbarrier.expect(slow_bar, TILE_BYTES)
                tma.async_copy_global_to_shared(
                    c_desc, [b * P + first, 0], slow_bar, c_bufs.index(free)
                )
                tma.async_copy_global_to_shared(
                    r_desc, [b * P + first, 0], slow_bar, r_bufs.index(free)
                )
                mbarrier.wait(slow_bar, slow_phase)
                slow_phase = slow_phase ^ 1
                z = warpgroup_mma(
                    q_smem, c_bufs.index(free).permute((1, 0)), s_zero, use_acc=False, is_async=True
                )
                z = warpgroup_mma(qr_smem, r_bufs.index(free).permute((1, 0)), z, is_async=True)
                z = warpgroup_mma_wait(num_outstanding=0, deps=(z,))
                x = gl.where((first + cs < length)[None, :], z * SCALE, float("-inf"))
                new = gl.maximum(peak, gl.max(x, 1))
                alpha = exp2(peak - new)
                e = exp2(x - new[:, None])
                norm = norm * alpha + gl.sum(e, 1)
                peak = new
                factor = gl.convert_layout(alpha, gl.SliceLayout(1, o_layout))
                p_smem.store(e.to(gl.bfloat16))
                fence_async_shared()
                y = warpgroup_mma(p_smem, c_bufs.index(free), acc * factor[:, None], is_async=True)
                acc = warpgroup_mma_wait(num_outstanding=0, deps=(y,))

        # The queries of the next sequence come while the sums are written.
        following = b + 1 < b_hi
        q_row = (b + 1) * H + head0
        mbarrier.expect(q_bar, QUERY_BYTES, pred=following)
        tma.async_copy_global_to_shared(q_desc, [q_row, 0], q_bar, q_smem, pred=following)
        tma.async_copy_global_to_shared(qr_desc, [q_row, 0], q_bar, qr_smem, pred=following)

        inverse = gl.convert_layout(1.0 / norm, gl.SliceLayout(1, o_layout))
        out = (acc * inverse[:, None]).to(gl.bfloat16)
        stage = c_bufs.index(free)
        stage.store(out)
        lines = stage.load(blocked)
        fence_async_shared()
        if t_hi - t_lo == count:
            o_row = b * H + head0 + rq
            gl.store(o_ptr + o_row[:, None] * D + cq[None, :], lines)
        else:
            first_row = (slot + b) * H + head0
            p_row = first_row + rq
            gl.store(part_ptr + p_row[:, None] * D + cq[None, :], lines)
            gl.store(lse_ptr + first_row + rs, peak + gl.log2(norm))


@triton.jit
def join_kernel(
    len_ptr,
    o_ptr,
    part_ptr,
    lse_ptr,
    P: tl.constexpr,
    B: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    BH: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_UP: tl.constexpr,
):
    b = tl.program_id(0)
    head = tl.program_id(1) * BH + tl.arange(0, BH)
    col = tl.arange(0, D)

    idx = tl.arange(0, B)
    lens = tl.load(len_ptr + idx)
    lens = tl.minimum(tl.maximum(lens, 1), P)
    tiles = (lens + (TILE - 1)) // TILE
    total = tl.sum(tiles, 0)
    start = tl.sum(tl.where(idx < b, tiles, 0), 0)
    end = start + tl.sum(tl.where(idx == b, tiles, 0), 0)

    slot = tl.arange(0, PARTS_UP)
    s_lo = slot * total // PARTS
    s_hi = (slot + 1) * total // PARTS
    hit = (slot < PARTS) & (tl.maximum(s_lo, start) < tl.minimum(s_hi, end))
    hits = tl.sum(hit.to(tl.int32), 0)
    first = tl.min(tl.where(hit, slot, PARTS_UP), 0)
    last = tl.max(tl.where(hit, slot, -1), 0)

    if hits > 1:
        peak = tl.full([BH], float("-inf"), dtype=tl.float32)
        norm = tl.zeros([BH], dtype=tl.float32)
        acc = tl.zeros([BH, D], dtype=tl.float32)
        for s in range(first, last + 1):
            full = (s * total // PARTS) < ((s + 1) * total // PARTS)
            live = full & (head < H)
            prow = (s + b) * H + head
            lse = tl.load(lse_ptr + prow, mask=live, other=float("-inf"))
            x = tl.load(part_ptr + prow[:, None] * D + col[None, :], mask=live[:, None], other=0.0)
            new = tl.maximum(peak, lse)
            alpha = tl.exp2(peak - new)
            weight = tl.exp2(lse - new)
            norm = norm * alpha + weight
            acc = acc * alpha[:, None] + x.to(tl.float32) * weight[:, None]
            peak = new
        out = acc * (1.0 / norm)[:, None]
        row = b * H + head
        tl.store(o_ptr + row[:, None] * D + col[None, :], out.to(tl.bfloat16))


def descriptor(tensor, box):
    layout = gl.NVMMASharedLayout.get_default_for(box, gl.bfloat16)
    return TensorDescriptor.from_tensor(tensor, box, layout)


def mla_decode(query, query_rotary, cache, cache_rotary, lengths, scale=None):
    batch, heads, latent = query.shape
    places, rotary = cache.shape[1], cache_rotary.shape[2]
    assert (latent, rotary) == (512, 64) and heads % 64 == 0
    assert batch & (batch - 1) == 0  # the lengths of all sequences are one vector
    device = query.device
    slots = max(1, torch.cuda.get_device_properties(device).multi_processor_count // (heads // 64))
    scale = (latent + rotary) ** -0.5 if scale is None else scale
    out = torch.empty_like(query)
    part = torch.empty((slots + batch, heads, latent), device=device, dtype=torch.bfloat16)
    log = torch.empty((slots + batch, heads), device=device, dtype=torch.float32)
    mla_kernel[(slots * (heads // 64),)](
        descriptor(query.view(batch * heads, latent), [64, latent]),
        descriptor(query_rotary.view(batch * heads, rotary), [64, rotary]),
        descriptor(cache.view(batch * places, latent), [64, latent]),
        descriptor(cache_rotary.view(batch * places, rotary), [64, rotary]),
        lengths,
        out,
        part,
        log,
        P=places,
        B=batch,
        H=heads,
        D=latent,
        R=rotary,
        BH=64,
        BN=64,
        PARTS=slots,
        SCALE=scale * 1.4426950408889634,
        num_warps=8,
    )
    join_kernel[(batch, heads // 16)](
        lengths,
        out,
        part,
        log,
        P=places,
        B=batch,
        H=heads,
        D=latent,
        BH=16,
        TILE=64,
        PARTS=slots,
        PARTS_UP=triton.next_power_of_2(slots),
        num_warps=4,
    )
    return out
