// y = softmax(x) over the last dimension; float32, any row length.
#include "chip.h"
#include <riscv_vector.h>

// exp(x) = 2^k * 2^f with k = round(x / ln 2): a polynomial of degree 6 for 2^f.
static inline vfloat32m4_t vexp(vfloat32m4_t x, size_t vl) {
  x = __riscv_vfmax_vf_f32m4(x, -87.0f, vl);
  vfloat32m4_t z = __riscv_vfmul_vf_f32m4(x, 1.44269504f, vl);
  vint32m4_t k = __riscv_vfcvt_x_f_v_i32m4(z, vl);
  vfloat32m4_t n = __riscv_vfcvt_f_x_v_f32m4(k, vl);
  vfloat32m4_t r = __riscv_vfnmsac_vf_f32m4(x, 0.693359375f, n, vl);
  r = __riscv_vfnmsac_vf_f32m4(r, -2.12194440e-4f, n, vl);
  vfloat32m4_t p = __riscv_vfmv_v_f_f32m4(1.9875691500e-4f, vl);
  const float c[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                     5.0000001201e-1f, 1.0f, 1.0f};
  for (int i = 0; i < 7; i++)
    p = __riscv_vfmadd_vv_f32m4(p, r, __riscv_vfmv_v_f_f32m4(c[i], vl), vl);
  vint32m4_t bits = __riscv_vsll_vx_i32m4(__riscv_vadd_vx_i32m4(k, 127, vl), 23, vl);
  return __riscv_vfmul_vv_f32m4(p, __riscv_vreinterpret_v_i32m4_f32m4(bits), vl);
}

void kernlore_run(const tensor *t) {
  const int columns = t[0].shape[t[0].ndim - 1], rows = t[0].elements / columns;
  for (int row = 0; row < rows; row++) {
    const float *x = (const float *)t[0].data + (size_t)row * columns;
    float *y = (float *)t[1].data + (size_t)row * columns;
    vfloat32m1_t best = __riscv_vfmv_s_f_f32m1(-3.4e38f, 1);
    for (size_t at = 0, vl; at < columns; at += vl) {
      vl = __riscv_vsetvl_e32m4(columns - at);
      best = __riscv_vfredmax_vs_f32m4_f32m1(__riscv_vle32_v_f32m4(x + at, vl), best, vl);
    }
    const float top = __riscv_vfmv_f_s_f32m1_f32(best);
    vfloat32m1_t sum = __riscv_vfmv_s_f_f32m1(0.0f, 1);
    for (size_t at = 0, vl; at < columns; at += vl) {
      vl = __riscv_vsetvl_e32m4(columns - at);
      vfloat32m4_t e = vexp(__riscv_vfsub_vf_f32m4(__riscv_vle32_v_f32m4(x + at, vl), top, vl), vl);
      __riscv_vse32_v_f32m4(y + at, e, vl);
      sum = __riscv_vfredusum_vs_f32m4_f32m1(e, sum, vl);
    }
    const float scale = 1.0f / __riscv_vfmv_f_s_f32m1_f32(sum);
    for (size_t at = 0, vl; at < columns; at += vl) {
      vl = __riscv_vsetvl_e32m8(columns - at);
      vfloat32m8_t e = __riscv_vle32_v_f32m8(y + at, vl);
      __riscv_vse32_v_f32m8(y + at, __riscv_vfmul_vf_f32m8(e, scale, vl), vl);
    }
  }
}
