/* Vector length, alignment and saturation of HVX, one value for each probe. */
#include "chip.h"
#include <hexagon_types.h>
#include <hexagon_protos.h>
#include <hvx_hexagon_protos.h>

void kernlore_run(const tensor *t) {
  static uint8_t bytes[512] __attribute__((aligned(128)));
  float *out = t[1].data;
  volatile int zero = 0;
  for (int n = 0; n < 512; n++) bytes[n] = (uint8_t)(1 + n % 200);
  *(HVX_Vector *)bytes = Q6_V_vsplat_R(zero);
  int stored = 0;
  while (stored < 512 && bytes[stored] == 0) stored++;
  out[0] = 8 * (float)stored;
  for (int n = 0; n < 512; n++) bytes[n] = (uint8_t)(1 + n % 200);
  HVX_Vector shifted = *(HVX_Vector *)(bytes + 128 + 5 + zero);
  *(HVX_Vector *)(bytes + 256) = shifted;
  out[1] = bytes[256] == bytes[128];
  *(HVX_Vector *)(bytes + 256) = Q6_Vub_vadd_VubVub_sat(Q6_V_vsplat_R(0xc8c8c8c8 + zero), Q6_V_vsplat_R(0x64646464));
  out[2] = bytes[256];
  *(HVX_Vector *)(bytes + 256) = Q6_Vw_vasl_VwR(Q6_V_vsplat_R(1), 33 + zero);
  out[3] = (float)*(int32_t *)(bytes + 256);
}
