"""Product of at most 16 rows of bf16 and 4-bit weights with a scale and a zero for each group of
128. A first kernel orders the activations as the packed words need them.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def spread_rows(x_ptr, spread_ptr, sum_ptr, rows, depth, ROWS: tl.constexpr, GROUP: tl.constexpr):
    # spread[group][nibble][row][word]: the weight `nibble` of a word meets x[4 * word + nibble].
    group = tl.program_id(0)
    m = tl.arange(0, ROWS)[:, None]
    k = tl.arange(0, GROUP)[None, :]
    x = tl.load(x_ptr + m * depth + group * GROUP + k, mask=(m < rows) & (k < GROUP), other=0.0)
    x = x.to(tl.bfloat16)
    WORDS: tl.constexpr = GROUP // 4
    place = ((k % 4) * ROWS + m) * WORDS + k // 4
    tl.store(spread_ptr + group * ROWS * GROUP + place, x)
    tl.store(sum_ptr + group * ROWS + tl.arange(0, ROWS), tl.sum(x.to(tl.float32), axis=1))


@triton.jit
def first_nibble(word):
    return tl.inline_asm_elementwise(
        "lop3.b32 $0, $1, 0x000F000F, 0x43004300, 0xEA;",
        "=r,r",
        [word],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=2,
    )


@triton.jit
def second_nibble(word):
    return tl.inline_asm_elementwise(
        "{ .reg .b32 t; shr.u32 t, $1, 4; lop3.b32 $0, t, 0x000F000F, 0x43004300, 0xEA; }",
        "=r,r",
        [word],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=2,
    )


@triton.jit
def third_nibble(word):
    return tl.inline_asm_elementwise(
        "{ .reg .b32 t; shr.u32 t, $1, 8; lop3.b32 $0, t, 0x000F000F, 0x43004300, 0xEA; }",
        "=r,r",
        [word],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=2,
    )


@triton.jit
def fourth_nibble(word):
    return tl.inline_asm_elementwise(
        "{ .reg .b32 t; shr.u32 t, $1, 12; lop3.b32 $0, t, 0x000F000F, 0x43004300, 0xEA; }",
        "=r,r",
        [word],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=2,
    )


@triton.jit
def weights_product(
    word_ptr,
    spread_ptr,
    sum_ptr,
    scale_ptr,
    zero_ptr,
    out_ptr,
    rows,
    columns,
    groups,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAIR: tl.constexpr,
):
    WORDS: tl.constexpr = GROUP // 4
    PLANE: tl.constexpr = ROWS * WORDS
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    c = tl.arange(0, WORDS)
    m = tl.arange(0, ROWS)
    word_at = word_ptr + n[None, :] * (groups * WORDS) + c[:, None]
    spread_at = spread_ptr + m[:, None] * WORDS + c[None, :]
    scale_at = scale_ptr + n * groups
    zero_at = zero_ptr + n * groups
    # The second group of a pair; without pairs the same as the first, and not used.
    OTHER: tl.constexpr = PAIR - 1
    scale_a = tl.load(scale_at)
    zero_a = tl.load(zero_at)
    sum_a = tl.load(sum_ptr + m)
    scale_b = tl.load(scale_at + OTHER)
    zero_b = tl.load(zero_at + OTHER)
    sum_b = tl.load(sum_ptr + OTHER * ROWS + m)
    acc = tl.zeros((ROWS, BLOCK_N), dtype=tl.float32)
    for group in range(0, groups, PAIR):
        ahead = tl.minimum(group + PAIR, groups - PAIR)
        next_scale_a = tl.load(scale_at + ahead)
        next_zero_a = tl.load(zero_at + ahead)
        next_sum_a = tl.load(sum_ptr + ahead * ROWS + m)
        next_scale_b = tl.load(scale_at + ahead + OTHER)
        next_zero_b = tl.load(zero_at + ahead + OTHER)
        next_sum_b = tl.load(sum_ptr + (ahead + OTHER) * ROWS + m)

        word = tl.load(word_at + group * WORDS)
        planes = spread_at + group * (4 * PLANE)
        x0 = tl.load(planes)
        x1 = tl.load(planes + PLANE)
        x2 = tl.load(planes + 2 * PLANE)
        x3 = tl.load(planes + 3 * PLANE)
        part = tl.dot(x0, first_nibble(word))
        part = tl.dot(x1, second_nibble(word), part)
        part = tl.dot(x2, third_nibble(word), part)
        part = tl.dot(x3, fourth_nibble(word), part)
        part = part - sum_a[:, None] * (zero_a.to(tl.float32) + 128.0)[None, :]
        acc += part * scale_a.to(tl.float32)[None, :]

        if PAIR == 2:
            word_b = tl.load(word_at + group * WORDS + WORDS)
            y0 = tl.load(planes + 4 * PLANE)
            y1 = tl.load(planes + 5 * PLANE)
            y2 = tl.load(planes + 6 * PLANE)
            y3 = tl.load(planes + 7 * PLANE)
            more = tl.dot(y0, first_nibble(word_b))
            more = tl.dot(y1, second_nibble(word_b), more)
            more = tl.dot(y2, third_nibble(word_b), more)
            more = tl.dot(y3, fourth_nibble(word_b), more)
            more = more - sum_b[:, None] * (zero_b.to(tl.float32) + 128.0)[None, :]
            acc += more * scale_b.to(tl.float32)[None, :]

        scale_a = next_scale_a
        zero_a = next_zero_a
        sum_a = next_sum_a
        scale_b = next_scale_b
        zero_b = next_zero_b
        sum_b = next_sum_b
    at = out_ptr + m[:, None] * columns + n[None, :]
    mask = (m < rows)[:, None] & (n < columns)[None, :]
    tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=mask)


def weights_of_4_bits(x, packed, scale, zero):
    """x [rows, depth] bf16; packed [columns, depth / 2] bytes, the low nibble first; scale and zero
    [columns, depth / 128]. Returns x times the transposed weights (q - zero) * scale."""
    rows, depth = x.shape
    columns = packed.shape[0]
    group, block_n, padded = 128, 64, 16
    groups = depth // group
    # The listed sizes: at most 16 rows, whole groups, columns in multiples of 64.
    assert rows <= padded and depth % group == 0 and columns % block_n == 0
    out = torch.empty((rows, columns), device=x.device, dtype=x.dtype)
    spread = torch.empty((groups, 4, padded, group // 4), device=x.device, dtype=torch.bfloat16)
    sums = torch.empty((groups, padded), device=x.device, dtype=torch.float32)
    spread_rows[(groups,)](x, spread, sums, rows, depth, ROWS=padded, GROUP=group, num_warps=4)
    weights_product[(columns // block_n,)](
        packed.view(torch.int16),
        spread,
        sums,
        scale,
        zero,
        out,
        rows,
        columns,
        groups,
        ROWS=padded,
        GROUP=group,
        BLOCK_N=block_n,
        PAIR=2 if groups % 2 == 0 else 1,
        num_warps=4,
        num_stages=4,
    )
    return out
