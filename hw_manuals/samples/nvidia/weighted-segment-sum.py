"""Weighted sums of gathered rows by sorted destination: a sparse matrix times a dense one, with
segments of any length. Two kernels: borders and sums of whole blocks, then slices of columns.
"""

import torch
import triton
import triton.language as tl

BLOCK = 128
NODES = 8
LANES = 4


@triton.jit
def into_range(index, count):
    index = index % count
    return tl.where(index < 0, index + count, index)


@triton.jit
def find_borders(
    features_ptr,
    source_ptr,
    destination_ptr,
    weight_ptr,
    begin_ptr,
    scratch_ptr,
    count,
    edges,
    width,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    block = tl.program_id(0)
    edge = block * BLOCK + tl.arange(0, BLOCK)
    known = edge < edges
    here = into_range(tl.load(destination_ptr + edge, mask=known, other=0), count)
    inner = known & (edge > 0)
    previous = into_range(tl.load(destination_ptr + edge - 1, mask=inner, other=0), count)
    previous = tl.where(edge > 0, previous, -1)
    # Every destination after the previous edge's, up to this edge's, begins at this edge.
    gap = tl.where(known, here - previous, 0)
    widest = tl.max(gap, axis=0)
    for step in range(widest):
        tl.store(begin_ptr + previous + 1 + step, edge, mask=step < gap)
    # The program with the last edge closes all destinations behind it.
    behind = tl.sum(tl.where(edge == edges - 1, here + 1, 0), axis=0)
    if behind > 0:
        for base in range(behind, count + 1, BLOCK):
            place = base + tl.arange(0, BLOCK)
            ending = tl.full((BLOCK,), 0, tl.int32) + edges
            tl.store(begin_ptr + place, ending, mask=place <= count)

    if (block + 1) * BLOCK <= edges:
        alike = tl.min(here, axis=0) == tl.max(here, axis=0)
        if alike:
            column = tl.arange(0, WIDTH)
            inside = column < width
            acc = tl.zeros((WIDTH,), dtype=tl.float32)
            for step in range(0, BLOCK, ROWS):
                at = block * BLOCK + step + tl.arange(0, ROWS)
                source = into_range(tl.load(source_ptr + at), count)
                weight = tl.load(weight_ptr + at)
                rows = tl.load(
                    features_ptr + source[:, None] * width + column[None, :],
                    mask=inside[None, :],
                    other=0.0,
                )
                acc += tl.sum(rows * weight[:, None], axis=0)
            tl.store(scratch_ptr + block * width + column, acc, mask=inside)


@triton.jit
def sum_slice(
    features_ptr,
    source_ptr,
    weight_ptr,
    begin_ptr,
    scratch_ptr,
    out_ptr,
    count,
    width,
    BLOCK: tl.constexpr,
    NODES: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    first_node = tl.program_id(0) * NODES
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < width
    row = tl.arange(0, NODES * LANES)
    lane = row % LANES
    node = first_node + row // LANES
    exists = node < count
    begin = tl.load(begin_ptr + node, mask=exists, other=0)
    end = tl.load(begin_ptr + node + 1, mask=exists, other=0)
    # Whole blocks of the destination were summed before; their edges are skipped.
    cut = (begin + BLOCK - 1) // BLOCK
    whole = tl.maximum(end // BLOCK - cut, 0)
    left = end - begin - whole * BLOCK
    longest = tl.max(left, axis=0)
    acc = tl.zeros((NODES * LANES, WIDTH), dtype=tl.float32)
    for step in range(0, longest, LANES):
        turn = step + lane
        known = turn < left
        edge = begin + turn
        edge += tl.where(edge >= cut * BLOCK, whole * BLOCK, 0)
        source = tl.load(source_ptr + edge, mask=known, other=0, eviction_policy="evict_first")
        weight = tl.load(weight_ptr + edge, mask=known, other=0.0, eviction_policy="evict_first")
        source = into_range(source, count)
        rows = tl.load(
            features_ptr + source[:, None] * width + column[None, :],
            mask=known[:, None] & inside[None, :],
            other=0.0,
        )
        acc += rows * weight[:, None]
    most = tl.max(whole, axis=0)
    for step in range(0, most, LANES):
        turn = step + lane
        part = tl.load(
            scratch_ptr + (cut + turn)[:, None] * width + column[None, :],
            mask=(turn < whole)[:, None] & inside[None, :],
            other=0.0,
        )
        acc += part
    result = tl.sum(tl.reshape(acc, (NODES, LANES, WIDTH)), axis=1)
    target = first_node + tl.arange(0, NODES)
    tl.store(
        out_ptr + target[:, None] * width + column[None, :],
        result,
        mask=(target < count)[:, None] & inside[None, :],
        cache_modifier=".cs",
    )


def weighted_segment_sum(features, source, destination, weight):
    """features [count, width] float32; source, destination [edges] int32, the latter sorted;
    weight [edges]. Row d of the result is the sum of weight[e] * features[source[e]] over the
    edges to d."""
    count, width = features.shape
    edges = source.shape[0]
    blocks = triton.cdiv(edges, BLOCK)
    out = torch.empty_like(features)
    begin = torch.empty(count + 1, device=features.device, dtype=torch.int32)
    scratch = torch.empty((blocks, width), device=features.device, dtype=torch.float32)
    find_borders[(blocks,)](
        features,
        source,
        destination,
        weight,
        begin,
        scratch,
        count,
        edges,
        width,
        BLOCK=BLOCK,
        ROWS=16,
        WIDTH=triton.next_power_of_2(width),
        num_warps=1,
    )
    columns = min(32, triton.next_power_of_2(width))
    sum_slice[(triton.cdiv(count, NODES), triton.cdiv(width, columns))](
        features,
        source,
        weight,
        begin,
        scratch,
        out,
        count,
        width,
        BLOCK=BLOCK,
        NODES=NODES,
        LANES=LANES,
        WIDTH=columns,
        num_warps=1,
    )
    return out
