"""NKI RMS norm: squares are summed on the Scalar Engine while the Vector Engine scales."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def rmsnorm(x, weight, eps=1e-6):
    """RMS norm of x [rows, features] over the features, times weight [1, features]."""
    rows, features = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    # A product with a column of ones copies the weight to all partitions, 512 columns at a time.
    ones = nl.ndarray((1, 128), dtype=weight.dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    row = nl.ndarray((1, features), dtype=weight.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=row, src=weight)
    spread = nl.ndarray((128, features), dtype=nl.float32, buffer=nl.sbuf)
    for j in range((features + 511) // 512):
        start = j * 512
        width = min(512, features - start)
        copies = nl.ndarray((128, width), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(
            dst=copies, stationary=ones, moving=row[:, start : start + width], accumulate=False
        )
        nisa.tensor_copy(dst=spread[:, start : start + width], src=copies)

    for i in range((rows + 127) // 128):
        first = i * 128
        count = min(128, rows - first)
        tile = nl.ndarray((count, features), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[first : first + count, :])
        squares = nl.ndarray((count, features), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(
            dst=squares, op=nl.square, data=tile, scale=1.0,
            reduce_op=nl.add, reduce_res=total, reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip
        mean = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=mean, data=total, op0=nl.multiply, operand0=1.0 / features, op1=nl.add, operand1=eps
        )
        factor = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=factor, op=nl.rsqrt, data=mean, scale=1.0)
        result = nl.ndarray((count, features), dtype=x.dtype, buffer=nl.sbuf)
        # (x * factor) * weight in one pass of the Vector Engine.
        nisa.scalar_tensor_tensor(
            dst=result, data=tile, op0=nl.multiply, operand0=factor,
            op1=nl.multiply, operand1=spread[0:count, :],
        )  # fmt: skip
        nisa.dma_copy(dst=out[first : first + count, :], src=result)
    return out
