"""Mixture of experts end to end, bf16 with sums in float32; nothing is synchronised with the host:
sort the choices by expert, gate and up products with SwiGLU over gathered rows, down product times
the share, sum over the experts of a token.

x[tokens][H], ids[tokens][chosen] int32 from 0 to experts - 1, shares[tokens][chosen],
up[experts][2 F][H] (gate first), down[experts][H][F], all contiguous. H and F: multiples of 8.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def find_tile(tile, offsets_ptr, experts, tiles_n, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr):
    """Expert, first row, end of the expert and column tile; `experts` behind the last tile."""
    e = tl.arange(0, EXPERTS)
    begin = tl.load(offsets_ptr + e, mask=e < experts, other=0)
    end = tl.load(offsets_ptr + e + 1, mask=e < experts, other=0)
    tiles_m = (end - begin + BLOCK_M - 1) // BLOCK_M
    after = tl.cumsum(tiles_m * tiles_n, 0)
    expert = tl.sum(((after <= tile) & (e < experts)).to(tl.int32), 0)
    here = e == expert
    local = tile - tl.sum(tl.where(here, after - tiles_m * tiles_n, 0), 0)
    high = tl.maximum(tl.sum(tl.where(here, tiles_m, 0), 0), 1)
    first = tl.sum(tl.where(here, begin, 0), 0)
    last = tl.sum(tl.where(here, end, 0), 0)
    # Rows move fastest: a wave shares a panel of the expert's weights.
    return expert, first + local % high * BLOCK_M, last, local // high


@triton.jit
def up_kernel(
    x_ptr,
    up_desc,
    out_ptr,
    order_ptr,
    offsets_ptr,
    experts,
    H,
    F,
    CHOSEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    expert, row, last, n = find_tile(
        tl.program_id(0), offsets_ptr, experts, tl.cdiv(F, BLOCK_N), EXPERTS, BLOCK_M
    )
    if expert < experts:
        n *= BLOCK_N
        rows = row + tl.arange(0, BLOCK_M)
        # Hopper's TMA does not gather: rows of x come by cp.async, the weights by descriptor.
        pair = tl.load(order_ptr + tl.minimum(rows, last - 1))
        k = tl.arange(0, BLOCK_K)
        x_at = x_ptr + (pair // CHOSEN).to(tl.int64)[:, None] * H + k[None, :]
        gate = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        up = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        first = expert * 2 * F + n
        for start in range(0, H, BLOCK_K):
            x = tl.load(x_at + start, mask=(k < H - start)[None, :], other=0.0)
            gate = tl.dot(x, up_desc.load([first, start]).T, gate)
            up = tl.dot(x, up_desc.load([first + F, start]).T, up)
        made = gate * tl.sigmoid(gate) * up
        columns = n + tl.arange(0, BLOCK_N)
        out = out_ptr + rows.to(tl.int64)[:, None] * F + columns[None, :]
        mask = (rows < last)[:, None] & (columns < F)[None, :]
        tl.store(out, made.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def down_kernel(
    h_desc,
    down_desc,
    out_ptr,
    order_ptr,
    shares_ptr,
    offsets_ptr,
    experts,
    H,
    F,
    EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    expert, row, last, n = find_tile(
        tl.program_id(0), offsets_ptr, experts, tl.cdiv(H, BLOCK_N), EXPERTS, BLOCK_M
    )
    if expert < experts:
        n *= BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for start in range(0, F, BLOCK_K):
            h = h_desc.load([row, start])
            acc = tl.dot(h, down_desc.load([expert * H + n, start]).T, acc)
        rows = row + tl.arange(0, BLOCK_M)
        inside = rows < last
        pair = tl.load(order_ptr + rows, mask=inside, other=0)
        acc *= tl.load(shares_ptr + pair, mask=inside, other=0.0).to(tl.float32)[:, None]
        columns = n + tl.arange(0, BLOCK_N)
        # Back at the place of the token's choice, so that the sum needs no atomics.
        out = out_ptr + pair.to(tl.int64)[:, None] * H + columns[None, :]
        mask = inside[:, None] & (columns < H)[None, :]
        tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def combine_kernel(parts_ptr, out_ptr, H, CHOSEN: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(CHOSEN):
        part = parts_ptr + (token * CHOSEN + i) * H + column
        total += tl.load(part, mask=column < H, other=0.0).to(tl.float32)
    tl.store(out_ptr + token * H + column, total.to(out_ptr.dtype.element_ty), mask=column < H)


def route(ids, experts):
    flat = ids.flatten()
    ordered, order = torch.sort(flat, stable=True)
    borders = torch.arange(experts + 1, device=ids.device, dtype=ids.dtype)
    return order.to(torch.int32), torch.searchsorted(ordered, borders).to(torch.int32)


def routed_experts(x, ids, shares, up, down, up_tile=(128, 128, 4, 8), down_tile=(128, 256, 4, 8)):
    """A tile: rows, columns, stages, warps."""
    (tokens, H), chosen = x.shape, ids.shape[1]
    experts, F = up.shape[0], down.shape[2]
    order, offsets = route(ids, experts)
    pairs = tokens * chosen
    h = torch.empty((pairs, F), device=x.device, dtype=x.dtype)
    parts = torch.empty((pairs, H), device=x.device, dtype=x.dtype)
    out = torch.empty_like(x)
    padded = triton.next_power_of_2(experts)
    # The borders stay on the device: the grid has as many tiles as there can be at most.
    block_m, block_n, stages, warps = up_tile
    most = min(triton.cdiv(pairs, block_m) + experts - 1, pairs)
    up_kernel[(most * triton.cdiv(F, block_n),)](
        x,
        TensorDescriptor.from_tensor(up.view(-1, H), [block_n, 64]),
        h,
        order,
        offsets,
        experts,
        H,
        F,
        CHOSEN=chosen,
        EXPERTS=padded,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=64,
        num_warps=warps,
        num_stages=stages,
    )
    block_m, block_n, stages, warps = down_tile
    most = min(triton.cdiv(pairs, block_m) + experts - 1, pairs)
    down_kernel[(most * triton.cdiv(H, block_n),)](
        TensorDescriptor.from_tensor(h, [block_m, 64]),
        TensorDescriptor.from_tensor(down.view(-1, F), [block_n, 64]),
        parts,
        order,
        shares,
        offsets,
        experts,
        H,
        F,
        EXPERTS=padded,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=64,
        num_warps=warps,
        num_stages=stages,
    )
    combine_kernel[(tokens, triton.cdiv(H, 1024))](parts, out, H, CHOSEN=chosen, BLOCK=1024)
    return out
