"""Multi-head latent attention of one new query per sequence (decoding), in the absorbed form, over
a paged cache: a key is 512 latent values and 64 with positions, and the latent 512 are the value.

query[batch][heads][LATENT + ROPE]: the latent part is already multiplied by the up-projection of
the keys. cache[pages][PAGE][LATENT + ROPE]. table[batch][most pages] and lengths[batch] in int32.
Query and cache are contiguous; LATENT is a power of two from 64, ROPE one from 16.
The result out[batch][heads][LATENT] still has to be multiplied by the up-projection of the values.
"""

import torch
import triton
import triton.language as tl

JOINED = 64  # columns that a program of the second kernel joins


@triton.jit
def mla_part_kernel(
    query_ptr,
    cache_ptr,
    table_ptr,
    lengths_ptr,
    sums_ptr,
    logs_ptr,
    heads,
    table_stride,
    scale,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    ROWS: tl.constexpr,
):
    WIDTH: tl.constexpr = LATENT + ROPE
    batch, group, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    parts = tl.num_programs(2)
    length = tl.load(lengths_ptr + batch)
    each = tl.cdiv(tl.cdiv(length, KEYS), parts) * KEYS
    first = part * each
    last = tl.minimum(first + each, length)
    head = group * ROWS + tl.arange(0, ROWS)
    at = batch * heads + head
    mine = (head < heads)[:, None]
    d = tl.arange(0, LATENT)
    r = LATENT + tl.arange(0, ROPE)
    latent_q = tl.load(query_ptr + at[:, None] * WIDTH + d[None, :], mask=mine, other=0.0)
    rope_q = tl.load(query_ptr + at[:, None] * WIDTH + r[None, :], mask=mine, other=0.0)
    highest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    acc = tl.zeros((ROWS, LATENT), dtype=tl.float32)
    for start in range(first, last, KEYS):
        # KEYS divide a page, so a step has one page: its address is a scalar, not one a row.
        page = tl.load(table_ptr + batch * table_stride + start // PAGE)
        rows = cache_ptr + (page.to(tl.int64) * PAGE + start % PAGE) * WIDTH
        row = tl.arange(0, KEYS)[:, None] * WIDTH
        known = start + tl.arange(0, KEYS) < last
        # One load serves twice: as keys here and as values below.
        latent = tl.load(rows + row + d[None, :], mask=known[:, None], other=0.0)
        rope = tl.load(rows + row + r[None, :], mask=known[:, None], other=0.0)
        score = tl.dot(rope_q, rope.T)
        score = tl.dot(latent_q, latent.T, score) * scale
        score = tl.where(known[None, :], score, float("-inf"))
        above = tl.maximum(highest, tl.max(score, axis=1))
        weight = tl.exp2(score - above[:, None])
        shrink = tl.exp2(highest - above)
        total = total * shrink + tl.sum(weight, axis=1)
        acc = tl.dot(weight.to(latent.dtype), latent, acc * shrink[:, None])
        highest = above
    # A part without keys has total 0: its logarithm is minus infinity, its sums count nothing.
    inverse = tl.where(total > 0, 1.0 / total, 0.0)
    out = at.to(tl.int64) * parts + part
    tl.store(sums_ptr + out[:, None] * LATENT + d[None, :], acc * inverse[:, None], mask=mine)
    tl.store(logs_ptr + out, highest + tl.log2(total), mask=head < heads)


@triton.jit
def mla_join_kernel(
    sums_ptr,
    logs_ptr,
    out_ptr,
    parts,
    PARTS: tl.constexpr,
    LATENT: tl.constexpr,
    WIDTH: tl.constexpr,  # columns a program: hundreds of parts still fit in its registers
):
    row = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, PARTS)
    d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    logs = tl.load(logs_ptr + row * parts + p, mask=p < parts, other=float("-inf"))
    weight = tl.exp2(logs - tl.max(logs, axis=0))
    weight = weight / tl.sum(weight, axis=0)
    at = (row * parts + p)[:, None] * LATENT + d[None, :]
    sums = tl.load(sums_ptr + at, mask=(p < parts)[:, None], other=0.0)
    out = tl.sum(sums * weight[:, None], axis=0)
    tl.store(out_ptr + row * LATENT + d, out.to(out_ptr.dtype.element_ty))


def mla_decode(query, cache, table, lengths, scale, latent=512, rows=32, keys=32, parts=None):
    """`scale` is that of the unabsorbed heads, such as 192**-0.5 for 128 + 64. Every length is at
    least 1. `keys` divides the page."""
    batch, heads, width = query.shape
    assert cache.shape[1] % keys == 0 and query.is_contiguous() and cache.is_contiguous()
    rows = max(16, min(rows, triton.next_power_of_2(heads)))
    groups = triton.cdiv(heads, rows)
    if parts is None:  # about one block a multiprocessor
        units = torch.cuda.get_device_properties(query.device).multi_processor_count
        parts = max(1, min(triton.cdiv(table.shape[1] * cache.shape[1], keys), units // batch))
        parts = triton.cdiv(parts, groups)
    sums = torch.empty((batch * heads, parts, latent), device=query.device, dtype=torch.float32)
    logs = torch.empty((batch * heads, parts), device=query.device, dtype=torch.float32)
    out = torch.empty((batch, heads, latent), device=query.device, dtype=query.dtype)
    mla_part_kernel[(batch, groups, parts)](
        query,
        cache,
        table,
        lengths,
        sums,
        logs,
        heads,
        table.stride(0),
        scale * 1.4426950408889634,
        PAGE=cache.shape[1],
        KEYS=keys,
        LATENT=latent,
        ROPE=width - latent,
        ROWS=rows,
        num_warps=8,
        num_stages=2,
    )
    size = triton.next_power_of_2(parts)
    mla_join_kernel[(batch * heads, latent // JOINED)](
        sums, logs, out, parts, PARTS=size, LATENT=latent, WIDTH=JOINED, num_warps=4
    )
    return out
