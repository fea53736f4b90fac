import torch
import triton
import triton.language as tl


@triton.jit
def attend(
    query_ptr,
    key_ptr,
    value_ptr,
    out_ptr,
    length,
    width,
    scale,
    CAUSAL: tl.constexpr,
    LAST_FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    block = tl.program_id(0)
    if CAUSAL and LAST_FIRST:
        # The last rows see most keys; begun first, they do not run alone at the end.
        block = tl.num_programs(0) - 1 - block
    head = tl.program_id(1).to(tl.int64) * length * width
    m = block * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, WIDTH)
    rows = m[:, None] * width + d[None, :]
    inside = (m < length)[:, None] & (d < width)[None, :]
    query = tl.load(query_ptr + head + rows, mask=inside, other=0.0)
    key_ptr += head
    value_ptr += head
    highest = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, WIDTH), dtype=tl.float32)
    # Keys that all rows of the block see need no mask; with the causal mask, key 0 is among them or
    # on the diagonal, so no maximum stays minus infinity.
    end = tl.minimum((block + 1) * BLOCK_M, length) if CAUSAL else length
    full = (block * BLOCK_M if CAUSAL else length) // BLOCK_N * BLOCK_N
    for start in range(0, full, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        key = tl.load(
            key_ptr + n[None, :] * width + d[:, None], mask=(d < width)[:, None], other=0.0
        )
        score = tl.dot(query, key, input_precision="ieee") * scale
        above = tl.maximum(highest, tl.max(score, axis=1))
        weight = tl.exp2(score - above[:, None])
        shrink = tl.exp2(highest - above)
        total = total * shrink + tl.sum(weight, axis=1)
        value = tl.load(
            value_ptr + n[:, None] * width + d[None, :], mask=(d < width)[None, :], other=0.0
        )
        acc = tl.dot(weight.to(value.dtype), value, acc * shrink[:, None], input_precision="ieee")
        highest = above
    for start in range(full, end, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        known = n < length
        key = tl.load(
            key_ptr + n[None, :] * width + d[:, None],
            mask=(d < width)[:, None] & known[None, :],
            other=0.0,
        )
        score = tl.dot(query, key, input_precision="ieee") * scale
        seen = n[None, :] <= m[:, None] if CAUSAL else known[None, :]
        score = tl.where(seen, score, float("-inf"))
        above = tl.maximum(highest, tl.max(score, axis=1))
        weight = tl.exp2(score - above[:, None])
        shrink = tl.exp2(highest - above)
        total = total * shrink + tl.sum(weight, axis=1)
        value = tl.load(
            value_ptr + n[:, None] * width + d[None, :],
            mask=known[:, None] & (d < width)[None, :],
            other=0.0,
        )
        acc = tl.dot(weight.to(value.dtype), value, acc * shrink[:, None], input_precision="ieee")
        highest = above
    acc = acc / total[:, None]
    tl.store(out_ptr + head + rows, acc.to(out_ptr.dtype.element_ty), mask=inside)


def run(query, key, value):
    length, width = query.shape[-2:]
    out = torch.empty_like(query)
    # The matrix units take 16-bit numbers; float32 goes without and needs smaller tiles.
    share = max(1, query.element_size() // 2)
    block_m = @{tile_m} // share
    attend[(triton.cdiv(length, block_m), query.numel() // (length * width))](
        query,
        key,
        value,
        out,
        length,
        width,
        1.4426950408889634 / width**0.5,
        CAUSAL=@{causal},
        LAST_FIRST=@{last_first},
        WIDTH=max(16, triton.next_power_of_2(width)),
        BLOCK_M=block_m,
        BLOCK_N=@{tile_n} // share,
        num_warps=@{warps},
        num_stages=@{stages},
    )
    return out
