// C[M][32] (int32) = A[M][K] (uint8) B[K][32] (int8); K a multiple of 4.
// vrmpy multiplies four neighbouring bytes and adds them to a word: B is packed so that the four
// rows of a group lie next to each other, one 128-byte vector for each group of four rows.
#include "chip.h"
#include <hexagon_types.h>
#include <hvx_hexagon_protos.h>

static HVX_Vector packed[4096];

void kernlore_run(const tensor *t) {
  const unsigned char *a = t[0].data;
  const signed char *b = t[1].data;
  HVX_Vector *c = t[2].data;
  const int rows = t[0].shape[0], k = t[0].shape[1];
  for (int g = 0; g < k / 4; g++) {
    // Each shuffle interleaves the halves of a vector: two turn four rows of 32 into 32 quads.
    HVX_Vector four = ((const HVX_Vector *)b)[g];
    packed[g] = Q6_Vb_vshuff_Vb(Q6_Vb_vshuff_Vb(four));
  }
  for (int i = 0; i < rows; i++) {
    HVX_Vector sum = Q6_V_vzero();
    const unsigned *quads = (const unsigned *)(a + i * k);
    for (int g = 0; g < k / 4; g++)
      sum = Q6_Vw_vrmpyacc_VwVubVb(sum, Q6_V_vsplat_R(quads[g]), packed[g]);
    c[i] = sum;
  }
}
