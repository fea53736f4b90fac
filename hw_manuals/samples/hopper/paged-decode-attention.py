"""Attention of one new query per sequence over a paged cache of keys and values (decoding).

Pages are tiles that TMA fetches by their number in the page table; the queries that share a head
of keys form one tile; a sequence is cut into parts, because one block per sequence and head would
leave most of the chip idle. A second kernel joins the parts.

query[batch][heads][WIDTH], caches[pages][PAGE][kv_heads][WIDTH] in bf16; table[batch][most pages]
and lengths[batch] in int32; query and caches contiguous, every length at least 1.
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
    sums_ptr,
    logs_ptr,
    table_stride,
    scale,
    SHARE: tl.constexpr,
    ROWS: tl.constexpr,
    PAGE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    batch, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_heads, parts = tl.num_programs(1), tl.num_programs(2)
    length = tl.load(lengths_ptr + batch)
    pages = tl.cdiv(length, PAGE)
    each = tl.cdiv(pages, parts)
    first = part * each
    row = tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    at = (batch * kv_heads + head) * SHARE + row
    mine = (row < SHARE)[:, None]
    query = tl.load(query_ptr + at[:, None] * WIDTH + d[None, :], mask=mine, other=0.0)
    highest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    acc = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    for i in range(first, tl.minimum(first + each, pages)):
        page = tl.load(table_ptr + batch * table_stride + i)
        key = key_desc.load([page * PAGE, head * WIDTH])
        score = tl.dot(query, key.T) * scale
        known = i * PAGE + tl.arange(0, PAGE) < length
        score = tl.where(known[None, :], score, float("-inf"))
        above = tl.maximum(highest, tl.max(score, axis=1))
        weight = tl.exp2(score - above[:, None])
        shrink = tl.exp2(highest - above)
        total = total * shrink + tl.sum(weight, axis=1)
        value = value_desc.load([page * PAGE, head * WIDTH])
        acc = tl.dot(weight.to(value.dtype), value, acc * shrink[:, None])
        highest = above
    # A part without pages has total 0: its logarithm is minus infinity, its sums count nothing.
    inverse = tl.where(total > 0, 1.0 / total, 0.0)
    out = at * parts + part
    tl.store(sums_ptr + out[:, None] * WIDTH + d[None, :], acc * inverse[:, None], mask=mine)
    tl.store(logs_ptr + out, highest + tl.log2(total), mask=row < SHARE)


@triton.jit
def join_kernel(sums_ptr, logs_ptr, out_ptr, parts, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    p = tl.arange(0, PARTS)
    d = tl.arange(0, WIDTH)
    logs = tl.load(logs_ptr + row * parts + p, mask=p < parts, other=float("-inf"))
    weight = tl.exp2(logs - tl.max(logs, axis=0))
    weight = weight / tl.sum(weight, axis=0)
    at = (row * parts + p)[:, None] * WIDTH + d[None, :]
    sums = tl.load(sums_ptr + at, mask=(p < parts)[:, None], other=0.0)
    out = tl.sum(sums * weight[:, None], axis=0)
    tl.store(out_ptr + row * WIDTH + d, out.to(out_ptr.dtype.element_ty))


def paged_decode(query, key_cache, value_cache, table, lengths, parts=None):
    batch, heads, width = query.shape
    pages, page, kv_heads, _ = key_cache.shape
    assert query.is_contiguous() and heads % kv_heads == 0
    share = heads // kv_heads
    if parts is None:  # two blocks a multiprocessor, and at least one page each
        units = torch.cuda.get_device_properties(query.device).multi_processor_count
        parts = max(1, min(table.shape[1], 2 * units // (batch * kv_heads)))
    sums = torch.empty((batch * heads, parts, width), device=query.device, dtype=torch.float32)
    logs = torch.empty((batch * heads, parts), device=query.device, dtype=torch.float32)
    out = torch.empty_like(query)
    flat = (pages * page, kv_heads * width)
    key_desc = TensorDescriptor.from_tensor(key_cache.view(flat), [page, width])
    value_desc = TensorDescriptor.from_tensor(value_cache.view(flat), [page, width])
    decode_part_kernel[(batch, kv_heads, parts)](
        query,
        key_desc,
        value_desc,
        table,
        lengths,
        sums,
        logs,
        table.stride(0),
        width**-0.5 * 1.44269504,
        SHARE=share,
        ROWS=max(16, triton.next_power_of_2(share)),
        PAGE=page,
        WIDTH=width,
        num_warps=4,
        num_stages=3,
    )
    size = triton.next_power_of_2(parts)
    join_kernel[(batch * heads,)](sums, logs, out, parts, PARTS=size, WIDTH=width, num_warps=4)
    return out
