"""Ids by borders and squashed values from one reading of the dense features."""

import torch
import triton
import triton.language as tl

BLOCK = @{block}


@triton.jit
def bucketize(
    dense,
    borders,
    first_id,
    ids,
    squashed,
    batch,
    BORDERS: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    feature = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < batch
    policy: tl.constexpr = "evict_first" if @{stream} else ""
    cache: tl.constexpr = ".cs" if @{stream} else ""
    at = feature * batch + column
    value = tl.load(dense + at, mask=inside, other=0.0, eviction_policy=policy).to(tl.float32)
    edges = borders + feature * BORDERS
    count = tl.zeros((BLOCK,), tl.int32)
    if @{halve}:
        high = tl.full((BLOCK,), BORDERS, tl.int32)
        for _ in tl.static_range(STEPS):
            middle = (count + high) // 2
            open_ = count < high
            edge = tl.load(edges + middle, mask=open_, other=0.0).to(tl.float32)
            right = open_ & ((edge > value) == 0)
            count = tl.where(right, middle + 1, count)
            high = tl.where(open_ & (right == 0), middle, high)
    else:
        for border in tl.static_range(BORDERS):
            count += tl.where(tl.load(edges + border).to(tl.float32) > value, 0, 1)
    number = count.to(tl.int64) + tl.load(first_id + feature)
    tl.store(ids + at, number, mask=inside, cache_modifier=cache)
    # log(1 + a) as the logarithm of the rounded sum, corrected for what rounding took away.
    size = tl.abs(value)
    more = 1.0 + size
    exact = tl.where(more == 1.0, 1.0, more - 1.0)
    plain = (more == 1.0) | (size == float("inf"))  # 0 / 0, infinity over infinity
    result = tl.where(plain, size, tl.log(more) * (size / exact))
    result = tl.where(value < 0, -result, result)
    tl.store(squashed + at, result.to(squashed.dtype.element_ty), mask=inside, cache_modifier=cache)


def run(dense, borders, first_id):
    features, batch = dense.shape
    count = borders.shape[1]
    ids = torch.empty((features, batch), device=dense.device, dtype=torch.int64)
    squashed = torch.empty_like(dense)
    grid = (triton.cdiv(batch, BLOCK), features)
    bucketize[grid](
        dense,
        borders,
        first_id,
        ids,
        squashed,
        batch,
        count,
        count.bit_length(),
        BLOCK,
        num_warps=@{warps},
    )
    return ids, squashed
