"""Pallas RMS norm for TPU: whole rows in VMEM, one read and one write."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def rmsnorm_kernel(x_ref, weight_ref, out_ref, *, eps: float):
    x = x_ref[...].astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
    out_ref[...] = (x * scale * weight_ref[...].astype(jnp.float32)).astype(out_ref.dtype)


def rmsnorm(x, weight, *, eps=1e-6, block_rows=256, interpret=False):
    """RMS norm of x [rows, features] over its last axis; weight [features].

    Whole rows of a block lie in VMEM, so each element is read once and written once. The weight's
    block does not change from step to step, so it is copied once.
    """
    rows, features = x.shape
    block_rows = min(block_rows, rows)
    return pl.pallas_call(
        functools.partial(rmsnorm_kernel, eps=eps),
        grid=(pl.cdiv(rows, block_rows),),
        in_specs=[
            pl.BlockSpec((block_rows, features), lambda i: (i, 0)),
            pl.BlockSpec((1, features), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((block_rows, features), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        interpret=interpret,
    )(x, weight[None, :])
