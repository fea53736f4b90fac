// Metal matrix product with simdgroup matrices: C[M][N] = A[M][K] * B[K][N], half in, float sums.
// 128 threads (4 SIMD groups) a threadgroup, a block of 64 x 64 of C, 32 steps of K at a time.
// Dispatch ceil(N / 64) x ceil(M / 64) threadgroups of 128 x 1 x 1 threads. Any M, N and K.

#include <metal_stdlib>
using namespace metal;

constant constexpr uint BM = 64, BN = 64, BK = 32;
constant constexpr uint THREADS = 128;

kernel void matmul(device const half* A [[buffer(0)]],
                   device const half* B [[buffer(1)]],
                   device half* C [[buffer(2)]],
                   constant uint& M [[buffer(3)]],
                   constant uint& N [[buffer(4)]],
                   constant uint& K [[buffer(5)]],
                   uint2 group [[threadgroup_position_in_grid]],
                   uint thread_id [[thread_index_in_threadgroup]],
                   uint simd_id [[simdgroup_index_in_threadgroup]]) {
    threadgroup half a_tile[BM * BK];     // 4 KiB
    threadgroup half b_tile[BK * BN];     // 4 KiB
    threadgroup float c_tile[BM * BN];    // 16 KiB: 24 of the 32 KiB that a threadgroup has

    const uint row0 = group.y * BM, col0 = group.x * BN;
    const uint sub_row = (simd_id / 2) * 32, sub_col = (simd_id % 2) * 32;

    simdgroup_float8x8 sums[4][4];
    for (uint i = 0; i < 4; ++i)
        for (uint j = 0; j < 4; ++j)
            sums[i][j] = simdgroup_float8x8(0.0f);

    for (uint k0 = 0; k0 < K; k0 += BK) {
        // Neighbouring threads copy neighbouring elements; what lies outside is zero.
        for (uint e = thread_id; e < BM * BK; e += THREADS) {
            const uint r = e / BK, c = e % BK;
            const bool inside = row0 + r < M && k0 + c < K;
            a_tile[e] = inside ? A[(row0 + r) * K + k0 + c] : half(0);
        }
        for (uint e = thread_id; e < BK * BN; e += THREADS) {
            const uint r = e / BN, c = e % BN;
            const bool inside = k0 + r < K && col0 + c < N;
            b_tile[e] = inside ? B[(k0 + r) * N + col0 + c] : half(0);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        for (uint k = 0; k < BK; k += 8) {
            simdgroup_half8x8 a[4], b[4];
            for (uint i = 0; i < 4; ++i) {
                simdgroup_load(a[i], a_tile + (sub_row + i * 8) * BK + k, BK);
                simdgroup_load(b[i], b_tile + k * BN + sub_col + i * 8, BN);
            }
            for (uint i = 0; i < 4; ++i)
                for (uint j = 0; j < 4; ++j)
                    simdgroup_multiply_accumulate(sums[i][j], a[i], b[j], sums[i][j]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    // Through threadgroup memory, because an 8 x 8 store has no bounds and no conversion.
    for (uint i = 0; i < 4; ++i)
        for (uint j = 0; j < 4; ++j)
            simdgroup_store(sums[i][j], c_tile + (sub_row + i * 8) * BN + sub_col + j * 8, BN);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = thread_id; e < BM * BN; e += THREADS) {
        const uint r = row0 + e / BN, c = col0 + e % BN;
        if (r < M && c < N) C[r * N + c] = half(c_tile[e]);
    }
}
