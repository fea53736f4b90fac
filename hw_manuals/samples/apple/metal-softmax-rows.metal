// Metal softmax of rows: one threadgroup a row, SIMD reductions, one reading for maximum and sum.
// Dispatch one threadgroup of 256 x 1 x 1 threads for each row of x[rows][columns].

#include <metal_stdlib>
using namespace metal;

constant constexpr uint SIMD_GROUPS = 8;  // 256 threads

kernel void softmax_rows(device const half* x [[buffer(0)]],
                         device half* y [[buffer(1)]],
                         constant uint& columns [[buffer(2)]],
                         uint row [[threadgroup_position_in_grid]],
                         uint thread_id [[thread_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]],
                         uint simd_id [[simdgroup_index_in_threadgroup]]) {
    threadgroup float bests[SIMD_GROUPS], sums[SIMD_GROUPS];
    device const half* source = x + row * columns;
    device half* target = y + row * columns;

    // Running maximum and sum of one thread; the sum is rescaled when the maximum grows.
    float best = -3.0e38f, sum = 0.0f;
    for (uint c = thread_id; c < columns; c += SIMD_GROUPS * 32) {
        const float value = float(source[c]);
        const float larger = max(best, value);
        sum = sum * exp(best - larger) + exp(value - larger);
        best = larger;
    }
    const float group_best = simd_max(best);
    sum = simd_sum(sum * exp(best - group_best));
    if (lane == 0) {
        bests[simd_id] = group_best;
        sums[simd_id] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float row_best = bests[0];
    for (uint i = 1; i < SIMD_GROUPS; ++i) row_best = max(row_best, bests[i]);
    float row_sum = 0.0f;
    for (uint i = 0; i < SIMD_GROUPS; ++i) row_sum += sums[i] * exp(bests[i] - row_best);
    const float inverse = 1.0f / row_sum;
    for (uint c = thread_id; c < columns; c += SIMD_GROUPS * 32)
        target[c] = half(exp(float(source[c]) - row_best) * inverse);
}
