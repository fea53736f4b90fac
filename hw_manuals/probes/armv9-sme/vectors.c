/* Vector length and conventions of streaming mode, one value for each probe. */
#include "chip.h"
#include <arm_sme.h>

static void measure(float *out, float zero) __arm_streaming {
  const svbool_t all = svptrue_b32();
  int32_t lanes[64];
  float floats[64];
  out[0] = 8 * (float)svcntb();
  out[1] = (float)svcntb() * (float)svcntb();
  svst1(all, lanes, svcvt_s32_x(all, svdup_f32(zero / zero)));
  out[2] = (float)lanes[0];
  svst1(all, lanes, svdiv_x(all, svdup_s32(7), svdup_s32((int)zero)));
  out[3] = (float)lanes[0];
  svst1(all, floats, svmaxnm_x(all, svdup_f32(zero / zero), svdup_f32(1.0f)));
  out[4] = floats[0] == 1.0f;
  svst1(all, floats, svmax_x(all, svdup_f32(zero / zero), svdup_f32(1.0f)));
  out[5] = floats[0] != floats[0];
  svst1(all, lanes, svlsl_x(all, svdup_s32(1), svdup_u32(33 + (uint32_t)zero)));
  out[6] = (float)lanes[0];
}

void kernlore_run(const tensor *t) {
  volatile float zero = 0.0f;
  measure(t[1].data, zero);
}
