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
def conv_transpose(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    channels,
    filters,
    height,
    width,
    out_height,
    out_width,
    stride_c,
    stride_p,
    KERNEL_H: tl.constexpr,
    KERNEL_W: tl.constexpr,
    PAD: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    # A program makes both pixels of a pair in a row, for all output rows of one parity.
    taps_w: tl.constexpr = (KERNEL_W + 1) // 2
    taps: tl.constexpr = (KERNEL_H + 1) // 2 * taps_w
    tiles_f = tl.cdiv(filters, BLOCK_F)
    tile = tl.program_id(0) // tiles_f
    f = tl.program_id(0) % tiles_f * BLOCK_F + tl.arange(0, BLOCK_F)
    image = (tl.program_id(1) // 2).to(tl.int64)
    parity = tl.program_id(1) % 2
    half_width = (out_width + 1) // 2
    cell = tile * BLOCK_P + tl.arange(0, BLOCK_P)
    i, j = cell // half_width, cell % half_width
    x_ptr += image * channels * height * width
    chunks = tl.cdiv(channels, BLOCK_C)
    even = tl.zeros((BLOCK_F, BLOCK_P), dtype=tl.float32)
    odd = tl.zeros((BLOCK_F, BLOCK_P), dtype=tl.float32)
    for step in range(taps * chunks):
        tap = step // chunks
        c = step % chunks * BLOCK_C + tl.arange(0, BLOCK_C)
        down, right = tap // taps_w, tap % taps_w
        kh = (parity + PAD) % 2 + 2 * down
        ih = i + (parity + PAD) // 2 - down
        row_known = (ih >= 0) & (ih < height) & (kh < KERNEL_H)
        weight_rows = f[:, None] * channels + c[None, :]
        weight_known = (f < filters)[:, None] & (c < channels)[None, :]

        kw = PAD % 2 + 2 * right
        iw = j + PAD // 2 - right
        known = row_known & (iw >= 0) & (iw < width) & (kw < KERNEL_W)
        w = tl.load(
            weight_ptr + (kh * KERNEL_W + kw) * filters * channels + weight_rows,
            mask=weight_known & (kh < KERNEL_H) & (kw < KERNEL_W),
            other=0.0,
        )
        x = tl.load(
            x_ptr + c[:, None] * stride_c + (ih * width + iw)[None, :] * stride_p,
            mask=(c < channels)[:, None] & known[None, :],
            other=0.0,
        )
        even = tl.dot(w, x, even, input_precision="ieee")

        kw = (1 + PAD) % 2 + 2 * right
        iw = j + (1 + PAD) // 2 - right
        known = row_known & (iw >= 0) & (iw < width) & (kw < KERNEL_W)
        w = tl.load(
            weight_ptr + (kh * KERNEL_W + kw) * filters * channels + weight_rows,
            mask=weight_known & (kh < KERNEL_H) & (kw < KERNEL_W),
            other=0.0,
        )
        x = tl.load(
            x_ptr + c[:, None] * stride_c + (ih * width + iw)[None, :] * stride_p,
            mask=(c < channels)[:, None] & known[None, :],
            other=0.0,
        )
        odd = tl.dot(w, x, odd, input_precision="ieee")
    bias = tl.load(bias_ptr + f, mask=f < filters, other=0.0).to(tl.float32)[:, None]
    result = tl.interleave(even + bias, odd + bias)
    pair = tl.arange(0, 2 * BLOCK_P)
    cell = tile * BLOCK_P + pair // 2
    oh = cell // half_width * 2 + parity
    ow = cell % half_width * 2 + pair % 2
    place = (image * filters + f)[:, None] * out_height * out_width
    place += (oh * out_width + ow)[None, :]
    inside = (f < filters)[:, None] & ((oh < out_height) & (ow < out_width))[None, :]
    tl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), mask=inside)


def run(x, weight, bias):
    batch, channels, height, width = x.shape
    filters, kernel_h, kernel_w = weight.shape[1:]
    out_height = (height - 1) * 2 - 2 * @{pad} + kernel_h
    out_width = (width - 1) * 2 - 2 * @{pad} + kernel_w
    out = torch.empty((batch, filters, out_height, out_width), device=x.device, dtype=x.dtype)
    by_tap = weight.permute(2, 3, 1, 0).contiguous()
    stride_c, stride_p = height * width, 1
    if @{pixels_first}:
        x = turned(x, channels, height * width)
        stride_c, stride_p = 1, channels
    cells = (out_height + 1) // 2 * ((out_width + 1) // 2)
    grid = (triton.cdiv(cells, @{tile_p}) * triton.cdiv(filters, @{tile_f}), batch * 2)
    conv_transpose[grid](
        x,
        by_tap,
        bias,
        out,
        channels,
        filters,
        height,
        width,
        out_height,
        out_width,
        stride_c,
        stride_p,
        KERNEL_H=kernel_h,
        KERNEL_W=kernel_w,
        PAD=@{pad},
        BLOCK_F=@{tile_f},
        BLOCK_P=@{tile_p},
        BLOCK_C=max(16, 2 * @{tile_c} // x.element_size()),
        num_warps=@{warps},
        num_stages=@{stages},
    )
    return out
