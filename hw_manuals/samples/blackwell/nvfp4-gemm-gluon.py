"""C[M][N] = alpha (A * scales) * (B * scales)^T in Gluon for compute capability 10.0: NVFP4, E2M1
values, two a byte, with one E4M3 scale for 16 neighbours along K. The tensor core applies the
scales; `alpha`, the product of both tensors' float32 scales, is applied to the sums.

M is free. N: a multiple of 8, because a row of C is a multiple of 16 bytes. K: a multiple of 64.
The operands come from `nvfp4-quantise.py` (Quantisation to NVFP4 with scales in the order of
tcgen05), which packs the scales; `pack_scales` does that for scales that stand in rows.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    fence_async_shared,
    get_tmem_reg_layout,
    mbarrier,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma_scaled,
    tma,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

VECTOR = gl.constexpr(16)  # values that share a scale
PACKED = gl.constexpr(2)  # values in a byte


def pack_scales(scales):
    """float8_e4m3fn [rows][K/16] to [rows/128][K/64][2][256]: 512 bytes, in the order that tensor
    memory holds, for each 128 rows and 4 scales. Byte 16 r + 4 g + s is scale s of row 32 g + r."""
    rows, count = scales.shape
    scales = torch.nn.functional.pad(scales.view(torch.uint8), (0, -count % 4, 0, -rows % 128))
    blocks = scales.reshape(scales.shape[0] // 128, 4, 32, scales.shape[1] // 4, 4)
    packed = blocks.permute(0, 3, 2, 1, 4).contiguous()
    packed = packed.reshape(1, packed.shape[0], packed.shape[1], 2, 256)
    return packed.view(torch.float8_e4m3fn)


@gluon.jit
def scale_view(stage, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """The packed bytes as the matrix [rows][scales] that they mean; nothing moves."""
    blocks = stage.reshape((ROWS // 128, COLUMNS // 4, 32, 4, 4))
    return blocks.permute((0, 3, 2, 1, 4)).reshape((ROWS, COLUMNS))


@gluon.jit
def load_tiles(operands, scales, rings, full, empty, m, n, steps, STAGES: gl.constexpr):
    a_desc, b_desc = operands
    a_scales, b_scales = scales
    a_ring, b_ring, a_scale_ring, b_scale_ring = rings
    BYTES_K: gl.constexpr = a_desc.block_type.shape[1]
    FOURS: gl.constexpr = a_scales.block_type.shape[2]  # groups of four scales in a step
    operand_bytes: gl.constexpr = a_desc.block_type.nbytes + b_desc.block_type.nbytes
    scale_bytes: gl.constexpr = a_scales.block_type.nbytes + b_scales.block_type.nbytes
    for step in range(steps):
        slot = step % STAGES
        mbarrier.wait(empty.index(slot), step // STAGES & 1 ^ 1)
        bar = full.index(slot)
        mbarrier.expect(bar, operand_bytes + scale_bytes)
        k = step * BYTES_K
        tma.async_copy_global_to_shared(a_desc, [m, k], bar, a_ring.index(slot))
        tma.async_copy_global_to_shared(b_desc, [n, k], bar, b_ring.index(slot))
        f = step * FOURS
        at = [0, m // 128, f, 0, 0]
        tma.async_copy_global_to_shared(a_scales, at, bar, a_scale_ring.index(slot))
        at = [0, n // 128, f, 0, 0]
        tma.async_copy_global_to_shared(b_scales, at, bar, b_scale_ring.index(slot))


@gluon.jit
def multiply_tiles(rings, acc, full, empty, finished, steps, STAGES: gl.constexpr):
    a_ring, b_ring, a_scale_ring, b_scale_ring = rings
    BLOCK_M: gl.constexpr = a_ring.shape[1]
    BLOCK_N: gl.constexpr = b_ring.shape[1]
    COLUMNS: gl.constexpr = a_ring.shape[2] * PACKED // VECTOR
    layout: gl.constexpr = TensorMemoryScalesLayout()
    a_scale = allocate_tensor_memory(gl.float8e4nv, [BLOCK_M, COLUMNS], layout)
    b_scale = allocate_tensor_memory(gl.float8e4nv, [BLOCK_N, COLUMNS], layout)
    for step in range(steps):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), step // STAGES & 1)
        # Copies and products of one thread run in the order of their issue, so one set of scales
        # in tensor memory is enough and nothing waits between them.
        tcgen05_copy(scale_view(a_scale_ring.index(slot), BLOCK_M, COLUMNS), a_scale)
        tcgen05_copy(scale_view(b_scale_ring.index(slot), BLOCK_N, COLUMNS), b_scale)
        b = b_ring.index(slot).permute((1, 0))
        # E2M1 with scales of E4M3 becomes .kind::mxf4nvf4; with uint8 (E8M0) it would be MXFP4.
        tcgen05_mma_scaled(
            a_ring.index(slot), b, acc, a_scale, b_scale, "e2m1", "e2m1", use_acc=step > 0
        )
        tcgen05_commit(empty.index(slot))  # after the copies too: they read the stage as well
    tcgen05_commit(finished)


@gluon.jit
def store_tile(c_desc, acc, finished, alpha_ptr, m, n):
    BLOCK_M: gl.constexpr = c_desc.block_type.shape[0]
    PIECE: gl.constexpr = c_desc.block_type.shape[1]
    pieces: gl.constexpr = acc.shape[1] // PIECE
    piece_layout: gl.constexpr = TensorMemoryLayout([BLOCK_M, PIECE], col_stride=1)
    registers: gl.constexpr = get_tmem_reg_layout(
        gl.float32, (BLOCK_M, PIECE), piece_layout, gl.num_warps()
    )
    c_ring = gl.allocate_shared_memory(c_desc.dtype, [2, BLOCK_M, PIECE], c_desc.layout)
    alpha = gl.load(alpha_ptr)
    mbarrier.wait(finished, 0)
    for i in gl.static_range(pieces):
        values = acc.slice(i * PIECE, PIECE).load(registers)
        tma.store_wait(pendings=1)
        half = c_ring.index(i % 2)
        half.store((values * alpha).to(c_desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(c_desc, [m, n + i * PIECE], half)
    tma.store_wait(pendings=0)


@gluon.constexpr_function
def concatenated(first, rest):
    return [first, *rest]


@gluon.jit
def ring_of(desc, STAGES: gl.constexpr):
    box: gl.constexpr = desc.block_type.shape
    return gl.allocate_shared_memory(desc.dtype, concatenated(STAGES, box), desc.layout)


@gluon.jit
def nvfp4_gemm_kernel(
    a_desc,
    b_desc,
    a_scales,
    b_scales,
    c_desc,
    alpha_ptr,
    K,
    STAGES: gl.constexpr,
    num_warps: gl.constexpr,
):
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[0]
    rings = (
        ring_of(a_desc, STAGES),
        ring_of(b_desc, STAGES),
        ring_of(a_scales, STAGES),
        ring_of(b_scales, STAGES),
    )
    acc = allocate_tensor_memory(
        gl.float32, [BLOCK_M, BLOCK_N], TensorMemoryLayout([BLOCK_M, BLOCK_N], col_stride=1)
    )
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    finished = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    mbarrier.init(finished, count=1)
    fence_async_shared()

    m = gl.program_id(0) * BLOCK_M
    n = gl.program_id(1) * BLOCK_N
    steps = gl.cdiv(K, a_desc.block_type.shape[1] * PACKED)
    operands = (a_desc, b_desc)
    scales = (a_scales, b_scales)
    gl.warp_specialize(
        [
            (store_tile, (c_desc, acc, finished, alpha_ptr, m, n)),
            (load_tiles, (operands, scales, rings, full, empty, m, n, steps, STAGES)),
            (multiply_tiles, (rings, acc, full, empty, finished, steps, STAGES)),
        ],
        worker_num_warps=[1, 1],
        worker_num_regs=[40, 40],
    )
    for i in gl.static_range(STAGES):
        mbarrier.invalidate(full.index(i))
        mbarrier.invalidate(empty.index(i))
    mbarrier.invalidate(finished)


def nvfp4_gemm(a, b, a_scales, b_scales, alpha, block_n=256, block_k=256, stages=3, piece=64):
    """a, b: uint8 [rows][K/2]; scales: packed float8_e4m3fn; alpha: float32 on the device, one
    value."""
    (M, half), N = a.shape, b.shape[0]
    c = torch.empty((M, N), device=a.device, dtype=torch.bfloat16)

    def describe(tensor, box, dtype):
        layout = gl.NVMMASharedLayout.get_default_for(box, dtype)
        return TensorDescriptor.from_tensor(tensor, box, layout)

    def describe_scales(scales, rows):
        # Not swizzled: tcgen05_copy takes the bytes as they are.
        plain = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=8, rank=5)
        box = [1, rows // 128, block_k // 64, 2, 256]
        return TensorDescriptor.from_tensor(scales, box, plain)

    grid = (triton.cdiv(M, 128), triton.cdiv(N, block_n))
    nvfp4_gemm_kernel[grid](
        describe(a, [128, block_k // 2], gl.uint8),
        describe(b, [block_n, block_k // 2], gl.uint8),
        describe_scales(a_scales, 128),
        describe_scales(b_scales, block_n),
        describe(c, [128, piece], gl.bfloat16),
        alpha,
        half * 2,
        STAGES=stages,
        num_warps=4,
    )
    return c
