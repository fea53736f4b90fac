import torch
import triton
import triton.language as tl


@triton.jit
def member_product(
    left_ptr,
    right_ptr,
    out_ptr,
    rows,
    inner,
    cols,
    COLS_FIRST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    # All tiles of a member follow each other: its matrices are read from memory once.
    tiles_m, tiles_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(cols, BLOCK_N)
    member = (tl.program_id(0) // (tiles_m * tiles_n)).to(tl.int64)
    tile = tl.program_id(0) % (tiles_m * tiles_n)
    if COLS_FIRST:
        tile_m, tile_n = tile // tiles_n, tile % tiles_n
    else:
        tile_m, tile_n = tile % tiles_m, tile // tiles_m
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    left_ptr += member * rows * inner
    right_ptr += member * inner * cols
    out_ptr += member * rows * cols
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, inner, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        known = k < inner
        a = tl.load(
            left_ptr + m[:, None] * inner + k[None, :],
            mask=(m < rows)[:, None] & known[None, :],
            other=0.0,
        )
        b = tl.load(
            right_ptr + k[:, None] * cols + n[None, :],
            mask=known[:, None] & (n < cols)[None, :],
            other=0.0,
        )
        acc = tl.dot(a, b, acc, input_precision="ieee")
    place = out_ptr + m[:, None] * cols + n[None, :]
    inside = (m < rows)[:, None] & (n < cols)[None, :]
    tl.store(place, acc.to(out_ptr.dtype.element_ty), mask=inside)


def run(left, right):
    batch, rows, inner = left.shape
    cols = right.shape[2]
    out = torch.empty((batch, rows, cols), device=left.device, dtype=left.dtype)
    tiles = triton.cdiv(rows, @{tile_m}) * triton.cdiv(cols, @{tile_n})
    member_product[(batch * tiles,)](
        left,
        right,
        out,
        rows,
        inner,
        cols,
        COLS_FIRST=@{cols_first},
        BLOCK_M=@{tile_m},
        BLOCK_N=@{tile_n},
        # The same bytes for every type.
        BLOCK_K=max(16, 2 * @{tile_k} // left.element_size()),
        num_warps=@{warps},
        num_stages=@{stages},
    )
    return out
