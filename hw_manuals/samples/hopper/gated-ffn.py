"""Gated feed-forward block (SwiGLU): silu(x Wgate^T) * (x Wup^T), then the product with Wdown^T.

x[rows][K], w_gate_up[2 F][K] (gate first, then up), w_down[N][F], out[rows][N], all bf16 with sums
in float32, contiguous. K, F and N: multiples of 8.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def tile_of(tile, tiles_m, tiles_n, BAND: tl.constexpr):
    """Tiles go by in bands of BAND rows: a wave then reads few panels of both operands."""
    band = tile // (BAND * tiles_n)
    high = tl.minimum(tiles_m - band * BAND, BAND)
    local = tile % (BAND * tiles_n)
    return band * BAND + local % high, local // high


@triton.jit
def gate_up_kernel(
    x_desc,
    w_desc,
    out_desc,
    rows,
    F,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BAND: tl.constexpr,
):
    m, n = tile_of(tl.program_id(0), tl.cdiv(rows, BLOCK_M), tl.cdiv(F, BLOCK_N), BAND)
    m *= BLOCK_M
    n *= BLOCK_N
    # Both products share the tile of x; their sums are those of one tile of twice the width.
    gate = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        x = x_desc.load([m, k])
        gate = tl.dot(x, w_desc.load([n, k]).T, gate)
        up = tl.dot(x, w_desc.load([F + n, k]).T, up)
    gate = gate * tl.sigmoid(gate) * up
    out_desc.store([m, n], gate.to(x_desc.dtype))


@triton.jit
def product_kernel(
    a_desc,
    b_desc,
    c_desc,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BAND: tl.constexpr,
):
    m, n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), BAND)
    m *= BLOCK_M
    n *= BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = a_desc.load([m, k])
        b = b_desc.load([n, k])
        acc = tl.dot(a, b.T, acc)
    c_desc.store([m, n], acc.to(a_desc.dtype))


def gate_up(x, w_gate_up, block_m=64, block_n=128, stages=4, warps=4, band=16):
    (rows, K), F = x.shape, w_gate_up.shape[0] // 2
    out = torch.empty((rows, F), device=x.device, dtype=x.dtype)
    gate_up_kernel[(triton.cdiv(rows, block_m) * triton.cdiv(F, block_n),)](
        TensorDescriptor.from_tensor(x, [block_m, 64]),
        TensorDescriptor.from_tensor(w_gate_up, [block_n, 64]),
        TensorDescriptor.from_tensor(out, [block_m, block_n]),
        rows,
        F,
        K,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=64,
        BAND=band,
        num_warps=warps,
        num_stages=stages,
    )
    return out


def product(a, b, block_m=128, block_n=128, stages=4, warps=4, band=16):
    (M, K), N = a.shape, b.shape[0]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    product_kernel[(triton.cdiv(M, block_m) * triton.cdiv(N, block_n),)](
        TensorDescriptor.from_tensor(a, [block_m, 64]),
        TensorDescriptor.from_tensor(b, [block_n, 64]),
        TensorDescriptor.from_tensor(c, [block_m, block_n]),
        M,
        N,
        K,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=64,
        BAND=band,
        num_warps=warps,
        num_stages=stages,
    )
    return c


def gated_ffn(x, w_gate_up, w_down):
    return product(gate_up(x, w_gate_up), w_down)
