"""RMS norm of rows in FlyDSL 0.5.0 for wave64: one block of four waves a row, the row in registers.

y = x / sqrt(mean(x * x) + epsilon) * weight. The width is a multiple of 2,048.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx

THREADS = 256
LANES = 64
WAVES = THREADS // LANES
PIECE = 8  # bfloat16 values in a 128-bit copy


@fx.struct
class Scratch:
    partial: fx.Array[fx.Float32, WAVES, 16]


@flyc.kernel
def rmsnorm_kernel(
    x: fx.Tensor,
    weight: fx.Tensor,
    y: fx.Tensor,
    epsilon: fx.Float32,
    width: fx.Constexpr[int],
):
    thread = fx.thread_idx.x
    row = fx.block_idx.x
    wave = thread // LANES
    lane = thread % LANES
    pieces = width // (THREADS * PIECE)
    scratch = fx.SharedAllocator().allocate(Scratch).peek()
    partial = scratch.partial.view(fx.make_layout(WAVES, 1))

    whole = fx.make_layout(PIECE, 1)
    source = fx.logical_divide(fx.rocdl.make_buffer_tensor(fx.slice(x, (row, None))), whole)
    scales = fx.logical_divide(fx.rocdl.make_buffer_tensor(weight), whole)
    target = fx.logical_divide(fx.rocdl.make_buffer_tensor(fx.slice(y, (row, None))), whole)
    atom = fx.make_copy_atom(fx.rocdl.BufferCopy128b(), fx.BFloat16)

    values = []
    squares = fx.Float32(0.0)
    for piece in fx.range_constexpr(pieces):
        fragment = fx.make_rmem_tensor(PIECE, fx.BFloat16)
        fx.copy(atom, fx.slice(source, (None, thread + piece * THREADS)), fragment)
        wide = fx.memref_load_vec(fragment).to(fx.Float32)
        values.append(wide)
        squares = squares + (wide * wide).reduce(fx.ReductionOp.ADD)

    for step in fx.range_constexpr(6):
        squares = squares + squares.shuffle_xor(32 >> step, LANES)
    if lane == 0:
        fx.memref_store(squares, partial, wave)
    fx.gpu.barrier()
    total = fx.Float32(0.0)
    for index in fx.range_constexpr(WAVES):
        total = total + fx.memref_load(partial, index)
    factor = fx.rsqrt(total * (1.0 / width) + epsilon)

    for piece in fx.range_constexpr(pieces):
        place = thread + piece * THREADS
        fragment = fx.make_rmem_tensor(PIECE, fx.BFloat16)
        fx.copy(atom, fx.slice(scales, (None, place)), fragment)
        scaled = values[piece] * factor * fx.memref_load_vec(fragment).to(fx.Float32)
        result = fx.make_rmem_tensor(PIECE, fx.BFloat16)
        fx.memref_store_vec(scaled.to(fx.BFloat16), result)
        fx.copy(atom, result, fx.slice(target, (None, place)))


@flyc.jit
def rmsnorm(
    x: fx.Tensor,
    weight: fx.Tensor,
    y: fx.Tensor,
    rows: fx.Int32,
    epsilon: fx.Float32,
    width: fx.Constexpr[int],
    stream: fx.Stream,
):
    kernel = rmsnorm_kernel(x, weight, y, epsilon, width)
    kernel.launch(grid=(rows, 1, 1), block=(THREADS, 1, 1), stream=stream)
