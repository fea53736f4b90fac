"""NKI transpose through the Tensor Engine: straight loads, turned tiles, long stores."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def transpose(x):
    """x [rows, columns] to [columns, rows]; both multiples of 128.

    Loads and stores move whole rows, 128 partitions at a time, so each descriptor carries as many
    bytes as a row block has. Only the 128 x 128 tiles are turned, in PSUM.
    """
    rows, columns = x.shape
    assert rows % 128 == 0 and columns % 128 == 0
    block = min(16, rows // 128)  # row tiles that one store of the result covers
    out = nl.ndarray((columns, rows), dtype=x.dtype, buffer=nl.shared_hbm)
    for group in range((rows // 128 + block - 1) // block):
        first = group * block
        count = min(block, rows // 128 - first)
        # [128 rows of a tile, tile, columns]: the loads are contiguous in x.
        source = nl.ndarray((128, count, columns), dtype=x.dtype, buffer=nl.sbuf)
        for t in range(count):
            start = (first + t) * 128
            nisa.dma_copy(dst=source[:, t, :], src=x[start : start + 128, :])
        for c in range(columns // 128):
            result = nl.ndarray((128, count * 128), dtype=x.dtype, buffer=nl.sbuf)
            for t in range(count):
                turned = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.psum)
                nisa.nc_transpose(dst=turned, data=source[:, t, c * 128 : (c + 1) * 128])
                nisa.tensor_copy(dst=result[:, t * 128 : (t + 1) * 128], src=turned)
            nisa.dma_copy(
                dst=out[c * 128 : (c + 1) * 128, first * 128 : (first + count) * 128], src=result
            )
    return out
