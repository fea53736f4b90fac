"""Sums of consecutive rows: segments by offsets (CSR), or by a sorted id of each row. Two kernels:
sums of whole blocks that lie in one long segment, then several segments a program.
"""

import torch
import triton
import triton.language as tl

# Rows that one program sums of a long segment. Segments below 2 * BLOCK need no first kernel.
BLOCK = 512


@triton.jit
def sum_blocks(
    value_ptr,
    offset_ptr,
    part_ptr,
    segments,
    width: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    first = block * BLOCK
    # The segment of the first row: the last offset that is not above it.
    low = tl.zeros((), tl.int32)
    high = tl.zeros((), tl.int32) + segments
    for _ in range(STEPS):
        middle = (low + high) // 2
        above = tl.load(offset_ptr + middle) > first
        high = tl.where(above, middle, high)
        low = tl.where(above, low, middle)
    if tl.load(offset_ptr + low + 1) >= first + BLOCK:
        column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
        total = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
        for step in range(0, BLOCK, ROWS):
            row = first + step + tl.arange(0, ROWS)[:, None]
            value = tl.load(value_ptr + row * width + column, mask=column < width, other=0.0)
            total += value.to(tl.float32)
        place = part_ptr + block * width + column
        tl.store(place, tl.sum(total, axis=0)[None, :], mask=column < width)


@triton.jit
def sum_segments(
    value_ptr,
    offset_ptr,
    part_ptr,
    out_ptr,
    segments,
    width: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    SEGMENTS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    lane = tl.arange(0, SEGMENTS * LANES) % LANES
    segment = tl.program_id(0) * SEGMENTS + tl.arange(0, SEGMENTS * LANES) // LANES
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    exists = segment < segments
    begin = tl.load(offset_ptr + segment, mask=exists, other=0).to(tl.int64)
    end = tl.load(offset_ptr + segment + 1, mask=exists, other=0).to(tl.int64)
    # Rows of whole blocks were summed before: this program reads the rows at both ends.
    cut = (begin + BLOCK - 1) // BLOCK
    whole = tl.maximum(end // BLOCK - cut, 0) if SPLIT else tl.zeros_like(begin)
    left = end - begin - whole * BLOCK
    total = tl.zeros((SEGMENTS * LANES, WIDTH), dtype=tl.float32)
    for step in range(0, tl.max(left, axis=0).to(tl.int32), LANES):
        turn = step + lane
        row = begin + turn
        if SPLIT:
            row += tl.where(row >= cut * BLOCK, whole * BLOCK, 0)
        value = tl.load(
            value_ptr + row[:, None] * width + column,
            mask=(turn < left)[:, None] & (column < width),
            other=0.0,
            eviction_policy="evict_first",
        )
        total += value.to(tl.float32)
    if SPLIT:
        for step in range(0, tl.max(whole, axis=0).to(tl.int32), LANES):
            turn = step + lane
            total += tl.load(
                part_ptr + (cut + turn)[:, None] * width + column,
                mask=(turn < whole)[:, None] & (column < width),
                other=0.0,
            )
    result = tl.sum(tl.reshape(total, (SEGMENTS, LANES, WIDTH)), axis=1)
    target = tl.program_id(0).to(tl.int64) * SEGMENTS + tl.arange(0, SEGMENTS)[:, None]
    tl.store(
        out_ptr + target * width + column,
        result.to(out_ptr.dtype.element_ty),
        mask=(target < segments) & (column < width),
    )


def offsets_of(ids, segments):
    """Offsets [segments + 1] int64 of sorted ids [rows], each from 0 to segments - 1."""
    borders = torch.arange(segments + 1, device=ids.device, dtype=ids.dtype)
    return torch.searchsorted(ids, borders)


def segment_sum(values, offsets, split=True):
    """values [rows, width], contiguous, offsets [segments + 1] from 0 to rows; returns the sums
    [segments, width] in the type of the values, added in float32. `split=False` saves a launch
    where no segment is long."""
    rows, width = values.shape
    segments = offsets.shape[0] - 1
    out = torch.empty((segments, width), device=values.device, dtype=values.dtype)
    # 128 bytes of a row for each lane: whole cache lines, and tiles of the same bytes for any type.
    columns = min(128 // values.element_size(), triton.next_power_of_2(width))
    slices = triton.cdiv(width, columns)
    blocks = rows // BLOCK if split else 0
    # Of several segments eight rows each, or of one long segment 32 rows at a time.
    long = rows >= 256 * segments
    together, lanes, warps = (1, 32, 4) if long else (8 // values.element_size(), 8, 1)
    part = torch.empty((max(blocks, 1), width), device=values.device, dtype=torch.float32)
    if blocks:
        sum_blocks[(blocks, slices)](
            values,
            offsets,
            part,
            segments,
            width,
            STEPS=segments.bit_length(),
            BLOCK=BLOCK,
            ROWS=32,
            WIDTH=columns,
            num_warps=4,
        )
    sum_segments[(triton.cdiv(segments, together), slices)](
        values,
        offsets,
        part,
        out,
        segments,
        width,
        SPLIT=split,
        BLOCK=BLOCK,
        SEGMENTS=together,
        LANES=lanes,
        WIDTH=columns,
        num_warps=warps,
    )
    return out


def segment_sum_of_ids(values, ids, segments):
    """The same for a sorted id of each row."""
    return segment_sum(values, offsets_of(ids, segments))
