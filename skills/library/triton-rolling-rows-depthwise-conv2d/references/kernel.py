"""Depthwise convolution, stride 1: rows of the image go by, and each adds to all the rows of the
result that it touches, whose sums wait in registers."""

import torch
import triton
import triton.language as tl

LINES = @{tile_m}
TILE_W = @{tile_n}
RUN = @{run}
# The code grows with taps * taps * rows: 32 rows of 7 taps compile for minutes.
LARGE_FILTER_RUN = 8


@triton.jit
def rolling(
    x,
    weight,
    bias,
    y,
    channels,
    height,
    width,
    strips,
    lines,
    TAPS: tl.constexpr,
    LINES: tl.constexpr,
    TILE_W: tl.constexpr,
    RUN: tl.constexpr,
):
    """A line is RUN rows of one channel of one image."""
    line = tl.program_id(0) * LINES + tl.arange(0, LINES)[:, None]
    known = line < lines
    plane = line // strips
    top = line % strips * RUN
    channel = plane % channels
    column = tl.program_id(1) * TILE_W + tl.arange(0, TILE_W)[None, :]
    start = plane.to(tl.int64) * height * width + column
    shift = tl.load(bias + channel, mask=known, other=0.0).to(tl.float32)
    taps = ()
    for tap in tl.static_range(TAPS * TAPS):
        at = weight + channel * (TAPS * TAPS) + tap
        taps = taps + (tl.load(at, mask=known, other=0.0).to(tl.float32),)
    sums = ()
    for _ in tl.static_range(TAPS - 1):
        sums = sums + (tl.zeros((LINES, TILE_W), tl.float32),)
    cache: tl.constexpr = ".cs" if @{stream} else ""
    for step in tl.static_range(RUN + TAPS - 1):
        row = top + step - TAPS // 2
        inside = known & (row >= 0) & (row < height)
        values = ()
        for j in tl.static_range(TAPS):
            c = column + j - TAPS // 2
            at = x + start + row * width + j - TAPS // 2
            value = tl.load(at, mask=inside & (c >= 0) & (c < width), other=0.0)
            values = values + (value.to(tl.float32),)
        # The image's row belongs to the last tap row of the oldest sum, the first of the newest.
        moved = ()
        for i in tl.static_range(TAPS):
            if i < TAPS - 1:
                total = sums[i]
            else:
                total = tl.zeros((LINES, TILE_W), tl.float32)
            for j in tl.static_range(TAPS):
                total += values[j] * taps[(TAPS - 1 - i) * TAPS + j]
            moved = moved + (total,)
        if step >= TAPS - 1:
            done = row - TAPS // 2
            result = (moved[0] + shift).to(y.dtype.element_ty)
            wanted = known & (done < height) & (column < width)
            tl.store(y + start + done * width, result, mask=wanted, cache_modifier=cache)
        sums = ()
        for i in tl.static_range(TAPS - 1):
            sums = sums + (moved[i + 1],)


def run(x, weight, bias):
    batch, channels, height, width = x.shape
    y = torch.empty_like(x)
    taps = weight.shape[-1]
    rows = RUN if taps == 3 else min(RUN, LARGE_FILTER_RUN)
    strips = triton.cdiv(height, rows)
    lines = batch * channels * strips
    tile = min(TILE_W, triton.next_power_of_2(width))
    together = LINES * TILE_W // tile  # narrow images: more lines instead of idle lanes
    grid = (triton.cdiv(lines, together), triton.cdiv(width, tile))
    sizes = (channels, height, width, strips, lines, taps)
    rolling[grid](x, weight, bias, y, *sizes, together, tile, rows, num_warps=@{warps})
    return y
