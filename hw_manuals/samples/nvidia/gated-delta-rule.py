"""Gated delta rule in chunks of 32 steps: state = decay * state; state += key (rate (value - key
state)); result = query state / sqrt(D), computed by products instead of step by step.

query and key [batch][heads][length][D], normalised here, value [batch][heads][length][V], gate and
rate [batch][heads][length] with decay = exp(-softplus(gate)) and rate = sigmoid(rate); all float32
and contiguous. D and V: powers of two from 16 to 128.
"""

import torch
import triton
import triton.language as tl

CHUNK = 32
LEVELS = 5  # CHUNK = 2 ** LEVELS


@triton.jit
def chunk_levels(gate_ptr, start, at, known, C: tl.constexpr):
    """Running sum of the logarithms of the decay within a chunk, along rows, along columns, and
    their whole."""
    gate = tl.load(gate_ptr + start + at, mask=known, other=0.0)
    softplus = tl.maximum(gate, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(gate)))
    # Nothing is left beyond exp(-40); the limit keeps differences of the sums exact enough.
    step = tl.where(known, tl.maximum(-softplus, -40.0), 0.0)
    level = tl.cumsum(step, axis=0)
    i = tl.arange(0, C)
    across = tl.sum(tl.where(i[:, None] == i[None, :], level[:, None], 0.0), axis=0)
    return level, across, tl.sum(step, axis=0)


@triton.jit
def unit_rows(ptr, row, d, known, D: tl.constexpr):
    x = tl.load(ptr + row[:, None] * D + d[None, :], mask=known[:, None], other=0.0)
    norm = tl.sqrt(tl.sum(x * x, axis=1))
    return x / tl.maximum(norm, 1e-12)[:, None]


