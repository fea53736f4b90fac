"""Max pooling of a volume, windows of 3 and stride 2: planes go by, and of every window the plane
that the next one shares stays in registers."""

import torch
import triton
import triton.language as tl

TILE_H = @{tile_m}
TILE_W = @{tile_n}
RUN = @{run}


@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def plane_max(x, depth, height, width, d, h, w, pair):
    """Over windows of 3 by 3 of the plane d of x. w: output columns; pair: the two input columns
    of each, which one wide load brings; the column left of them comes on its own."""
    present = (d >= 0) & (d < depth)
    both = tl.full((h.shape[0], pair.shape[1]), -float("inf"), x.dtype.element_ty)
    left = tl.full((h.shape[0], w.shape[1]), -float("inf"), x.dtype.element_ty)
    for tap in tl.static_range(3):
        row = 2 * h - 1 + tap
        inside = (row >= 0) & (row < height) & present
        line = x + d.to(tl.int64) * height * width + row * width
        near = tl.load(line + pair, mask=inside & (pair < width), other=-float("inf"))
        before = inside & (w > 0) & (2 * w - 1 < width)
        far = tl.load(line + 2 * w - 1, mask=before, other=-float("inf"))
        both = larger(both, near)
        left = larger(left, far)
    even, odd = tl.split(tl.reshape(both, (h.shape[0], w.shape[1], 2)))
    return larger(left, larger(even, odd))


@triton.jit
def pool(
    x,
    y,
    depth,
    height,
    width,
    out_depth,
    out_height,
    out_width,
    TILE_H: tl.constexpr,
    TILE_W: tl.constexpr,
    RUN: tl.constexpr,
):
    across = tl.cdiv(out_width, TILE_W)
    tile = tl.program_id(0)
    h = tile // across * TILE_H + tl.arange(0, TILE_H)[:, None]
    w = tile % across * TILE_W + tl.arange(0, TILE_W)[None, :]
    pair = tile % across * (2 * TILE_W) + tl.arange(0, 2 * TILE_W)[None, :]
    first = tl.program_id(1) * RUN
    volume = tl.program_id(2).to(tl.int64)
    x += volume * depth * height * width
    y += volume * out_depth * out_height * out_width
    inside = (h < out_height) & (w < out_width)
    cache: tl.constexpr = ".cs" if @{stream} else ""
    shared = plane_max(x, depth, height, width, 2 * first - 1, h, w, pair)
    for step in range(RUN):
        d = first + step
        middle = plane_max(x, depth, height, width, 2 * d, h, w, pair)
        last = plane_max(x, depth, height, width, 2 * d + 1, h, w, pair)
        at = y + (d.to(tl.int64) * out_height + h) * out_width + w
        best = larger(shared, larger(middle, last))
        tl.store(at, best, mask=inside & (d < out_depth), cache_modifier=cache)
        shared = last


def run(x):
    batch, channels, depth, height, width = x.shape
    out = [(size - 1) // 2 + 1 for size in (depth, height, width)]
    y = torch.empty((batch, channels, *out), device=x.device, dtype=x.dtype)
    tiles = triton.cdiv(out[1], TILE_H) * triton.cdiv(out[2], TILE_W)
    grid = (tiles, triton.cdiv(out[0], RUN), batch * channels)
    pool[grid](x, y, depth, height, width, *out, TILE_H, TILE_W, RUN, num_warps=@{warps})
    return y
