"""Weighted sums of gathered rows by sorted destination: a sparse matrix times a dense one, with
segments of any length, without atomics. Two kernels: where the edges of each destination lie, with
sums of whole chunks, in Triton; then four destinations and 32 columns a warp, in Gluon.
"""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

CHUNK = 256  # edges that are summed at once where all have one destination
BLOCK = 2048  # edges of a program that looks for the ends of runs
HELPERS = 1056  # programs that look for whole chunks, eight a multiprocessor of 132


@triton.jit
def into_range(value, COUNT: tl.constexpr):
    rest = value % COUNT
    return tl.where(rest < 0, rest + COUNT, rest)


@triton.jit
def find_runs(
    features,
    source,
    destination,
    weight,
    bounds,
    partial,
    EDGES: tl.constexpr,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDE: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    HELPERS: tl.constexpr,
    TESTS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    pid = tl.program_id(0)
    if pid < HELPERS:
        # Aligned chunks of edges that lie in one destination are summed here.
        test = pid + HELPERS * tl.arange(0, TESTS)
        known = test < CHUNKS
        left = tl.load(destination + test * CHUNK, mask=known, other=0)
        right = tl.load(destination + test * CHUNK + (CHUNK - 1), mask=known, other=0)
        whole = known & (into_range(left, COUNT) == into_range(right, COUNT))
        found = tl.max(tl.where(whole, 1, 0), 0)
        if found > 0:
            for turn in range(TESTS):
                chunk = pid + HELPERS * turn
                one = tl.load(destination + chunk * CHUNK, mask=chunk < CHUNKS, other=0)
                two = tl.load(
                    destination + chunk * CHUNK + (CHUNK - 1), mask=chunk < CHUNKS, other=0
                )
                if (chunk < CHUNKS) & (into_range(one, COUNT) == into_range(two, COUNT)):
                    lane = tl.arange(0, WIDE)
                    part = tl.zeros([ROWS, WIDE], dtype=tl.float32)
                    for at in range(0, CHUNK, ROWS):
                        spot = chunk * CHUNK + at + tl.arange(0, ROWS)
                        line = into_range(tl.load(source + spot), COUNT)
                        scale = tl.load(weight + spot)
                        data = tl.load(
                            features + line[:, None] * WIDTH + lane[None, :],
                            mask=lane[None, :] < WIDTH,
                            other=0.0,
                        )
                        part += data * scale[:, None]
                    tl.store(partial + chunk * WIDTH + lane, tl.sum(part, 0), mask=lane < WIDTH)
    else:
        # Where the run of each destination begins and ends; without edges both stay zero.
        edge = (pid - HELPERS) * BLOCK + tl.arange(0, BLOCK)
        live = edge < EDGES
        inner = live & (edge > 0)
        here = into_range(tl.load(destination + edge, mask=live, other=0), COUNT)
        before = into_range(tl.load(destination + (edge - 1), mask=inner, other=0), COUNT)
        change = inner & (here != before)
        tl.store(bounds + here, edge, mask=change | (edge == 0))
        tl.store(bounds + COUNT + before, edge, mask=change)
        tl.store(bounds + COUNT + here, edge + 1, mask=edge == EDGES - 1)


@gluon.jit
def into_range_gluon(value, COUNT: gl.constexpr):
    rest = value % COUNT
    return gl.where(rest < 0, rest + COUNT, rest)


@gluon.jit
def fetch(source, weight, begin, head, gap, count, place, at):
    # One lane an edge: the lanes of a row would otherwise repeat these loads and remainders.
    spot = place[:, None] + at
    inside = spot < count[None, :]
    edge = begin[None, :] + spot + (spot >= head[None, :]).to(gl.int32) * gap[None, :]
    row = gl.load(source + edge, mask=inside, other=0, eviction_policy="evict_first")
    factor = gl.load(weight + edge, mask=inside, other=0.0, eviction_policy="evict_first")
    return row, factor


@gluon.jit
def sum_runs(
    features,
    source,
    weight,
    bounds,
    partial,
    result,
    COUNT: gl.constexpr,
    WIDTH: gl.constexpr,
    CHUNK: gl.constexpr,
    EVEN: gl.constexpr,
):
    # Of a warp: four destinations, eight edges of each, 32 columns (16 bytes a lane).
    SEGMENTS: gl.constexpr = 4
    TOGETHER: gl.constexpr = 8
    COLUMNS: gl.constexpr = 32
    cube: gl.constexpr = gl.BlockedLayout([8, 1, 4], [1, 4, 8], [1, 1, 1], [2, 1, 0])
    spread: gl.constexpr = gl.SliceLayout(2, cube)
    flat: gl.constexpr = gl.SliceLayout(0, cube)
    each: gl.constexpr = gl.BlockedLayout([1, 1], [8, 4], [1, 1], [0, 1])

    first_segment = gl.program_id(0) * SEGMENTS
    first_column = gl.program_id(1) * COLUMNS
    column = first_column + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, gl.SliceLayout(1, cube)))
    segment = first_segment + gl.arange(0, SEGMENTS, layout=gl.SliceLayout(0, each))
    place = gl.arange(0, TOGETHER, layout=gl.SliceLayout(1, each))
    live = segment < COUNT
    begin = gl.load(bounds + segment, mask=live, other=0)
    stop = gl.load(bounds + (segment + COUNT), mask=live, other=0)

    first = (begin + (CHUNK - 1)) // CHUNK
    chunks = gl.maximum(stop // CHUNK - first, 0)
    gap = chunks * CHUNK
    head = first * CHUNK - begin
    count = stop - begin - gap
    most = gl.max(count, 0)
    most_chunks = gl.max(chunks, 0)

    total = gl.zeros([SEGMENTS, COLUMNS], gl.float32, flat)

    row, factor = fetch(source, weight, begin, head, gap, count, place, 0)
    for at in range(0, most, TOGETHER):
        # The next indices and weights are on their way while these rows are gathered.
        row_next, factor_next = fetch(source, weight, begin, head, gap, count, place, at + TOGETHER)
        taken = (place[:, None] + at) < count[None, :]
        # Only the number of the row, -1 where there is none, and the weight go to all its lanes.
        line = gl.convert_layout(gl.where(taken, into_range_gluon(row, COUNT), -1), spread)
        scale = gl.convert_layout(factor, spread)
        mask = (line >= 0)[:, :, None]
        if not EVEN:
            mask = mask & (column < WIDTH)[None, None, :]
        values = gl.load(
            features + (line[:, :, None] * WIDTH + column[None, None, :]), mask=mask, other=0.0
        )
        total += gl.sum(values * scale[:, :, None], 0)
        row = row_next
        factor = factor_next

    # Sums of whole chunks, where a run is that long.
    for at in range(0, most_chunks, TOGETHER):
        which = place[:, None] + at
        wanted = which < chunks[None, :]
        number = gl.convert_layout(gl.where(wanted, first[None, :] + which, -1), spread)
        known = (number >= 0)[:, :, None]
        if not EVEN:
            known = known & (column < WIDTH)[None, None, :]
        sums = gl.load(
            partial + (number[:, :, None] * WIDTH + column[None, None, :]), mask=known, other=0.0
        )
        total += gl.sum(sums, 0)

    out_segment = first_segment + gl.arange(0, SEGMENTS, layout=gl.SliceLayout(1, flat))
    out_column = first_column + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, flat))
    kept = (out_segment < COUNT)[:, None] & (out_column < WIDTH)[None, :]
    gl.store(
        result + (out_segment[:, None] * WIDTH + out_column[None, :]),
        total,
        mask=kept,
        eviction_policy="evict_first",
    )


