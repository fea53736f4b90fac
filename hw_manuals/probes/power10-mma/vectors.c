/* Vector length and conventions of Power10, one value for each probe. */
#include "chip.h"
#include <altivec.h>

void kernlore_run(const tensor *t) {
  float *out = t[1].data;
  volatile float zero = 0.0f;
  static int32_t lanes[16] __attribute__((aligned(64)));
  for (int n = 0; n < 16; n++) lanes[n] = 1;
  *(vector signed int *)lanes = vec_splats((int)zero);
  int stored = 0;
  while (stored < 16 && lanes[stored] == 0) stored++;
  out[0] = 32 * (float)stored;
  *(vector signed int *)lanes = vec_signed(vec_splats((float)(zero / zero)));
  out[1] = lanes[0] == INT32_MIN;
  *(vector unsigned int *)lanes = vec_sl(vec_splats(1u), vec_splats(33u + (unsigned)zero));
  out[2] = (float)lanes[0];
  *(vector float *)lanes = vec_max(vec_splats((float)(zero / zero)), vec_splats(1.0f));
  out[3] = *(float *)lanes == 1.0f;
  /* Sums of bfloat16 products keep 1 and 2^-20 apart. */
  __vector_quad sum;
  vector unsigned char one = (vector unsigned char)vec_splats((unsigned short)(0x3f80 + (int)zero));
  vector unsigned char small = (vector unsigned char)vec_splats((unsigned short)(0x3580 + (int)zero));
  float rows[4][4];
  __builtin_mma_xvbf16ger2(&sum, one, one);
  __builtin_mma_xvbf16ger2pp(&sum, one, small);
  __builtin_mma_disassemble_acc(rows, &sum);
  out[4] = rows[0][0] == 2.0f + 0x1p-19f;
}
