"""Sum of looked-up rows, bag by bag: a block of a bag's rows is requested at once, and the lanes of
a warp take neighbouring columns of a row."""

import torch
import triton
import triton.language as tl


@triton.jit
def bag_sum(
    indices,
    table,
    y,
    pooling,
    width,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
):
    bag = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    known = column < width
    total = tl.zeros((BLOCK, WIDTH), tl.float32)
    for start in tl.range(0, pooling, BLOCK, num_stages=STAGES):
        item = start + tl.arange(0, BLOCK)
        row = tl.load(indices + bag * pooling + item, mask=item < pooling, other=0)[:, None]
        inside = (item < pooling)[:, None] & known
        total += tl.load(table + row * width + column, mask=inside, other=0.0).to(tl.float32)
    result = tl.sum(total, axis=0)[None, :]
    at = y + bag * width + column
    tl.store(at, result.to(y.dtype.element_ty), mask=known, cache_modifier=".cs")


def run(indices, table):
    bags, pooling = indices.shape
    width = table.shape[1]
    y = torch.empty((bags, width), device=table.device, dtype=table.dtype)
    tile = min(@{tile_n}, triton.next_power_of_2(width))
    stages = @{stages} if pooling > @{block} else 1
    grid = (bags, triton.cdiv(width, tile))
    bag_sum[grid](indices, table, y, pooling, width, @{block}, tile, stages, num_warps=@{warps})
    return y
