// C[M][N] = A[M][K] B[K][N]; float32, any sizes. Four rows of C share each load of B.
#include "chip.h"
#include <riscv_vector.h>

void kernlore_run(const tensor *t) {
  const float *a = t[0].data, *b = t[1].data;
  float *c = t[2].data;
  const size_t m = t[0].shape[0], k = t[0].shape[1], n = t[1].shape[1];
  for (size_t j = 0, vl; j < n; j += vl) {
    vl = __riscv_vsetvl_e32m4(n - j);
    size_t i = 0;
    for (; i + 4 <= m; i += 4) {
      vfloat32m4_t s0 = __riscv_vfmv_v_f_f32m4(0.0f, vl), s1 = s0, s2 = s0, s3 = s0;
      const float *a0 = a + i * k, *a1 = a0 + k, *a2 = a1 + k, *a3 = a2 + k;
      for (size_t p = 0; p < k; p++) {
        vfloat32m4_t row = __riscv_vle32_v_f32m4(b + p * n + j, vl);
        s0 = __riscv_vfmacc_vf_f32m4(s0, a0[p], row, vl);
        s1 = __riscv_vfmacc_vf_f32m4(s1, a1[p], row, vl);
        s2 = __riscv_vfmacc_vf_f32m4(s2, a2[p], row, vl);
        s3 = __riscv_vfmacc_vf_f32m4(s3, a3[p], row, vl);
      }
      __riscv_vse32_v_f32m4(c + i * n + j, s0, vl);
      __riscv_vse32_v_f32m4(c + (i + 1) * n + j, s1, vl);
      __riscv_vse32_v_f32m4(c + (i + 2) * n + j, s2, vl);
      __riscv_vse32_v_f32m4(c + (i + 3) * n + j, s3, vl);
    }
    for (; i < m; i++) {
      vfloat32m4_t s = __riscv_vfmv_v_f_f32m4(0.0f, vl);
      for (size_t p = 0; p < k; p++)
        s = __riscv_vfmacc_vf_f32m4(s, a[i * k + p], __riscv_vle32_v_f32m4(b + p * n + j, vl), vl);
      __riscv_vse32_v_f32m4(c + i * n + j, s, vl);
    }
  }
}
