"""NVFP4 of a matrix in Triton: E2M1 values, two a byte, one E4M3 scale for 16 neighbours of a row,
and one float32 scale for the tensor. The scales leave in the order that tcgen05 takes.

x[rows][K] becomes values[rows][K/2] uint8, the even column in the low half of the byte, and
scales[1][rows/128][K/64][2][256] float8_e4m3fn, where byte 16 r + 4 g + s of 512 is scale s of row
32 g + r. K: a multiple of 64. x is contiguous and about value * scale * tensor_scale. A NaN in it
becomes 0 without a word where the tensor's scale is given; a computed one is NaN itself.
"""

import torch
import triton
import triton.language as tl

LARGEST = 6.0 * 448.0  # of E2M1 times of E4M3: what one tensor scale of 1 can hold


@triton.jit
def e2m1(x):
    """The code of the nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6, halves to the even code; what lies
    above 6 becomes 6."""
    size = tl.abs(x)
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    code += (size > 5.0).to(tl.int32)
    return code + (x < 0).to(tl.int32) * 8


@triton.jit
def nvfp4_kernel(
    x_ptr,
    tensor_scale_ptr,
    values_ptr,
    scales_ptr,
    rows,
    K,
    COLUMNS: tl.constexpr,  # a multiple of 64
):
    ROWS: tl.constexpr = 128  # those of a block of scales
    GROUPS: tl.constexpr = COLUMNS // 16
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < K)[None, :]
    place = row.to(tl.int64)[:, None]
    x = tl.load(x_ptr + place * K + column[None, :], mask=inside, other=0.0).to(tl.float32)

    tensor_scale = tl.load(tensor_scale_ptr)
    groups = x.reshape(ROWS, GROUPS, 16)
    # Rounded before it divides: the values have to fit the scale that the product will use.
    scale = (tl.max(tl.abs(groups), axis=2) / (6.0 * tensor_scale)).to(tl.float8e4nv)
    factor = scale.to(tl.float32) * tensor_scale
    inverse = 1.0 / tl.where(factor > 0, factor, float("inf"))  # a group of zeros stays zeros
    low, high = tl.split(e2m1(groups * inverse[:, :, None]).reshape(ROWS, COLUMNS // 2, 2))
    byte = tl.program_id(1) * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    kept = (row < rows)[:, None] & (byte < K // 2)[None, :]
    packed = (low | high << 4).to(tl.uint8)
    tl.store(values_ptr + place * (K // 2) + byte[None, :], packed, mask=kept)

    # Rows and groups that only pad the last block get scale 0.
    r = tl.arange(0, ROWS)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    block = tl.program_id(0).to(tl.int64) * tl.cdiv(K, 64) + group // 4
    at = block[None, :] * 512 + (r % 32 * 16 + r // 32 * 4)[:, None] + (group % 4)[None, :]
    tl.store(scales_ptr + at, scale, mask=(group < tl.cdiv(K, 64) * 4)[None, :])


def nvfp4_quantise(x, tensor_scale=None, columns=64):
    """Values, packed scales and the tensor's scale, a float32 on the device. The default scale
    makes the largest value 6 * 448, which costs a pass over x: state one from calibration."""
    rows, K = x.shape
    assert K % 64 == 0 and x.is_contiguous()
    if tensor_scale is None:
        tensor_scale = (x.abs().amax().float() / LARGEST).clamp(min=1e-30).reshape(1)
    blocks = triton.cdiv(rows, 128)
    values = torch.empty((rows, K // 2), device=x.device, dtype=torch.uint8)
    scales = torch.empty((1, blocks, K // 64, 2, 256), device=x.device, dtype=torch.float8_e4m3fn)
    grid = (blocks, triton.cdiv(K, columns))
    nvfp4_kernel[grid](x, tensor_scale, values, scales, rows, K, COLUMNS=columns, num_warps=8)
    return values, scales, tensor_scale
