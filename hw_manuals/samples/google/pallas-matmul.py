"""Pallas matrix product for TPU: a grid over output blocks, the sum in VMEM scratch."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def matmul_kernel(x_ref, y_ref, out_ref, acc_ref, *, k_steps: int):
    """One step of the reduction for one output block; acc_ref lives in VMEM between steps."""

    @pl.when(pl.program_id(2) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == k_steps - 1)
    def _():
        out_ref[...] = acc_ref[...].astype(out_ref.dtype)


def matmul(x, y, *, bm=512, bn=512, bk=1024, interpret=False):
    """x [m, k] times y [k, n], with m, n, k multiples of the blocks; result in the dtype of x."""
    (m, k), (_, n) = x.shape, y.shape
    bm, bn, bk = min(bm, m), min(bn, n), min(bk, k)
    assert m % bm == 0 and n % bn == 0 and k % bk == 0, "pad to a multiple of the block first"
    return pl.pallas_call(
        functools.partial(matmul_kernel, k_steps=k // bk),
        grid=(m // bm, n // bn, k // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda i, j, s: (i, s)),
            pl.BlockSpec((bk, bn), lambda i, j, s: (s, j)),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda i, j, s: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
        ),
        interpret=interpret,
    )(x, y)
