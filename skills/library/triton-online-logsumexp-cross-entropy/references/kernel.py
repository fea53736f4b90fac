"""Cross entropy of every row: one reading gives the maximum and the sum of exponentials."""

import torch
import triton
import triton.language as tl

LOWEST = -3.4028234e38  # finite, so that differences from it are never NaN


@triton.jit
def loss_of(
    logits,
    target,
    loss,
    classes,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    LOWEST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    chosen = tl.load(target + row)
    counts = chosen != @{ignored}
    mine = tl.load(logits + row * classes + chosen, mask=counts, other=0.0).to(tl.float32)
    most = tl.full((BLOCK,), LOWEST, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    policy: tl.constexpr = "evict_first" if @{stream} else ""
    for start in tl.range(0, classes, BLOCK, num_stages=STAGES):
        column = start + lane
        at = logits + row * classes + column
        value = tl.load(at, mask=column < classes, other=-float("inf"), eviction_policy=policy).to(
            tl.float32
        )
        # One exponential for each element: of the distance between it and the lane's maximum.
        shrink = tl.exp(-tl.abs(value - most))
        total = tl.where(value > most, total * shrink + 1.0, total + shrink)
        most = tl.maximum(most, value)
    top = tl.max(most, axis=0)
    total = tl.sum(total * tl.exp(most - top), axis=0)
    result = tl.where(counts, tl.log(total) + (top - mine), 0.0)
    tl.store(loss + row, result.to(loss.dtype.element_ty))


def run(logits, target):
    rows, classes = logits.shape
    loss = torch.empty(rows, device=logits.device, dtype=logits.dtype)
    block = min(@{block}, triton.next_power_of_2(classes))
    stages = @{stages} if classes > block else 1
    loss_of[(rows,)](logits, target, loss, classes, block, stages, LOWEST, num_warps=@{warps})
    return loss
