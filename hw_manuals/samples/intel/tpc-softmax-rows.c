// TPC-C softmax along dimension 0 in fp32: rows are spread over the cores by the index space.
// One row: maximum, sum of exponentials, result; three passes of 64 lanes each.

void main(tensor input, tensor output) {
    const int5 start = get_index_space_offset();
    const int5 end = get_index_space_size() + start;
    const int depth = get_dim_size(input, 0);
    const float64 lowest = -3.402823466e+38f;

    for (int b = start[3]; b < end[3]; b += 1) {
        for (int h = start[2]; h < end[2]; h += 1) {
            for (int w = start[1]; w < end[1]; w += 1) {
                int5 at = {0, w, h, b, 0};

                float64 maximum = lowest;
#pragma loop_unroll(4) unaligned_trip_count
                for (int d = 0; d < depth; d += 64) {
                    at[0] = d;
                    float64 x = v_f32_ld_tnsr_b(at, input);
                    // Lanes behind the row hold the padding value: they must not win.
                    const bool64 beyond = v_u32_cmp_geq_b(V_LANE_ID_32 + d, (unsigned)depth);
                    x = v_f32_mov_vb(lowest, 0, x, beyond, 0);
                    maximum = v_f32_max_b(maximum, x);
                }
                maximum = v_f32_reduce_max(maximum);  // in all lanes

                float64 sum = 0.0f;
#pragma loop_unroll(4) unaligned_trip_count
                for (int d = 0; d < depth; d += 64) {
                    at[0] = d;
                    float64 y = v_exp_cephes_f32(v_f32_ld_tnsr_b(at, input) - maximum);
                    const bool64 beyond = v_u32_cmp_geq_b(V_LANE_ID_32 + d, (unsigned)depth);
                    y = v_f32_mov_vb(0.0f, 0, y, beyond, 0);
                    sum = sum + y;
                }
                const float64 inverse = v_reciprocal_f32(v_f32_reduce_add(sum));

#pragma loop_unroll(4) unaligned_trip_count
                for (int d = 0; d < depth; d += 64) {
                    at[0] = d;
                    const float64 y = v_exp_cephes_f32(v_f32_ld_tnsr_b(at, input) - maximum);
                    v_f32_st_tnsr(at, output, y * inverse);  // lanes behind the row are culled
                }
            }
        }
    }
}
