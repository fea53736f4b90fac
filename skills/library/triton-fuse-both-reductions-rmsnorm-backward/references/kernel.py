"""Gradients of an RMS norm: both inputs are read once for the reduction along the rows and for the
one down the columns, whose partial sums a second, small kernel adds."""

import torch
import triton
import triton.language as tl

PER_UNIT = @{per_unit}
ROWS = @{tile_m}
WITHOUT_DEVICE = 4  # programs where there is no GPU to count the units of


@triton.jit
def rows_of(grad, x, scale, dx, parts, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    column = tl.arange(0, COLS)[None, :]
    known = column < cols
    factor = tl.load(scale + column, mask=known, other=0.0).to(tl.float32)
    down = tl.zeros((ROWS, COLS), tl.float32)
    cache: tl.constexpr = ".cs" if @{stream} else ""
    for tile in tl.range(
        tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=@{stages}
    ):
        row = tile * ROWS + tl.arange(0, ROWS)[:, None]
        place = row.to(tl.int64) * cols + column
        inside = (row < rows) & known
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        change = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        square = tl.sum(value * value, axis=1)[:, None] / cols
        inverse = 1.0 / tl.sqrt_rn(square + @{eps})
        normed = value * inverse
        down += change * normed
        scaled = change * factor
        along = tl.sum(scaled * normed, axis=1)[:, None] / cols
        result = (scaled - normed * along) * inverse
        tl.store(dx + place, result.to(dx.dtype.element_ty), mask=inside, cache_modifier=cache)
    part = parts + tl.program_id(0).to(tl.int64) * cols + tl.arange(0, COLS)
    tl.store(part, tl.sum(down, axis=0), mask=tl.arange(0, COLS) < cols)


@triton.jit
def columns_of(parts, dscale, count, cols, BLOCK: tl.constexpr, COLS: tl.constexpr):
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    known = column < cols
    total = tl.zeros((BLOCK, COLS), tl.float32)
    for start in range(0, count, BLOCK):
        part = start + tl.arange(0, BLOCK)[:, None]
        inside = (part < count) & known[None, :]
        total += tl.load(parts + part.to(tl.int64) * cols + column, mask=inside, other=0.0)
    tl.store(dscale + column, tl.sum(total, axis=0).to(dscale.dtype.element_ty), mask=known)


def programs(x):
    if not x.is_cuda:
        return WITHOUT_DEVICE
    return PER_UNIT * torch.cuda.get_device_properties(x.device).multi_processor_count


def run(grad, x, scale):
    rows, cols = x.shape
    dx = torch.empty_like(x)
    dscale = torch.empty_like(scale)
    count = min(triton.cdiv(rows, ROWS), programs(x))
    parts = torch.empty((count, cols), device=x.device, dtype=torch.float32)
    width = triton.next_power_of_2(cols)
    rows_of[(count,)](grad, x, scale, dx, parts, rows, cols, ROWS, width, num_warps=@{warps})
    columns_of[(triton.cdiv(cols, 32),)](parts, dscale, count, cols, 64, 32, num_warps=4)
    return dx, dscale
