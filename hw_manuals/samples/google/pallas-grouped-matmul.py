"""Pallas grouped product for TPU: prefetched scalars choose the matrix of each row tile."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def grouped_kernel(group_ref, x_ref, weight_ref, out_ref, acc_ref):
    del group_ref  # read by the index maps only

    @pl.when(pl.program_id(2) == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(x_ref[...], weight_ref[0], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        out_ref[...] = acc_ref[...].astype(out_ref.dtype)


def tile_groups(group_sizes, bm, tiles):
    """The group of every row tile, for groups that each start at a multiple of bm."""
    ends = jnp.cumsum((group_sizes + bm - 1) // bm)
    return jnp.searchsorted(ends, jnp.arange(tiles), side="right").astype(jnp.int32)


def grouped_matmul(x, weights, group_of_tile, *, bm=128, bn=512, bk=512, interpret=False):
    """Rows of x [m, k] times the matrix of their group, weights [groups, k, n].

    group_of_tile [m // bm] int32 names the group of each row tile; rows are sorted by group and
    each group is padded to a multiple of bm. It is read before the grid starts, so the index map
    of the weights can look up which matrix to copy.
    """
    (m, k), (groups, _, n) = x.shape, weights.shape
    bn, bk = min(bn, n), min(bk, k)
    assert m % bm == 0 and n % bn == 0 and k % bk == 0
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(n // bn, m // bm, k // bk),
        in_specs=[
            pl.BlockSpec((bm, bk), lambda j, i, s, group: (i, s)),
            # Padding tiles past the last group take its matrix; the caller cuts their rows off.
            pl.BlockSpec(
                (1, bk, bn), lambda j, i, s, group: (jnp.minimum(group[i], groups - 1), s, j)
            ),
        ],
        out_specs=pl.BlockSpec((bm, bn), lambda j, i, s, group: (i, j)),
        scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
    )
    return pl.pallas_call(
        grouped_kernel,
        grid_spec=grid_spec,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"),
        ),
        interpret=interpret,
    )(group_of_tile, x, weights)
