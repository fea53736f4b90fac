"""NKI matrix product: one PSUM bank gathers the whole reduction, operands are blocked in SBUF."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def matmul(lhs_t, rhs, rows_in_block=8):
    """lhs_t [K, M] (the left operand, transposed) times rhs [K, N]; result [M, N].

    M and K are multiples of 128, N of 512. The rhs columns of one N tile stay in SBUF while all
    row tiles pass, `rows_in_block` at a time: rhs is read once, lhs_t once for each N tile.
    """
    K, M = lhs_t.shape
    N = rhs.shape[1]
    tile_k, tile_m, tile_n = 128, 128, 512
    assert rhs.shape[0] == K and K % tile_k == 0 and M % tile_m == 0 and N % tile_n == 0
    steps = K // tile_k
    row_tiles = M // tile_m
    out = nl.ndarray((M, N), dtype=lhs_t.dtype, buffer=nl.shared_hbm)

    for n in range(N // tile_n):
        columns = slice(n * tile_n, (n + 1) * tile_n)
        # One tile a step of the reduction: [128, steps, 512], 1 KiB a partition and step in bf16.
        moving = nl.ndarray((tile_k, steps, tile_n), dtype=rhs.dtype, buffer=nl.sbuf)
        for k in range(steps):
            nisa.dma_copy(dst=moving[:, k, :], src=rhs[k * tile_k : (k + 1) * tile_k, columns])
        for block in range((row_tiles + rows_in_block - 1) // rows_in_block):
            first = block * rows_in_block
            count = min(rows_in_block, row_tiles - first)
            width = count * tile_m
            # One DMA brings the operand of all row tiles of the block: long runs in each row.
            stationary = nl.ndarray((tile_k, steps, width), dtype=lhs_t.dtype, buffer=nl.sbuf)
            for k in range(steps):
                nisa.dma_copy(
                    dst=stationary[:, k, :],
                    src=lhs_t[
                        k * tile_k : (k + 1) * tile_k, first * tile_m : first * tile_m + width
                    ],
                )
            for m in range(count):
                total = nl.ndarray((tile_m, tile_n), dtype=nl.float32, buffer=nl.psum)
                for k in range(steps):
                    nisa.nc_matmul(
                        dst=total,
                        stationary=stationary[:, k, m * tile_m : (m + 1) * tile_m],
                        moving=moving[:, k, :],
                        accumulate=(k > 0),
                    )
                result = nl.ndarray((tile_m, tile_n), dtype=out.dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=result, src=total)  # PSUM cannot be the source of a DMA
                row = (first + m) * tile_m
                nisa.dma_copy(dst=out[row : row + tile_m, columns], src=result)
    return out
