"""NKI attention forward: scores never leave the core, one pass over the keys."""

import nki
import nki.isa as nisa
import nki.language as nl

MASKED = -30000.0  # finite in bf16 and fp32: minus infinity minus itself is NaN


def softmax_step(scores, best, total, weights, shrink):
    """Folds one block of scores [128, keys] into the running maximum and sum, in place."""
    rows = scores.shape[0]
    block_best = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=block_best, op=nl.maximum, data=scores, axis=1)
    new_best = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=new_best, data1=best, data2=block_best, op=nl.maximum)
    negative = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=negative, data=new_best, op0=nl.multiply, operand0=-1.0)
    # exp(old - new) rescales what was gathered so far.
    nisa.activation(dst=shrink, op=nl.exp, data=best, bias=negative, scale=1.0)
    block_sum = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=weights, op=nl.exp, data=scores, bias=negative, scale=1.0,
        reduce_op=nl.add, reduce_res=block_sum, reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )  # fmt: skip
    nisa.scalar_tensor_tensor(
        dst=total, data=total, op0=nl.multiply, operand0=shrink, op1=nl.add, operand1=block_sum
    )
    nisa.tensor_copy(dst=best, src=new_best)


@nki.jit
def attention(q_t, k_t, v, causal=True):
    """q_t [heads, size, queries], k_t [heads, size, keys], v [heads, keys, size]; size <= 128.

    Result [heads, queries, size]. Lengths are multiples of 128 and keys also of 512 where there
    are more than 512. Queries and keys come with the head size first, which is the layout of a
    key cache that was made for this kernel: no operand is transposed here but the weights.
    """
    heads, size, queries = q_t.shape
    keys = k_t.shape[2]
    block = min(512, keys)
    assert size <= 128 and queries % 128 == 0 and keys % block == 0 and block % 128 == 0
    assert not causal or queries == keys
    scale = size**-0.5
    out = nl.ndarray((heads, queries, size), dtype=q_t.dtype, buffer=nl.shared_hbm)

    for head in range(heads):
        for i in range(queries // 128):
            rows = slice(i * 128, (i + 1) * 128)
            query = nl.ndarray((size, 128), dtype=q_t.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=query, src=q_t[head, :, rows])
            best = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
            total = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
            gathered = nl.ndarray((128, size), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=best, value=MASKED)
            nisa.memset(dst=total, value=0.0)
            nisa.memset(dst=gathered, value=0.0)
            last = (i * 128 + 127) // block + 1 if causal else keys // block
            for j in range(last):
                key = nl.ndarray((size, block), dtype=k_t.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=key, src=k_t[head, :, j * block : (j + 1) * block])
                raw = nl.ndarray((128, block), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=raw, stationary=query, moving=key, accumulate=False)
                scores = nl.ndarray((128, block), dtype=nl.float32, buffer=nl.sbuf)
                nisa.tensor_scalar(dst=scores, data=raw, op0=nl.multiply, operand0=scale)
                if causal and (j + 1) * block > i * 128:
                    # Keeps the score where query - key >= 0; partitions count queries.
                    nisa.affine_select(
                        dst=scores, pattern=[[-1, block]], offset=i * 128 - j * block,
                        channel_multiplier=1, cmp_op=nl.greater_equal,
                        on_true_tile=scores, on_false_value=MASKED,
                    )  # fmt: skip
                weights = nl.ndarray((128, block), dtype=v.dtype, buffer=nl.sbuf)
                shrink = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
                softmax_step(scores, best, total, weights, shrink)
                product = nl.ndarray((128, size), dtype=nl.float32, buffer=nl.psum)
                for part in range(block // 128):
                    # The second product contracts over keys: they must lie on partitions.
                    turned_psum = nl.ndarray((128, 128), dtype=v.dtype, buffer=nl.psum)
                    nisa.nc_transpose(
                        dst=turned_psum, data=weights[:, part * 128 : (part + 1) * 128]
                    )
                    turned = nl.ndarray((128, 128), dtype=v.dtype, buffer=nl.sbuf)
                    nisa.tensor_copy(dst=turned, src=turned_psum)
                    value = nl.ndarray((128, size), dtype=v.dtype, buffer=nl.sbuf)
                    start = j * block + part * 128
                    nisa.dma_copy(dst=value, src=v[head, start : start + 128, :])
                    nisa.nc_matmul(
                        dst=product, stationary=turned, moving=value, accumulate=(part > 0)
                    )
                nisa.scalar_tensor_tensor(
                    dst=gathered, data=gathered, op0=nl.multiply, operand0=shrink,
                    op1=nl.add, operand1=product,
                )  # fmt: skip
            inverse = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.reciprocal(dst=inverse, data=total)
            result = nl.ndarray((128, size), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=result, data=gathered, op0=nl.multiply, operand0=inverse)
            nisa.dma_copy(dst=out[head, rows, :], src=result)
    return out
