"""Pallas attention forward for TPU: running softmax in VMEM scratch, causal blocks skipped."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
MASKED = -1e30  # finite: minus infinity minus minus infinity is NaN


def attention_kernel(
    q_ref, k_ref, v_ref, out_ref, max_ref, sum_ref, acc_ref, *, bq, bk, kv_steps, scale, causal
):
    """One block of keys for one block of queries; running maximum, sum and result in scratch."""
    i, j = pl.program_id(1), pl.program_id(2)

    @pl.when(j == 0)
    def _():
        max_ref[...] = jnp.full_like(max_ref, MASKED)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    # A block whose first key lies behind the last query has nothing to add.
    @pl.when(j * bk < (i + 1) * bq if causal else j >= 0)
    def _():
        scores = jax.lax.dot_general(  # q times k transposed: no transpose is written out
            q_ref[0], k_ref[0], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )
        scores *= scale
        if causal:
            rows = i * bq + jax.lax.broadcasted_iota(jnp.int32, (bq, bk), 0)
            cols = j * bk + jax.lax.broadcasted_iota(jnp.int32, (bq, bk), 1)
            scores = jnp.where(cols <= rows, scores, MASKED)
        old_max = max_ref[:, :1]
        new_max = jnp.maximum(old_max, jnp.max(scores, axis=1, keepdims=True))
        weights = jnp.exp(scores - new_max)
        shrink = jnp.exp(old_max - new_max)
        sum_ref[...] = shrink * sum_ref[...] + jnp.sum(weights, axis=1, keepdims=True)
        acc_ref[...] = shrink * acc_ref[...] + jnp.dot(
            weights.astype(v_ref.dtype), v_ref[0], preferred_element_type=jnp.float32
        )
        max_ref[...] = jnp.broadcast_to(new_max, max_ref.shape)

    @pl.when(j == kv_steps - 1)
    def _():
        out_ref[0] = (acc_ref[...] / sum_ref[:, :1]).astype(out_ref.dtype)


def attention(q, k, v, *, causal=False, bq=512, bk=512, interpret=False):
    """q [heads, queries, size], k and v [heads, keys, size]; lengths are multiples of blocks."""
    heads, queries, size = q.shape
    keys = k.shape[1]
    bq, bk = min(bq, queries), min(bk, keys)
    assert queries % bq == 0 and keys % bk == 0, "pad to a multiple of the block and mask the tail"
    assert not causal or queries == keys
    kernel = functools.partial(
        attention_kernel,
        bq=bq, bk=bk, kv_steps=keys // bk, scale=size**-0.5, causal=causal,
    )  # fmt: skip

    def kv_block(h, i, j):
        # A skipped step names the block that is already there, so nothing is copied for it.
        return h, jnp.minimum(j, ((i + 1) * bq - 1) // bk) if causal else j, 0

    return pl.pallas_call(
        kernel,
        grid=(heads, queries // bq, keys // bk),
        in_specs=[
            pl.BlockSpec((1, bq, size), lambda h, i, j: (h, i, 0)),
            pl.BlockSpec((1, bk, size), kv_block),
            pl.BlockSpec((1, bk, size), kv_block),
        ],
        out_specs=pl.BlockSpec((1, bq, size), lambda h, i, j: (h, i, 0)),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        scratch_shapes=[
            pltpu.VMEM((bq, LANES), jnp.float32),
            pltpu.VMEM((bq, LANES), jnp.float32),
            pltpu.VMEM((bq, size), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
        ),
        interpret=interpret,
    )(q, k, v)
