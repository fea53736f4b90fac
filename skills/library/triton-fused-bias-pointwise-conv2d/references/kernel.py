import torch
import triton
import triton.language as tl


@triton.jit
def mix_channels(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    channels,
    filters,
    pixels,
    FILTERS_FIRST: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    image = tl.program_id(1).to(tl.int64)
    tiles_f, tiles_p = tl.cdiv(filters, BLOCK_F), tl.cdiv(pixels, BLOCK_P)
    if FILTERS_FIRST:
        tile_f, tile_p = tl.program_id(0) % tiles_f, tl.program_id(0) // tiles_f
    else:
        tile_f, tile_p = tl.program_id(0) // tiles_p, tl.program_id(0) % tiles_p
    f = tile_f * BLOCK_F + tl.arange(0, BLOCK_F)
    p = tile_p * BLOCK_P + tl.arange(0, BLOCK_P)
    x_ptr += image * channels * pixels
    out_ptr += image * filters * pixels
    acc = tl.zeros((BLOCK_F, BLOCK_P), dtype=tl.float32)
    for start in range(0, channels, BLOCK_C):
        c = start + tl.arange(0, BLOCK_C)
        known = c < channels
        w = tl.load(
            weight_ptr + f[:, None] * channels + c[None, :],
            mask=(f < filters)[:, None] & known[None, :],
            other=0.0,
        )
        x = tl.load(
            x_ptr + c[:, None] * pixels + p[None, :],
            mask=known[:, None] & (p < pixels)[None, :],
            other=0.0,
        )
        acc = tl.dot(w, x, acc, input_precision="ieee")
    acc += tl.load(bias_ptr + f, mask=f < filters, other=0.0).to(tl.float32)[:, None]
    place = f[:, None] * pixels + p[None, :]
    inside = (f < filters)[:, None] & (p < pixels)[None, :]
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=inside)


def run(x, weight, bias):
    batch, channels, height, width = x.shape
    filters, pixels = weight.shape[0], height * width
    out = torch.empty((batch, filters, height, width), device=x.device, dtype=x.dtype)
    grid = (triton.cdiv(filters, @{tile_f}) * triton.cdiv(pixels, @{tile_p}), batch)
    mix_channels[grid](
        x,
        weight,
        bias,
        out,
        channels,
        filters,
        pixels,
        FILTERS_FIRST=@{filters_first},
        BLOCK_F=@{tile_f},
        BLOCK_P=@{tile_p},
        # The same bytes for every type.
        BLOCK_C=max(16, 2 * @{tile_c} // x.element_size()),
        num_warps=@{warps},
        num_stages=@{stages},
    )
    return out
