/* Vector length and conventions of RVV, one value for each probe. */
#include "chip.h"
#include <riscv_vector.h>

void kernlore_run(const tensor *t) {
  float *out = t[1].data;
  volatile float zero = 0.0f;
  int32_t lanes[64];
  float floats[64];
  const size_t vl = __riscv_vsetvl_e32m1(4);
  out[0] = 8 * (float)__riscv_vsetvlmax_e8m1();
  out[1] = (float)__riscv_vsetvlmax_e8m8() / (float)__riscv_vsetvlmax_e8m1();
  out[2] = (float)__riscv_vsetvl_e32m8(5);
  const vfloat32m1_t nan = __riscv_vfmv_v_f_f32m1(zero / zero, vl), one = __riscv_vfmv_v_f_f32m1(1.0f, vl);
  __riscv_vse32_v_i32m1(lanes, __riscv_vfcvt_rtz_x_f_v_i32m1(nan, vl), vl);
  out[3] = lanes[0] == INT32_MAX;
  __riscv_vse32_v_i32m1(lanes, __riscv_vdiv_vx_i32m1(__riscv_vmv_v_x_i32m1(7, vl), (int)zero, vl), vl);
  out[4] = (float)lanes[0];
  __riscv_vse32_v_f32m1(floats, __riscv_vfmax_vv_f32m1(nan, one, vl), vl);
  out[5] = floats[0] == 1.0f;
  __riscv_vse32_v_i32m1(lanes, __riscv_vsll_vx_i32m1(__riscv_vmv_v_x_i32m1(1, vl), 33 + (size_t)zero, vl), vl);
  out[6] = (float)lanes[0];
  const vfloat32m1_t tiny = __riscv_vfmv_v_f_f32m1(0x1p-126f, vl);
  __riscv_vse32_v_f32m1(floats, __riscv_vfmul_vf_f32m1(tiny, 0.5f + zero, vl), vl);
  out[7] = floats[0] != 0.0f;
  __riscv_vse32_v_i32m1(lanes, __riscv_vfcvt_x_f_v_i32m1(__riscv_vfmv_v_f_f32m1(2.5f + zero, vl), vl), vl);
  out[8] = (float)lanes[0];
}
