"""Gradients of attention for Hopper: full or causal, grouped heads; two kernels, no atomics.

query, out, upstream, dquery [batch][heads][queries][WIDTH], key, value, dkey, dvalue
[batch][kv_heads][keys][WIDTH] in bf16 or fp16, contiguous, WIDTH 64 or 128;
lse[batch][heads][queries] in float32: the natural logarithm of the sum of exp(scale * query . key),
from the forward pass. The causal mask is aligned at the end: query m sees the keys up to
m + keys - queries.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2E = 1.4426950408889634


@triton.jit
def read(floats, place):
    """A load that stays where it is written: the compiler neither moves it ahead nor takes shared
    memory for it."""
    return tl.inline_asm_elementwise(
        "{ .reg .b64 a; mad.wide.s32 a, $2, 4, $1; ld.global.nc.f32 $0, [a]; }",
        "=f,l,r",
        [floats, place],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def row_sums_kernel(
    out_ptr,
    upstream_ptr,
    lse_ptr,
    sums_ptr,
    logs_ptr,
    rows,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
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


@triton.jit
def key_value_kernel(
    key_ptr,
    value_ptr,
    query_desc,
    upstream_desc,
    logs_ptr,
    sums_ptr,
    dkey_ptr,
    dvalue_ptr,
    kv_heads,
    share,
    queries,
    keys,
    scale,
    scale_log2,
    CAUSAL: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # The block of keys stays, the queries of all heads that share it go by. Scores are transposed,
    # so that they are the left operand of both sums.
    both = tl.program_id(0)
    batch = both // kv_heads
    first_key = tl.program_id(1) * BLOCK_N
    n = first_key + tl.arange(0, BLOCK_N)
    d = tl.arange(0, WIDTH)
    base = both.to(tl.int64) * keys * WIDTH
    key_desc = tl.make_tensor_descriptor(
        key_ptr + base, [keys, WIDTH], [WIDTH, 1], [BLOCK_N, WIDTH]
    )
    value_desc = tl.make_tensor_descriptor(
        value_ptr + base, [keys, WIDTH], [WIDTH, 1], [BLOCK_N, WIDTH]
    )
    key = key_desc.load([first_key, 0])
    value = value_desc.load([first_key, 0])
    dkey = tl.zeros((BLOCK_N, WIDTH), dtype=tl.float32)
    dvalue = tl.zeros((BLOCK_N, WIDTH), dtype=tl.float32)
    first_block = 0
    if CAUSAL:
        first_block = tl.maximum(first_key - (keys - queries), 0) // BLOCK_M
    blocks = tl.maximum(tl.cdiv(queries, BLOCK_M) - first_block, 0)
    logs_at = logs_ptr.to(tl.int64)
    sums_at = sums_ptr.to(tl.int64)
    for i in range(blocks * share):
        head = both % kv_heads * share + i // blocks
        start = (first_block + i % blocks) * BLOCK_M
        m = start + tl.arange(0, BLOCK_M)
        row = (batch * kv_heads * share + head) * queries + tl.minimum(m, queries - 1)
        q = query_desc.load([batch, head, start, 0]).reshape(BLOCK_M, WIDTH)
        score = tl.dot(key, q.T)
        logs = read(logs_at, row)
        weight = tl.math.exp2(score * scale_log2 - logs[None, :])
        if CAUSAL:
            seen = (n[:, None] <= m[None, :] + (keys - queries)) & (m < queries)[None, :]
        else:
            seen = (m < queries)[None, :]
        weight = tl.where(seen, weight, 0.0)
        u = upstream_desc.load([batch, head, start, 0]).reshape(BLOCK_M, WIDTH)
        dvalue = tl.dot(weight.to(u.dtype), u, dvalue)
        dweight = tl.dot(value, u.T)
        dscore = weight * (dweight - read(sums_at, row)[None, :])
        dkey = tl.dot(dscore.to(q.dtype), q, dkey)
    at = n[:, None] * WIDTH + d[None, :]
    mine = (n < keys)[:, None]
    tl.store(dkey_ptr + base + at, (dkey * scale).to(dkey_ptr.dtype.element_ty), mask=mine)
    tl.store(dvalue_ptr + base + at, dvalue.to(dvalue_ptr.dtype.element_ty), mask=mine)


@triton.jit
def query_kernel(
    query_ptr,
    upstream_ptr,
    key_desc,
    value_desc,
    logs_ptr,
    sums_ptr,
    dquery_ptr,
    heads,
    share,
    queries,
    keys,
    scale,
    scale_log2,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    both = tl.program_id(0)
    block = tl.num_programs(1) - 1 - tl.program_id(1)  # with most keys first
    batch = both // heads
    kv_head = both % heads // share
    first_row = block * BLOCK_M
    rows = first_row + tl.arange(0, BLOCK_M)
    d = tl.arange(0, WIDTH)
    base = both.to(tl.int64) * queries * WIDTH
    query_desc = tl.make_tensor_descriptor(
        query_ptr + base, [queries, WIDTH], [WIDTH, 1], [BLOCK_M, WIDTH]
    )
    upstream_desc = tl.make_tensor_descriptor(
        upstream_ptr + base, [queries, WIDTH], [WIDTH, 1], [BLOCK_M, WIDTH]
    )
    query = query_desc.load([first_row, 0])
    upstream = upstream_desc.load([first_row, 0])
    at_row = both * queries + tl.minimum(rows, queries - 1)
    logs = read(logs_ptr.to(tl.int64), at_row)
    sums = read(sums_ptr.to(tl.int64), at_row)
    dquery = tl.zeros((BLOCK_M, WIDTH), dtype=tl.float32)
    if CAUSAL:
        last_key = tl.minimum(rows + (keys - queries), keys - 1)
        end = tl.minimum(tl.maximum(first_row + BLOCK_M + keys - queries, 0), keys)
    else:
        last_key = tl.zeros((BLOCK_M,), dtype=tl.int32) + (keys - 1)
        end = keys
    for start in range(0, end, BLOCK_N):
        k = key_desc.load([batch, kv_head, start, 0]).reshape(BLOCK_N, WIDTH)
        score = tl.dot(query, k.T)
        weight = tl.math.exp2(score * scale_log2 - logs[:, None])
        if MASKED:
            n = start + tl.arange(0, BLOCK_N)
            weight = tl.where(n[None, :] <= last_key[:, None], weight, 0.0)
        v = value_desc.load([batch, kv_head, start, 0]).reshape(BLOCK_N, WIDTH)
        dweight = tl.dot(upstream, v.T)
        dscore = weight * (dweight - sums[:, None])
        dquery = tl.dot(dscore.to(k.dtype), k, dquery)
    at = rows[:, None] * WIDTH + d[None, :]
    mine = (rows < queries)[:, None]
    dquery = (dquery * scale).to(dquery_ptr.dtype.element_ty)
    tl.store(dquery_ptr + base + at, dquery, mask=mine)


def workspace(size, alignment, stream):
    return torch.empty(size, device="cuda", dtype=torch.int8)


def attention_backward(
    query,
    key,
    value,
    out,
    lse,
    upstream,
    causal=False,
    scale=None,
    keys_config=(64, 64, 4, 2),
    queries_config=(128, 128, 8, 2),
):
    """Returns the gradients of query, key and value. A configuration of a kernel is its rows,
    columns, warps and stages."""
    batch, heads, queries, width = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    share = heads // kv_heads
    scale = width**-0.5 if scale is None else scale
    assert all(x.is_contiguous() for x in (query, key, value, out, upstream))
    triton.set_allocator(workspace)
    dquery, dkey, dvalue = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    sums, logs = torch.empty_like(lse), torch.empty_like(lse)
    rows = batch * heads * queries
    row_sums_kernel[(triton.cdiv(rows, 32),)](
        out, upstream, lse, sums, logs, rows, WIDTH=width, BLOCK=32, num_warps=4
    )
    m, n, warps, stages = keys_config
    key_value_kernel[(batch * kv_heads, triton.cdiv(keys, n))](
        key,
        value,
        TensorDescriptor.from_tensor(query, [1, 1, m, width]),
        TensorDescriptor.from_tensor(upstream, [1, 1, m, width]),
        logs,
        sums,
        dkey,
        dvalue,
        kv_heads,
        share,
        queries,
        keys,
        scale,
        scale * LOG2E,
        CAUSAL=causal,
        WIDTH=width,
        BLOCK_M=m,
        BLOCK_N=n,
        num_warps=warps,
        num_stages=stages,
    )
    m, n, warps, stages = queries_config
    query_kernel[(batch * heads, triton.cdiv(queries, m))](
        query,
        upstream,
        TensorDescriptor.from_tensor(key, [1, 1, n, width]),
        TensorDescriptor.from_tensor(value, [1, 1, n, width]),
        logs,
        sums,
        dquery,
        heads,
        share,
        queries,
        keys,
        scale,
        scale * LOG2E,
        CAUSAL=causal,
        MASKED=causal or keys % n != 0,
        WIDTH=width,
        BLOCK_M=m,
        BLOCK_N=n,
        num_warps=warps,
        num_stages=stages,
    )
    return dquery, dkey, dvalue
