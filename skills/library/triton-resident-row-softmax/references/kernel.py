"""Softmax over the last dimension: a row is read once and stays in registers where it fits."""

import torch
import triton
import triton.language as tl

ROWS = @{tile_m}
PER_UNIT = @{per_unit}
RESIDENT = 16_384  # columns; above, registers do not hold a row
CHUNK = 4096


@triton.jit
def resident(x, y, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr):
    column = tl.arange(0, COLS)[None, :]
    for tile in tl.range(
        tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES
    ):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]
        place = row.to(tl.int64) * cols + column
        inside = (row < rows) & (column < cols)
        value = tl.load(x + place, mask=inside, other=-float("inf")).to(tl.float32)
        value = tl.exp(value - tl.max(value, axis=1)[:, None])
        value = value * (1.0 / tl.sum(value, axis=1)[:, None])
        cache: tl.constexpr = ".cs" if @{stream} else ""
        tl.store(y + place, value.to(y.dtype.element_ty), mask=inside, cache_modifier=cache)


@triton.jit
def streamed(x, y, cols, CHUNK: tl.constexpr):
    # The maximum and the sum of every lane run along the row; the second reading finds it in L2.
    start = tl.program_id(0).to(tl.int64) * cols
    column = tl.arange(0, CHUNK)
    most = tl.full((CHUNK,), -3.4028234e38, tl.float32)
    total = tl.zeros((CHUNK,), tl.float32)
    for first in tl.range(0, cols, CHUNK, num_stages=3):
        inside = first + column < cols
        value = tl.load(
            x + start + first + column,
            mask=inside,
            other=-float("inf"),
            eviction_policy="evict_last",
        ).to(tl.float32)
        shrink = tl.exp(-tl.abs(value - most))
        total = tl.where(value > most, total * shrink + 1.0, total + shrink)
        most = tl.maximum(most, value)
    top = tl.max(most, axis=0)
    inverse = 1.0 / tl.sum(total * tl.exp(most - top), axis=0)
    for first in tl.range(0, cols, CHUNK, num_stages=3):
        inside = first + column < cols
        place = start + first + column
        value = tl.load(x + place, mask=inside, other=0.0, eviction_policy="evict_first")
        value = tl.exp(value.to(tl.float32) - top) * inverse
        tl.store(y + place, value.to(y.dtype.element_ty), mask=inside, cache_modifier=".cs")


def programs(x, tiles):
    """One for each tile, or as many as fill the device PER_UNIT times over."""
    if not PER_UNIT or not x.is_cuda:
        return tiles
    return min(tiles, PER_UNIT * torch.cuda.get_device_properties(x.device).multi_processor_count)


def run(x):
    y = torch.empty_like(x)
    cols = x.shape[-1]
    rows = x.numel() // cols
    if cols > RESIDENT:
        streamed[(rows,)](x, y, cols, CHUNK, num_warps=16)
        return y
    grid = (programs(x, triton.cdiv(rows, ROWS)),)
    width = triton.next_power_of_2(cols)
    resident[grid](x, y, rows, cols, ROWS, width, @{stages}, num_warps=@{warps})
    return y
