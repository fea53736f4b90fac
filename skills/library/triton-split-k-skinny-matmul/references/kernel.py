import torch
import triton
import triton.language as tl


@triton.jit
def partial_products(
    x_ptr,
    weight_ptr,
    part_ptr,
    rows,
    inner,
    cols,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
):
    # The long side of the weight is the tall side of the tile; the few rows are its width.
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, ROWS)
    part = tl.program_id(1)
    steps = tl.cdiv(tl.cdiv(inner, BLOCK_K), SPLIT)
    weight_ptr += n.to(tl.int64)[:, None] * inner
    acc = tl.zeros((BLOCK_N, ROWS), dtype=tl.float32)
    for step in range(steps):
        k = (part * steps + step) * BLOCK_K + tl.arange(0, BLOCK_K)
        known = k < inner
        w = tl.load(weight_ptr + k[None, :], mask=(n < cols)[:, None] & known[None, :], other=0.0)
        x = tl.load(
            x_ptr + m[None, :] * inner + k[:, None],
            mask=(m < rows)[None, :] & known[:, None],
            other=0.0,
        )
        acc = tl.dot(w, x, acc, input_precision="ieee")
    place = part_ptr + part * rows * cols + m[None, :] * cols + n[:, None]
    inside = (m < rows)[None, :] & (n < cols)[:, None]
    tl.store(place, acc.to(part_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_parts(part_ptr, out_ptr, count, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    given = place < count
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in tl.static_range(SPLIT):
        acc += tl.load(part_ptr + part * count + place, mask=given, other=0.0)
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=given)


def run(x, weight):
    inner, cols = x.shape[-1], weight.shape[0]
    rows = x.numel() // inner
    out = torch.empty((*x.shape[:-1], cols), device=x.device, dtype=x.dtype)
    split = @{split}
    parts = out
    if split > 1:
        parts = torch.empty((split, rows, cols), device=x.device, dtype=torch.float32)
    partial_products[(triton.cdiv(cols, @{tile_n}), split)](
        x,
        weight,
        parts,
        rows,
        inner,
        cols,
        ROWS=max(16, triton.next_power_of_2(rows)),
        BLOCK_N=@{tile_n},
        # The same bytes for every type.
        BLOCK_K=max(16, 2 * @{tile_k} // x.element_size()),
        SPLIT=split,
        num_warps=@{warps},
        num_stages=@{stages},
    )
    if split > 1:
        count = rows * cols
        add_parts[(triton.cdiv(count, 256),)](
            parts, out, count, SPLIT=split, BLOCK=256, num_warps=4
        )
    return out
