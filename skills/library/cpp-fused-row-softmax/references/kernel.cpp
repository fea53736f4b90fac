// Softmax over the last dimension: each row is read once from memory and once from the cache.
#include "kernlore_abi.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

constexpr int LANES = @{lanes};

// exp(x) for x <= 0, by 2^n times a polynomial (Cephes expf); vectorises, where the library's call
// does not.
inline float exp_of(float x) {
  x = std::max(x, -87.0f);
  const float n = std::floor(x * 1.44269504f + 0.5f);
  const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}

void row(const float *x, float *y, int64_t cols) {
  float most[LANES], sum[LANES];
  for (int l = 0; l < LANES; l++) most[l] = x[l], sum[l] = 0;
  const int64_t whole = cols / LANES * LANES;
  for (int64_t j = 0; j < whole; j += LANES)
    for (int l = 0; l < LANES; l++) most[l] = std::max(most[l], x[j + l]);
  float top = most[0];
  for (int l = 1; l < LANES; l++) top = std::max(top, most[l]);
  for (int64_t j = whole; j < cols; j++) top = std::max(top, x[j]);
  for (int64_t j = 0; j < whole; j += LANES)
    for (int l = 0; l < LANES; l++) sum[l] += y[j + l] = exp_of(x[j + l] - top);
  float total = 0;
  for (int l = 0; l < LANES; l++) total += sum[l];
  for (int64_t j = whole; j < cols; j++) total += y[j] = exp_of(x[j] - top);
  const float inverse = 1 / total;
  for (int64_t j = 0; j < cols; j++) y[j] *= inverse;
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
#pragma omp parallel for schedule(static, @{chunk})
  for (int64_t i = 0; i < rows; i++) row(x + i * cols, y + i * cols, cols);
  return 0;
}
