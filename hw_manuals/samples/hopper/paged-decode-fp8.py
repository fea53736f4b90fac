"""Attention of one new query per sequence over a paged cache of 8-bit floats (decoding), for
Hopper: a warp is a block, and many of them on a multiprocessor keep the memory busy without a
barrier.

query, out [batch][heads][WIDTH] in bf16, contiguous; key_cache, value_cache
[pages][page][kv_heads][WIDTH] in float8_e4m3fn (also as uint8) with one scale each;
table[batch][most pages], lengths[batch] in int32, at least 1. WIDTH 64 or 128; the page is a power
of two.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def decode_part_kernel(
    query_ptr,
    key_desc,
    value_desc,
    table_ptr,
    lengths_ptr,
    scales_ptr,
    sums_ptr,
    logs_ptr,
    kv_heads,
    parts,
    table_stride,
    scale,
    SHARE: tl.constexpr,
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    PART: tl.constexpr,
    WIDTH: tl.constexpr,
):
    # Heads are the fastest index: the keys of neighbouring heads are neighbours in memory.
    head = tl.program_id(0) % kv_heads
    part = tl.program_id(0) // kv_heads
    batch = tl.program_id(1)
    length = tl.load(lengths_ptr + batch)
    first = part * PART
    last = tl.minimum(first + PART, length)
    if first < length:
        row = tl.arange(0, ROWS)
        d = tl.arange(0, WIDTH)
        at = (batch * kv_heads + head) * SHARE + row
        mine = (row < SHARE)[:, None]
        query = tl.load(query_ptr + at[:, None] * WIDTH + d[None, :], mask=mine, other=0.0)
        # fp16 holds every float8_e4m3 exactly, and one instruction converts two.
        query = query.to(tl.float16)
        scale = scale * tl.load(scales_ptr).to(tl.float32)
        highest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
        total = tl.zeros((ROWS,), dtype=tl.float32)
        acc = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
        # The pages of the part are read before the loop: a load by an index that is itself loaded
        # in the loop would not be issued ahead.
        p = tl.arange(0, PART // PAGE)
        ahead = table_ptr + batch * table_stride + first // PAGE + p
        pages = tl.load(ahead, mask=first + p * PAGE < last, other=0)
        for start in range(first, last, TILE):
            page = tl.sum(tl.where(p == (start - first) // PAGE, pages, 0), axis=0)
            place = page * PAGE + start % PAGE
            key = key_desc.load([place, head * WIDTH])
            score = tl.dot(query, key.to(query.dtype).T) * scale
            known = start + tl.arange(0, TILE) < last
            score = tl.where(known[None, :], score, float("-inf"))
            above = tl.maximum(highest, tl.max(score, axis=1))
            weight = tl.exp2(score - above[:, None])
            shrink = tl.exp2(highest - above)
            total = total * shrink + tl.sum(weight, axis=1)
            value = value_desc.load([place, head * WIDTH])
            # Columns in another order, in which a thread's part of the operand is 16 bytes of a
            # row, read together, not byte by byte. The sums are put in order at the end.
            value = value.reshape(TILE, 8, WIDTH // 8).permute(0, 2, 1).reshape(TILE, WIDTH)
            acc = tl.dot(weight.to(query.dtype), value.to(query.dtype), acc * shrink[:, None])
            highest = above
        acc = acc.reshape(ROWS, WIDTH // 8, 8).permute(0, 2, 1).reshape(ROWS, WIDTH)
        acc = acc * (tl.load(scales_ptr + 1).to(tl.float32) / total)[:, None]
        out = at * parts + part
        tl.store(sums_ptr + out[:, None] * WIDTH + d[None, :], acc, mask=mine)
        tl.store(logs_ptr + out, highest + tl.log2(total), mask=row < SHARE)


@triton.jit
def join_kernel(
    sums_ptr,
    logs_ptr,
    lengths_ptr,
    out_ptr,
    heads,
    parts,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0)
    used = tl.cdiv(tl.load(lengths_ptr + row // heads), PART)
    p = tl.arange(0, PARTS)
    d = tl.arange(0, WIDTH)
    logs = tl.load(logs_ptr + row * parts + p, mask=p < used, other=float("-inf"))
    weight = tl.exp2(logs - tl.max(logs, axis=0))
    weight = weight / tl.sum(weight, axis=0)
    at = (row * parts + p)[:, None] * WIDTH + d[None, :]
    sums = tl.load(sums_ptr + at, mask=(p < used)[:, None], other=0.0)
    out = tl.sum(sums * weight[:, None], axis=0)
    tl.store(out_ptr + row * WIDTH + d, out.to(out_ptr.dtype.element_ty))


def paged_decode_fp8(
    query, key_cache, value_cache, table, lengths, scales, part=256, tile=32, stages=3
):
    batch, heads, width = query.shape
    pages, page, kv_heads, _ = key_cache.shape
    tile = min(page, tile)
    assert query.is_contiguous() and heads % kv_heads == 0 and page % tile == 0
    parts = triton.cdiv(table.shape[1] * page, part)
    sums = torch.empty((batch * heads, parts, width), device=query.device, dtype=torch.float32)
    logs = torch.empty((batch * heads, parts), device=query.device, dtype=torch.float32)
    out = torch.empty_like(query)
    flat = (pages * page, kv_heads * width)
    caches = [x.view(torch.float8_e4m3fn).view(flat) for x in (key_cache, value_cache)]
    share = heads // kv_heads
    decode_part_kernel[(parts * kv_heads, batch)](
        query,
        *(TensorDescriptor.from_tensor(x, [tile, width]) for x in caches),
        table,
        lengths,
        scales,
        sums,
        logs,
        kv_heads,
        parts,
        table.stride(0),
        width**-0.5 * 1.4426950408889634,
        SHARE=share,
        ROWS=max(16, triton.next_power_of_2(share)),
        PAGE=page,
        TILE=tile,
        PART=part,
        WIDTH=width,
        num_warps=1,
        num_stages=stages,
    )
    size = triton.next_power_of_2(parts)
    join_kernel[(batch * heads,)](
        sums, logs, lengths, out, heads, parts, PART=part, PARTS=size, WIDTH=width, num_warps=4
    )
    return out
