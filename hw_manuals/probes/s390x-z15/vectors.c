/* Vector length, byte order and conventions of z15, one value for each probe. */
#include "chip.h"
#include <vecintrin.h>

void kernlore_run(const tensor *t) {
  float *out = t[1].data;
  volatile float zero = 0.0f;
  static int32_t lanes[16] __attribute__((aligned(64)));
  for (int n = 0; n < 16; n++) lanes[n] = 1;
  *(vector signed int *)lanes = vec_splats((int)zero);
  int stored = 0;
  while (stored < 16 && lanes[stored] == 0) stored++;
  out[0] = 32 * (float)stored;
  lanes[0] = 0x01020304;
  out[1] = *(volatile uint8_t *)lanes == 1;
  *(vector signed int *)lanes = vec_signed(vec_splats((float)(zero / zero)));
  out[2] = lanes[0] == INT32_MIN;
}
