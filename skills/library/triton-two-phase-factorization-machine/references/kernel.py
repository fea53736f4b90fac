import torch
import triton
import triton.language as tl


@triton.jit
def interactions(
    x_ptr,
    y_ptr,
    out_ptr,
    features,
    width,
    projected,
    WIDTH: tl.constexpr,
    PROJECTED: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    member = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, WIDTH)
    outs = tl.arange(0, PROJECTED)
    x_ptr += member * features * width
    out_ptr += member * features * projected
    total = tl.zeros((WIDTH, PROJECTED), dtype=tl.float32)
    for start in range(0, features, BLOCK_F):
        rows = start + tl.arange(0, BLOCK_F)
        known = rows < features
        x = tl.load(
            x_ptr + rows[:, None] * width + cols[None, :],
            mask=known[:, None] & (cols < width)[None, :],
            other=0.0,
        )
        y = tl.load(
            y_ptr + rows[:, None] * projected + outs[None, :],
            mask=known[:, None] & (outs < projected)[None, :],
            other=0.0,
        )
        total = tl.dot(tl.trans(x), y, total, input_precision="ieee")
    product = total.to(x_ptr.dtype.element_ty)
    for start in range(0, features, BLOCK_F):
        rows = start + tl.arange(0, BLOCK_F)
        known = rows < features
        x = tl.load(
            x_ptr + rows[:, None] * width + cols[None, :],
            mask=known[:, None] & (cols < width)[None, :],
            other=0.0,
        )
        result = tl.dot(x, product, input_precision="ieee")
        tl.store(
            out_ptr + rows[:, None] * projected + outs[None, :],
            result.to(out_ptr.dtype.element_ty),
            mask=known[:, None] & (outs < projected)[None, :],
        )


def run(x, y):
    batch, features, width = x.shape
    projected = y.shape[1]
    out = torch.empty((batch, features, projected), device=x.device, dtype=x.dtype)
    interactions[(batch,)](
        x,
        y,
        out,
        features,
        width,
        projected,
        WIDTH=max(16, triton.next_power_of_2(width)),
        PROJECTED=max(16, triton.next_power_of_2(projected)),
        # The same bytes for every type.
        BLOCK_F=max(16, 2 * @{block_f} // x.element_size()),
        num_warps=@{warps},
        num_stages=@{stages},
    )
    return out
