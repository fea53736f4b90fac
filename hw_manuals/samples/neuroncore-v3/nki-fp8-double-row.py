"""NKI FP8 product in double-row mode: 256 terms of the reduction an instruction."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def matmul_fp8(lhs_t, rhs, row_scale, column_scale):
    """lhs_t [K, M] and rhs [K, N] in one FP8 format; result [M, N] in bfloat16.

    K is a multiple of 256, M of 128, N of 512. row_scale [M, 1] and column_scale [1, N], fp32,
    undo the scaling of the quantiser: result = (lhs_t.T @ rhs) * row_scale * column_scale.
    """
    K, M = lhs_t.shape
    N = rhs.shape[1]
    assert K % 256 == 0 and M % 128 == 0 and N % 512 == 0
    pairs = K // 256
    out = nl.ndarray((M, N), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    ones = nl.ndarray((1, 128), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)

    for n in range(N // 512):
        columns = slice(n * 512, (n + 1) * 512)
        # Partition p holds the terms p and 128 + p of each group of 256, side by side.
        moving = nl.ndarray((128, 2 * pairs, 512), dtype=rhs.dtype, buffer=nl.sbuf)
        for k in range(2 * pairs):
            nisa.dma_copy(dst=moving[:, k, :], src=rhs[k * 128 : (k + 1) * 128, columns])
        scale = nl.ndarray((1, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=scale, src=column_scale[:, columns])
        spread_psum = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=spread_psum, stationary=ones, moving=scale, accumulate=False)
        spread = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=spread, src=spread_psum)

        for m in range(M // 128):
            rows = slice(m * 128, (m + 1) * 128)
            stationary = nl.ndarray((128, 2 * pairs, 128), dtype=lhs_t.dtype, buffer=nl.sbuf)
            for k in range(2 * pairs):
                nisa.dma_copy(dst=stationary[:, k, :], src=lhs_t[k * 128 : (k + 1) * 128, rows])
            row_factor = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=row_factor, src=row_scale[rows, :])
            total = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for k in range(pairs):
                nisa.nc_matmul(
                    dst=total,
                    stationary=stationary[:, 2 * k : 2 * k + 2, :],
                    moving=moving[:, 2 * k : 2 * k + 2, :],
                    accumulate=(k > 0),
                    perf_mode=nisa.matmul_perf_mode.double_row,
                )
            result = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.sbuf)
            # The vector instruction that empties PSUM applies both scales.
            nisa.scalar_tensor_tensor(
                dst=result, data=total, op0=nl.multiply, operand0=row_factor,
                op1=nl.multiply, operand1=spread,
            )  # fmt: skip
            nisa.dma_copy(dst=out[rows, columns], src=result)
    return out