@triton.jit
def solve_chunks(
    key_ptr,
    value_ptr,
    gate_ptr,
    rate_ptr,
    old_ptr,  # [heads, chunks, C, D]: factor of the state before the chunk
    fall_ptr,  # [heads, chunks, D, C]: keys, decayed to the end of the chunk
    new_ptr,  # [heads, chunks, C, V]: what the values alone would add
    keep_ptr,  # [heads, chunks]
    length,
    chunks,
    C: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    LEVELS: tl.constexpr,
):
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    i = tl.arange(0, C)
    d = tl.arange(0, D)
    e = tl.arange(0, V)
    at = chunk * C + i
    known = at < length
    row = head * length + at
    level, across, whole = chunk_levels(gate_ptr, head * length, at, known, C)
    rate = tl.load(rate_ptr + row, mask=known, other=0.0)
    rate = tl.where(known, 1.0 / (1.0 + tl.exp(-rate)), 0.0)
    k = unit_rows(key_ptr, row, d, known, D)

    below = i[:, None] > i[None, :]
    fade = tl.exp(tl.where(below, level[:, None] - across[None, :], 0.0))
    near = tl.dot(k, tl.trans(k), input_precision="tf32x3")
    lower = tl.where(below, near * fade * rate[:, None], 0.0)

    # Inverse of the identity plus `lower`, exact for diagonal blocks of 2, then 4, 8 ... rows.
    twin = below & ((i // 2)[:, None] == (i // 2)[None, :])
    solved = tl.where(i[:, None] == i[None, :], 1.0, 0.0) - tl.where(twin, lower, 0.0)
    for n in tl.static_range(1, LEVELS):
        group = i >> n
        corner = (group[:, None] == (group + 1)[None, :]) & (group % 2 == 1)[:, None]
        part = tl.dot(tl.where(corner, lower, 0.0), solved, input_precision="tf32x3")
        solved = solved - tl.dot(solved, part, input_precision="tf32x3")

    place = head * chunks + chunk
    old = tl.dot(solved, k * (rate * tl.exp(level))[:, None], input_precision="tf32x3")
    tl.store(old_ptr + (place * C + i)[:, None] * D + d[None, :], old)
    fall = k * tl.exp(whole - level)[:, None]
    tl.store(fall_ptr + (place * D + d)[None, :] * C + i[:, None], fall)
    v = tl.load(value_ptr + row[:, None] * V + e[None, :], mask=known[:, None], other=0.0)
    new = tl.dot(solved, v * rate[:, None], input_precision="tf32x3")
    tl.store(new_ptr + (place * C + i)[:, None] * V + e[None, :], new)
    tl.store(keep_ptr + place, tl.exp(whole))


@triton.jit
def carry_state(
    old_ptr,
    fall_ptr,
    new_ptr,
    keep_ptr,
    state_ptr,  # [heads, chunks, D, V]: before the chunk
    change_ptr,  # [heads, chunks, C, V]
    chunks,
    C: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    head = tl.program_id(1)
    i = tl.arange(0, C)
    d = tl.arange(0, D)
    e = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    first = head * chunks
    new = tl.load(new_ptr + (first * C + i)[:, None] * V + e[None, :])
    keep = tl.load(keep_ptr + first)
    state = tl.zeros((D, BLOCK_V), dtype=tl.float32)
    for chunk in range(chunks):
        place = first + chunk
        ahead = first + tl.minimum(chunk + 1, chunks - 1)
        next_new = tl.load(new_ptr + (ahead * C + i)[:, None] * V + e[None, :])
        next_keep = tl.load(keep_ptr + ahead)
        old = tl.load(old_ptr + (place * C + i)[:, None] * D + d[None, :])
        fall = tl.load(fall_ptr + (place * D + d)[:, None] * C + i[None, :])
        tl.store(state_ptr + (place * D + d)[:, None] * V + e[None, :], state)
        change = new - tl.dot(old, state, input_precision="tf32")
        tl.store(change_ptr + (place * C + i)[:, None] * V + e[None, :], change)
        state = state * keep + tl.dot(fall, change, input_precision="tf32x3")
        new = next_new
        keep = next_keep


@triton.jit
def read_out(
    query_ptr,
    key_ptr,
    gate_ptr,
    state_ptr,
    change_ptr,
    out_ptr,
    length,
    chunks,
    scale,
    C: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    i = tl.arange(0, C)
    d = tl.arange(0, D)
    at = chunk * C + i
    known = at < length
    row = head * length + at
    level, across, _whole = chunk_levels(gate_ptr, head * length, at, known, C)
    q = unit_rows(query_ptr, row, d, known, D) * scale
    k = unit_rows(key_ptr, row, d, known, D)
    seen = i[:, None] >= i[None, :]
    fade = tl.exp(tl.where(seen, level[:, None] - across[None, :], 0.0))
    near = tl.dot(q, tl.trans(k), input_precision="tf32x3")
    inner = tl.where(seen, near * fade, 0.0)
    q = q * tl.exp(level)[:, None]
    place = head * chunks + chunk
    for start in tl.static_range(0, V, BLOCK_V):
        e = start + tl.arange(0, BLOCK_V)
        state = tl.load(state_ptr + (place * D + d)[:, None] * V + e[None, :])
        change = tl.load(change_ptr + (place * C + i)[:, None] * V + e[None, :])
        acc = tl.dot(q, state, input_precision="tf32x3")
        acc += tl.dot(inner, change, input_precision="tf32x3")
        tl.store(out_ptr + row[:, None] * V + e[None, :], acc, mask=known[:, None])


def gated_delta_rule(query, key, value, gate, rate):
    batch, heads, length, width = query.shape
    columns = value.shape[-1]
    chunks = triton.cdiv(length, CHUNK)
    many = batch * heads
    block_v = min(16, columns)
    out = torch.empty_like(value)

    def space(*shape):
        return torch.empty(shape, device=query.device, dtype=torch.float32)

    old = space(many, chunks, CHUNK, width)
    fall = space(many, chunks, width, CHUNK)
    new = space(many, chunks, CHUNK, columns)
    keep = space(many, chunks)
    state = space(many, chunks, width, columns)
    change = space(many, chunks, CHUNK, columns)
    solve_chunks[(chunks, many)](
        key,
        value,
        gate,
        rate,
        old,
        fall,
        new,
        keep,
        length,
        chunks,
        C=CHUNK,
        D=width,
        V=columns,
        LEVELS=LEVELS,
        num_warps=4,
    )
    carry_state[(columns // block_v, many)](
        old,
        fall,
        new,
        keep,
        state,
        change,
        chunks,
        C=CHUNK,
        D=width,
        V=columns,
        BLOCK_V=block_v,
        num_warps=4,
        num_stages=3,
    )
    read_out[(chunks, many)](
        query,
        key,
        gate,
        state,
        change,
        out,
        length,
        chunks,
        width**-0.5,
        C=CHUNK,
        D=width,
        V=columns,
        BLOCK_V=min(64, columns),
        num_warps=4,
    )
    return out