def weighted_segment_sum(features, source, destination, weight):
    """features [count, width] float32; source, destination [edges] int32, the latter sorted;
    weight [edges] float32. Row d of the result is the sum of weight[e] * features[source[e]] over
    the edges to d."""
    count, width = features.shape
    edges = source.shape[0]
    chunks = edges // CHUNK
    helpers = min(chunks, HELPERS)
    tests = max(2, triton.next_power_of_2(triton.cdiv(chunks, max(helpers, 1))))
    out = torch.empty_like(features)
    bounds = torch.zeros(2 * count, dtype=torch.int32, device=features.device)
    partial = torch.empty(max(chunks, 1) * width, dtype=torch.float32, device=features.device)
    find_runs[(helpers + triton.cdiv(edges, BLOCK),)](
        features,
        source,
        destination,
        weight,
        bounds,
        partial,
        EDGES=edges,
        COUNT=count,
        WIDTH=width,
        WIDE=triton.next_power_of_2(width),
        CHUNK=CHUNK,
        CHUNKS=chunks,
        HELPERS=helpers,
        TESTS=tests,
        BLOCK=BLOCK,
        ROWS=32,
        num_warps=4,
        num_stages=1,
    )
    sum_runs[(triton.cdiv(count, 4), triton.cdiv(width, 32))](
        features,
        source,
        weight,
        bounds,
        partial,
        out,
        COUNT=count,
        WIDTH=width,
        CHUNK=CHUNK,
        EVEN=width % 32 == 0,
        num_warps=1,
    )
    return out
