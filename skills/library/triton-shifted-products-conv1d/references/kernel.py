import torch
import triton
import triton.language as tl


@triton.jit
def pixels_first(x_ptr, y_ptr, channels, pixels, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr):
    # [image, channel, pixel] to [image, pixel, channel]
    image = tl.program_id(2).to(tl.int64) * channels * pixels
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    pixel = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = (channel < channels)[:, None] & (pixel < pixels)[None, :]
    x = tl.load(x_ptr + image + channel[:, None] * pixels + pixel[None, :], mask=inside)
    place = image + pixel[:, None] * channels + channel[None, :]
    tl.store(y_ptr + place, tl.trans(x), mask=tl.trans(inside))


def turned(x, channels, pixels):
    y = torch.empty_like(x)
    grid = (triton.cdiv(pixels, 64), triton.cdiv(channels, 64), x.shape[0])
    pixels_first[grid](x, y, channels, pixels, BLOCK_C=64, BLOCK_P=64, num_warps=4)
    return y


@triton.jit
def shifted_products(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    channels,
    filters,
    length,
    out_length,
    stride_c,
    stride_p,
    TAPS: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    tiles_f = tl.cdiv(filters, BLOCK_F)
    f = tl.program_id(0) % tiles_f * BLOCK_F + tl.arange(0, BLOCK_F)
    p = tl.program_id(0) // tiles_f * BLOCK_P + tl.arange(0, BLOCK_P)
    sequence = tl.program_id(1).to(tl.int64)
    x_ptr += sequence * channels * length
    out_ptr += sequence * filters * out_length
    acc = tl.zeros((BLOCK_F, BLOCK_P), dtype=tl.float32)
    # Taps innermost: the same channels are read again while they are in the first-level cache.
    for step in range(tl.cdiv(channels, BLOCK_C) * TAPS):
        tap = step % TAPS
        c = step // TAPS * BLOCK_C + tl.arange(0, BLOCK_C)
        known = c < channels
        place = p + tap - PAD
        w = tl.load(
            weight_ptr + tap * filters * channels + f[:, None] * channels + c[None, :],
            mask=(f < filters)[:, None] & known[None, :],
            other=0.0,
        )
        x = tl.load(
            x_ptr + c[:, None] * stride_c + place[None, :] * stride_p,
            mask=known[:, None] & ((place >= 0) & (place < length))[None, :],
            other=0.0,
        )
        acc = tl.dot(w, x, acc, input_precision="ieee")
    acc += tl.load(bias_ptr + f, mask=f < filters, other=0.0).to(tl.float32)[:, None]
    inside = (f < filters)[:, None] & (p < out_length)[None, :]
    where = f[:, None] * out_length + p[None, :]
    tl.store(out_ptr + where, acc.to(out_ptr.dtype.element_ty), mask=inside)


def run(x, weight, bias):
    batch, channels, length = x.shape
    filters, taps = weight.shape[0], weight.shape[2]
    out_length = length + 2 * @{pad} - taps + 1
    out = torch.empty((batch, filters, out_length), device=x.device, dtype=x.dtype)
    by_tap = weight.permute(2, 0, 1).contiguous()
    stride_c, stride_p = length, 1
    if @{pixels_first}:
        x = turned(x, channels, length)
        stride_c, stride_p = 1, channels
    grid = (triton.cdiv(filters, @{tile_f}) * triton.cdiv(out_length, @{tile_p}), batch)
    shifted_products[grid](
        x,
        by_tap,
        bias,
        out,
        channels,
        filters,
        length,
        out_length,
        stride_c,
        stride_p,
        TAPS=taps,
        PAD=@{pad},
        BLOCK_F=@{tile_f},
        BLOCK_P=@{tile_p},
        BLOCK_C=max(16, 2 * @{tile_c} // x.element_size()),
        num_warps=@{warps},
        num_stages=@{stages},
    )
    return out
