"""Sum of every row and the place of its largest element, from one reading."""

import torch
import triton
import triton.language as tl

BLOCK = @{block}
NOWHERE = 2**31 - 1


@triton.jit
def reduce_row(x, total, place, cols, BLOCK: tl.constexpr, NOWHERE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    amount = tl.zeros((BLOCK,), tl.float32)
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    where = tl.full((BLOCK,), NOWHERE, tl.int32)
    policy: tl.constexpr = "evict_first" if @{stream} else ""
    for start in tl.range(0, cols, BLOCK, num_stages=@{stages}, loop_unroll_factor=@{unroll}):
        column = start + lane
        inside = column < cols
        at = x + row * cols + column
        value = tl.load(at, mask=inside, other=0.0, eviction_policy=policy).to(tl.float32)
        amount += value
        # Not greater or equal: among equals, the first stays.
        better = inside & ((value > best) | (where == NOWHERE))
        where = tl.where(better, column, where)
        best = tl.where(better, value, best)
    top = tl.max(best, axis=0)
    first = tl.min(tl.where(best == top, where, NOWHERE), axis=0)
    tl.store(total + row, tl.sum(amount, axis=0).to(total.dtype.element_ty))
    tl.store(place + row, first.to(tl.int64))


def run(x):
    rows, cols = x.shape
    total = torch.empty(rows, device=x.device, dtype=x.dtype)
    place = torch.empty(rows, device=x.device, dtype=torch.int64)
    reduce_row[(rows,)](x, total, place, cols, BLOCK, NOWHERE, num_warps=@{warps})
    return total, place
