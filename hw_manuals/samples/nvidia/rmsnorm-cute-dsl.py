"""y = x / sqrt(mean(x^2) + eps) * weight for rows of bf16 in the CuTe DSL: a tiled copy gives each
thread pieces of 16 bytes of its row, which stay in registers; warp shuffles and shared memory sum a
row.

One block a row; the width is a multiple of 8 * THREADS and known when the kernel is compiled.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32

THREADS, VECTOR = 256, 8  # 8 bf16 are 16 bytes
WARPS = THREADS // 32


@cute.kernel
def rmsnorm_kernel(
    x: cute.Tensor,
    weight: cute.Tensor,
    y: cute.Tensor,
    eps: Float32,
    tiled_copy: cute.TiledCopy,
    width: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    partial = cutlass.utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout(WARPS))

    # The row in tiles of THREADS * VECTOR elements, and this thread's part of each.
    thread_copy = tiled_copy.get_slice(thread)
    own_x = thread_copy.partition_S(cute.local_tile(x, (1, width), (row, 0)))
    own_weight = thread_copy.partition_S(weight)
    own_y = thread_copy.partition_D(cute.local_tile(y, (1, width), (row, 0)))
    values, factors = cute.make_fragment_like(own_x), cute.make_fragment_like(own_weight)
    cute.copy(tiled_copy, own_x, values)
    cute.copy(tiled_copy, own_weight, factors)

    numbers = values.load().to(Float32)
    square = (numbers * numbers).reduce(cute.ReductionOp.ADD, Float32(0.0), 0)
    total = cute.arch.warp_reduction_sum(square)
    if thread % 32 == 0:
        partial[thread // 32] = total
    cute.arch.sync_threads()
    whole = Float32(0.0)
    for i in cutlass.range_constexpr(WARPS):
        whole += partial[i]
    scale = cute.math.rsqrt(whole / width + eps)
    result = cute.make_fragment_like(own_y)
    result.store((numbers * scale * factors.load().to(Float32)).to(y.element_type))
    cute.copy(tiled_copy, result, own_y)


@cute.jit
def rmsnorm(x: cute.Tensor, weight: cute.Tensor, y: cute.Tensor, eps: Float32, stream):
    """x and y [rows][width], weight [1][width]."""
    width = cutlass.const_expr(x.shape[1])
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), x.element_type, num_bits_per_copy=128)
    tiled_copy = cute.make_tiled_copy_tv(
        atom, cute.make_layout((1, THREADS), stride=(0, 1)), cute.make_layout((1, VECTOR))
    )
    rmsnorm_kernel(x, weight, y, eps, tiled_copy, width).launch(
        grid=(x.shape[0], 1, 1), block=(THREADS, 1, 1), stream=stream
    )
