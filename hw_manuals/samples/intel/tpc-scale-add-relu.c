// TPC-C element-wise chain in fp32: relu(x * scale + y), one read of each input, one write.
// A unit of the index space is 64 elements of dimension 0 and one of each other dimension.

void main(tensor x, tensor y, tensor output, float scale) {
    const int5 start = get_index_space_offset();
    const int5 end = get_index_space_size() + start;
    const float64 zero = 0.0f;

    for (int b = start[3]; b < end[3]; b += 1) {
        for (int h = start[2]; h < end[2]; h += 1) {
            for (int d = start[0] * 64; d < end[0] * 64; d += 64) {
                // Unrolled along dimension 1: four independent loads hide the latency of one.
#pragma loop_unroll(4) unaligned_trip_count
                for (int w = start[1]; w < end[1]; w += 1) {
                    const int5 at = {d, w, h, b, 0};
                    const float64 left = v_f32_ld_tnsr_b(at, x);
                    const float64 right = v_f32_ld_tnsr_b(at, y);
                    v_f32_st_tnsr(at, output, v_f32_max_b(left * scale + right, zero));
                }
            }
        }
    }
}
