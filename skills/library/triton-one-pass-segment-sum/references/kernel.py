"""Sum of each stretch of a ragged list of rows: one program for each of them and tile of
columns."""

import torch
import triton
import triton.language as tl


@triton.jit
def segment_sum(
    values, offsets, y, width, ROWS: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr
):
    segment = tl.program_id(0).to(tl.int64)
    begin = tl.load(offsets + segment).to(tl.int64)
    length = (tl.load(offsets + segment + 1) - begin).to(tl.int32)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    known = column < width
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    policy: tl.constexpr = "evict_first" if @{stream} else ""
    for start in tl.range(0, length, ROWS, num_stages=STAGES):
        row = start + tl.arange(0, ROWS)[:, None]
        at = values + (begin + row) * width + column
        inside = (row < length) & known
        total += tl.load(at, mask=inside, other=0.0, eviction_policy=policy).to(tl.float32)
    result = tl.sum(total, axis=0)[None, :]
    tl.store(y + segment * width + column, result.to(y.dtype.element_ty), mask=known)


def run(values, offsets):
    segments = offsets.shape[0] - 1
    width = values.shape[1]
    y = torch.empty((segments, width), device=values.device, dtype=values.dtype)
    tile = min(@{tile_n}, triton.next_power_of_2(width))
    grid = (segments, triton.cdiv(width, tile))
    segment_sum[grid](values, offsets, y, width, @{tile_m}, tile, @{stages}, num_warps=@{warps})
    return y
