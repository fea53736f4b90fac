"""Running sum along every row: a scan of each chunk, and a carry from chunk to chunk."""

import torch
import triton
import triton.language as tl


@triton.jit
def scan_row(x, y, cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * cols
    lane = tl.arange(0, BLOCK)
    carry = tl.zeros((1,), tl.float32)
    cache: tl.constexpr = ".cs" if @{stream} else ""
    policy: tl.constexpr = "evict_first" if @{stream} else ""
    for first in tl.range(0, cols, BLOCK, num_stages=STAGES):
        column = first + lane
        inside = column < cols
        value = tl.load(x + start + column, mask=inside, other=0.0, eviction_policy=policy)
        value = value.to(tl.float32)
        result = tl.cumsum(value, axis=0) + carry
        carry += tl.sum(value, axis=0)
        tl.store(
            y + start + column, result.to(y.dtype.element_ty), mask=inside, cache_modifier=cache
        )


def run(x):
    y = torch.empty_like(x)
    cols = x.shape[-1]
    block = min(@{block}, triton.next_power_of_2(cols))
    stages = @{stages} if cols > block else 1
    scan_row[(x.numel() // cols,)](x, y, cols, block, stages, num_warps=@{warps})
    return y
