"""Second-order factorization machine: for each row the sum of dot(v_i, v_j) over all pairs of its
fields, as half of (square of the sum minus sum of the squares) in each column. Two kernels: over
field vectors in memory, and over ids, which gathers the vectors and never stores them.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def interact_vectors(
    vector_ptr,
    out_ptr,
    rows,
    fields,
    width: tl.constexpr,
    ROWS: tl.constexpr,
    FIELDS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)[None, None, :]
    # `width` is a constant, or rows of 8 or 24 columns would be read element by element.
    # Elements past 2^31 are common: 2 million rows of 40 fields of 32 columns.
    base = row.to(tl.int64)[:, None, None] * fields * width + column
    inside = (row < rows)[:, None, None] & (column < width)
    total = tl.zeros((ROWS, FIELDS, WIDTH), dtype=tl.float32)
    square = tl.zeros((ROWS, FIELDS, WIDTH), dtype=tl.float32)
    for start in range(0, fields, FIELDS):
        field = start + tl.arange(0, FIELDS)[None, :, None]
        vector = tl.load(
            vector_ptr + base + field * width,
            mask=inside & (field < fields),
            other=0.0,
            eviction_policy="evict_first",
        ).to(tl.float32)
        # Lanes keep sums of their own; they meet once, after the last field.
        total += vector
        square += vector * vector
    column_sum = tl.sum(total, axis=1)
    pairs = column_sum * column_sum - tl.sum(square, axis=1)
    tl.store(out_ptr + row, 0.5 * tl.sum(pairs, axis=1), mask=row < rows)


@triton.jit
def interact_ids(
    id_ptr,
    first_ptr,
    table_ptr,
    weight_ptr,
    out_ptr,
    bias,
    rows,
    fields,
    width: tl.constexpr,
    ROWS: tl.constexpr,
    FIELDS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)[None, None, :]
    total = tl.zeros((ROWS, FIELDS, WIDTH), dtype=tl.float32)
    square = tl.zeros((ROWS, FIELDS, WIDTH), dtype=tl.float32)
    linear = tl.zeros((ROWS, FIELDS), dtype=tl.float32)
    for start in range(0, fields, FIELDS):
        field = start + tl.arange(0, FIELDS)[None, :]
        known = (row < rows)[:, None] & (field < fields)
        # Two dependent loads: all ids of the tile first, then all its vectors are in flight.
        entry = tl.load(id_ptr + row.to(tl.int64)[:, None] * fields + field, mask=known, other=0)
        entry = entry.to(tl.int64) + tl.load(first_ptr + field, mask=known, other=0)
        linear += tl.load(weight_ptr + entry, mask=known, other=0.0).to(tl.float32)
        vector = tl.load(
            table_ptr + entry[:, :, None] * width + column,
            mask=known[:, :, None] & (column < width),
            other=0.0,
        ).to(tl.float32)
        total += vector
        square += vector * vector
    column_sum = tl.sum(total, axis=1)
    pairs = column_sum * column_sum - tl.sum(square, axis=1)
    result = bias + tl.sum(linear, axis=1) + 0.5 * tl.sum(pairs, axis=1)
    tl.store(out_ptr + row, result, mask=row < rows)


def tile(fields, width, deep, elements):
    """Rows, fields and columns of a tile, powers of two, for `deep` fields at a time."""
    columns = triton.next_power_of_2(width)
    deep = min(triton.next_power_of_2(fields), deep)
    return max(1, elements // (columns * deep)), deep, columns


def factorization_machine(vectors):
    """vectors [rows, fields, width], contiguous, float32, float16 or bfloat16; returns [rows]
    float32."""
    rows, fields, width = vectors.shape
    out = torch.empty(rows, device=vectors.device, dtype=torch.float32)
    # One warp and 4 KiB a step, of which 1 KiB or more lies together. Tiles of all fields with
    # four warps take up to four times as long.
    size = vectors.element_size()
    deep = max(8, 1024 // (triton.next_power_of_2(width) * size))
    many, deep, columns = tile(fields, width, deep, 4096 // size)
    interact_vectors[(triton.cdiv(rows, many),)](
        vectors, out, rows, fields, width, ROWS=many, FIELDS=deep, WIDTH=columns, num_warps=1
    )
    return out


def factorization_machine_of_ids(ids, first, table, weight, bias):
    """ids [rows, fields] count from the first row of their field, first [fields] int64, in table
    [entries, width]; weight [entries] is the linear term. Returns the logits [rows] float32."""
    rows, fields = ids.shape
    width = table.shape[1]
    out = torch.empty(rows, device=ids.device, dtype=torch.float32)
    many, deep, columns = tile(fields, width, 8, 1024)
    interact_ids[(triton.cdiv(rows, many),)](
        ids,
        first,
        table,
        weight,
        out,
        bias,
        rows,
        fields,
        width,
        ROWS=many,
        FIELDS=deep,
        WIDTH=columns,
        num_warps=1,
    )
    return out
