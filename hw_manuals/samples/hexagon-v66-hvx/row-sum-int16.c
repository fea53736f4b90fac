// y[r] = sum of x[r][:]; int16 in, int32 out; row length a multiple of 64.
#include "chip.h"
#include <hexagon_types.h>
#include <hvx_hexagon_protos.h>

void kernlore_run(const tensor *t) {
  const HVX_Vector *x = t[0].data;
  int *y = t[1].data;
  const int rows = t[0].shape[0], vectors = t[0].shape[1] / 64;
  const int ones = 0x00010001; // vdmpy: a pair of halfwords times (1, 1), added to a word
  for (int r = 0; r < rows; r++) {
    HVX_Vector sum = Q6_V_vzero();
    for (int v = 0; v < vectors; v++) sum = Q6_Vw_vdmpyacc_VwVhRh_sat(sum, *x++, ones);
    for (int turn = 64; turn >= 4; turn >>= 1) // fold 32 words into one
      sum = Q6_Vw_vadd_VwVw(sum, Q6_V_vror_VR(sum, turn));
    y[r] = Q6_R_vextract_VR(sum, 0);
  }
}
