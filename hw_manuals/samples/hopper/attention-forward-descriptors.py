"""Attention forward for Hopper: full or causal, grouped heads, log-sum-exp for a backward pass.

query, out [batch][heads][queries][WIDTH], key and value [batch][kv_heads][keys][WIDTH] in bf16 or
fp16, WIDTH 64 or 128, strides of whole 16 bytes, the last axis contiguous; lse
[batch][heads][queries] in float32 (natural logarithm). The causal mask is aligned at the end:
query m sees the keys up to m + keys - queries.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2E = 1.4426950408889634


@triton.jit
def attend_keys(
    acc, total, highest, query, key_desc, value_desc, batch, head, first, end, last_key, scale,
    MASKED: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    for start in range(first, end, BLOCK_N):
        k = key_desc.load([batch, head, start, 0]).reshape(BLOCK_N, WIDTH)
        score = tl.dot(query, k.T)
        if MASKED:
            n = start + tl.arange(0, BLOCK_N)
            score = tl.where(n[None, :] <= last_key[:, None], score, float("-inf"))
        above = tl.maximum(highest, tl.max(score, axis=1) * scale)
        weight = tl.math.exp2(score * scale - above[:, None])
        shrink = tl.math.exp2(highest - above)
        total = total * shrink + tl.sum(weight, axis=1)
        v = value_desc.load([batch, head, start, 0]).reshape(BLOCK_N, WIDTH)
        acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None])
        highest = above
    return acc, total, highest


def set_boxes(args):
    width = args["WIDTH"]
    for name, rows in (("query_desc", "BLOCK_M"), ("out_desc", "BLOCK_M")):
        args[name].block_shape = [1, 1, args[rows], width]
    for name in ("key_desc", "value_desc"):
        args[name].block_shape = [1, 1, args["BLOCK_N"], width]


def config(m, n, warps, stages, registers=None):
    return triton.Config(
        {"BLOCK_M": m, "BLOCK_N": n},
        num_warps=warps,
        num_stages=stages,
        maxnreg=registers,
        pre_hook=set_boxes,
    )


# Two blocks share a multiprocessor: the exponentials of one run beside the products of the other.
CONFIGS = [
    config(128, 64, 8, 2, 128),
    config(128, 128, 8, 2),
    config(64, 64, 4, 2, 168),
    config(128, 64, 4, 2),
]


@triton.jit
def attention_kernel(
    query_desc, key_desc, value_desc, out_desc, lse_ptr, heads, all_heads, share, queries, keys,
    section, scale, CAUSAL: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    # The heads of a section run side by side, so that their keys stay in L2; within it the blocks
    # with the most keys begin first.
    blocks = tl.cdiv(queries, BLOCK_M)
    first_head = tl.program_id(0) // (blocks * section) * section
    together = tl.minimum(section, all_heads - first_head)
    place = tl.program_id(0) - first_head * blocks
    both = first_head + place % together
    first_row = (blocks - 1 - place // together) * BLOCK_M
    batch = both // heads
    head = both % heads

    rows = first_row + tl.arange(0, BLOCK_M)
    query = query_desc.load([batch, head, first_row, 0]).reshape(BLOCK_M, WIDTH)
    highest = tl.full((BLOCK_M,), -1e30, dtype=tl.float32)  # finite: a row may see no key
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, WIDTH), dtype=tl.float32)
    last_key = tl.zeros((BLOCK_M,), dtype=tl.int32) + (keys - 1)
    end = keys
    free = keys // BLOCK_N * BLOCK_N  # keys before it need no mask
    if CAUSAL:
        shift = keys - queries
        last_key = tl.minimum(rows + shift, last_key)
        end = tl.minimum(tl.maximum(first_row + BLOCK_M + shift, 0), keys)
        free = tl.minimum(tl.maximum(first_row + shift + 1, 0), keys) // BLOCK_N * BLOCK_N
    acc, total, highest = attend_keys(
        acc, total, highest, query, key_desc, value_desc, batch, head // share, 0, free, last_key,
        scale, False, BLOCK_N, WIDTH,
    )  # fmt: skip
    acc, total, highest = attend_keys(
        acc, total, highest, query, key_desc, value_desc, batch, head // share, free, end, last_key,
        scale, True, BLOCK_N, WIDTH,
    )  # fmt: skip
    acc = acc * tl.where(total > 0, 1.0 / total, 0.0)[:, None]
    lse = (highest + tl.math.log2(total)) * 0.6931471805599453
    tl.store(lse_ptr + both * queries + rows, lse, mask=rows < queries)
    out = acc.to(out_desc.dtype).reshape(1, 1, BLOCK_M, WIDTH)
    out_desc.store([batch, head, first_row, 0], out)


tuned_kernel = triton.autotune(CONFIGS, key=["queries", "keys", "CAUSAL", "WIDTH"])(
    attention_kernel
)


def attention(query, key, value, causal=False, scale=None):
    """Returns the attention and the log-sum-exp of the scores."""
    batch, heads, queries, width = query.shape
    kv_heads, keys = key.shape[1], key.shape[2]
    assert heads % kv_heads == 0 and width in (64, 128)
    out = torch.empty_like(query)
    lse = torch.empty((batch, heads, queries), device=query.device, dtype=torch.float32)
    # The boxes are set when a configuration is chosen.
    tensors = [TensorDescriptor.from_tensor(x, [1, 1, 64, width]) for x in (query, key, value, out)]
    all_heads, share = batch * heads, heads // kv_heads
    room = max(1, (24 << 20) // (keys * width * 4)) * share  # heads whose keys fit in L2
    rest = (
        *tensors, lse, heads, all_heads, share, queries, keys, min(room, all_heads),
        (width**-0.5 if scale is None else scale) * LOG2E,
    )  # fmt: skip

    def grid(meta):
        return (triton.cdiv(queries, meta["BLOCK_M"]) * all_heads,)

    tuned_kernel[grid](*rest, CAUSAL=causal, WIDTH=width)
    return out, lse
