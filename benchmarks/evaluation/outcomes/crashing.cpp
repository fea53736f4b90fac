// Writes far outside of its output.
#include "kernlore_abi.h"
#include <algorithm>
#include <cmath>

static float *in(const kernlore_tensor *t, int n) { return (float *)t[n].data; }
static int64_t dim(const kernlore_tensor *t, int n, int d) { return t[n].shape[d]; }

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
  const int64_t rows = dim(t, 0, 0), cols = dim(t, 0, 1);
  const float *x = in(t, 0), *gate = in(t, 1), *scale = in(t, 2), *shift = in(t, 3);
  float *y = in(t, 4);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      const float v = x[i * cols + j] * scale[j] + shift[j];
      y[(i * cols + j) << 32] = v / (1 + std::exp(-v)) * gate[i * cols + j] + x[i * cols + j];
    }
  return 0;
}
