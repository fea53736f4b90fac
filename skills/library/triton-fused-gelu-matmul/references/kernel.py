import torch
import triton
import triton.language as tl


@triton.jit
def product_bias_gelu(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    rows,
    inner,
    cols,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    # Tiles run through GROUP rows of tiles column by column, so that both operands stay in cache.
    program = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(cols, BLOCK_N)
    first = program // (GROUP * tiles_n) * GROUP
    high = min(tiles_m - first, GROUP)
    tile_m = first + program % (GROUP * tiles_n) % high
    tile_n = program % (GROUP * tiles_n) // high
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    x_ptr += m.to(tl.int64)[:, None] * inner
    weight_ptr += n.to(tl.int64)[None, :] * inner
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, inner, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        known = k < inner
        x = tl.load(x_ptr + k[None, :], mask=(m < rows)[:, None] & known[None, :], other=0.0)
        w = tl.load(weight_ptr + k[:, None], mask=known[:, None] & (n < cols)[None, :], other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    acc += tl.load(bias_ptr + n, mask=n < cols, other=0.0).to(tl.float32)[None, :]
    acc = 0.5 * acc * (1.0 + tl.erf(acc * 0.7071067811865476))
    place = out_ptr + m.to(tl.int64)[:, None] * cols + n[None, :]
    inside = (m < rows)[:, None] & (n < cols)[None, :]
    tl.store(place, acc.to(out_ptr.dtype.element_ty), mask=inside)


def run(x, weight, bias):
    inner, cols = x.shape[-1], weight.shape[0]
    rows = x.numel() // inner
    out = torch.empty((*x.shape[:-1], cols), device=x.device, dtype=x.dtype)
    product_bias_gelu[(triton.cdiv(rows, @{tile_m}) * triton.cdiv(cols, @{tile_n}),)](
        x,
        weight,
        bias,
        out,
        rows,
        inner,
        cols,
        GROUP=@{group},
        BLOCK_M=@{tile_m},
        BLOCK_N=@{tile_n},
        # The same bytes for every type.
        BLOCK_K=max(16, 2 * @{tile_k} // x.element_size()),
        num_warps=@{warps},
        num_stages=@{stages},
    )
    return out
