// silu(x * scale + shift) * gate + x in one pass: every tensor moves through memory once.
#include "kernlore_abi.h"

#include <algorithm>
#include <cstring>

namespace {

constexpr int LANES = @{lanes}, UNROLL = @{unroll};
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES)));
typedef float unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// `count` elements, the rest of the vector 0.
inline __attribute__((always_inline)) vec load(const float *p, int64_t count) {
  if (count == LANES) return *(const unaligned *)p;
  vec v = {};
  std::memcpy(&v, p, count * sizeof(float));
  return v;
}

inline __attribute__((always_inline)) void store(float *p, int64_t count, vec v) {
  if (count == LANES)
    *(unaligned *)p = v;
  else
    std::memcpy(p, &v, count * sizeof(float));
}

// exp(x) as 2^n times a polynomial (Cephes expf), x held where the result is a normal number.
// Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
inline __attribute__((always_inline)) vec exp_of(vec x) {
  x = x < -87.0f ? vec{} - 87.0f : x;
  x = x > 88.0f ? vec{} + 88.0f : x;
  const vec shifted = x * 1.44269504f + 12582912.0f;
  const vec n = shifted - 12582912.0f;
  const vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return p * (vec)(((bits)shifted + 127u) << 23);
}

inline __attribute__((always_inline)) void span(const float *x, const float *gate,
                                                const float *scale, const float *shift, float *y,
                                                int64_t count) {
  const vec v = load(x, count);
  const vec z = v * load(scale, count) + load(shift, count);
  store(y, count, z / (exp_of(-z) + 1.0f) * load(gate, count) + v);
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
#pragma omp parallel for schedule(static, @{chunk})
  for (int64_t i = 0; i < rows; i++) {
    const int64_t at = i * cols;
    int64_t j = 0;
    for (; j + LANES * UNROLL <= cols; j += LANES * UNROLL)
#pragma GCC unroll 8
      for (int u = 0; u < UNROLL; u++) {
        const int64_t k = j + u * LANES;
        span(x + at + k, gate + at + k, scale + k, shift + k, y + at + k, LANES);
      }
    for (; j < cols; j += LANES)
      span(x + at + j, gate + at + j, scale + j, shift + j, y + at + j,
           std::min<int64_t>(LANES, cols - j));
  }
  return 0;
}
