"""NKI softmax of rows: four compute instructions a tile, each element crosses HBM once each way."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def softmax(x):
    """Softmax of x [rows, columns] along the columns; a row in fp32 has to fit a partition."""
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in range((rows + 127) // 128):
        first = i * 128
        count = min(128, rows - first)
        tile = nl.ndarray((count, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[first : first + count, :])
        lowest = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        # Minus the maximum, ready as the bias of the exponential.
        nisa.tensor_reduce(dst=lowest, op=nl.maximum, data=tile, axis=1, negate=True)
        powers = nl.ndarray((count, columns), dtype=nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(
            dst=powers, op=nl.exp, data=tile, bias=lowest, scale=1.0,
            reduce_op=nl.add, reduce_res=total, reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip
        inverse = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=inverse, data=total)
        result = nl.ndarray((count, columns), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=result, data=powers, op0=nl.multiply, operand0=inverse)
        nisa.dma_copy(dst=out[first : first + count, :], src=result)
    return out
