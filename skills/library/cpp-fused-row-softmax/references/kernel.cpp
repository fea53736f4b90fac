// Softmax over the last dimension: each row is read once from memory and then from the cache.
#include "kernlore_abi.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

constexpr int LANES = @{lanes}, UNROLL = @{unroll};
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES)));
typedef float unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// `count` elements, the rest of the vector `fill`.
inline __attribute__((always_inline)) vec load(const float *p, int64_t count, float fill) {
  if (count == LANES) return *(const unaligned *)p;
  vec v = vec{} + fill;
  std::memcpy(&v, p, count * sizeof(float));
  return v;
}

inline __attribute__((always_inline)) void store(float *p, int64_t count, vec v) {
  if (count == LANES)
    *(unaligned *)p = v;
  else
    std::memcpy(p, &v, count * sizeof(float));
}

// exp(x) for x <= 0, as 2^n times a polynomial (Cephes expf); 0 below the normal numbers. Adding
// 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
inline __attribute__((always_inline)) vec exp_of(vec x) {
  const vec shifted = x * 1.44269504f + 12582912.0f;
  const vec n = shifted - 12582912.0f;
  const vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const vec scale = (vec)(((bits)shifted + 127u) << 23);
  return x < -87.0f ? vec{} : p * scale;
}

template <typename Body>
inline __attribute__((always_inline)) void sweep(int64_t cols, Body body) {
  int64_t j = 0;
  for (; j + LANES * UNROLL <= cols; j += LANES * UNROLL)
    for (int u = 0; u < UNROLL; u++) body(u, j + u * LANES, LANES);
  for (; j < cols; j += LANES) body(0, j, std::min<int64_t>(LANES, cols - j));
}

void row(const float *x, float *y, int64_t cols) {
  vec most[UNROLL], sums[UNROLL] = {};
  for (vec &m : most) m = vec{} - INFINITY;
  sweep(cols, [&](int u, int64_t j, int64_t count) __attribute__((always_inline)) {
    const vec v = load(x + j, count, -INFINITY);
    most[u] = v > most[u] ? v : most[u];
  });
  float top = -INFINITY, total = 0;
  for (const vec &m : most)
    for (int l = 0; l < LANES; l++) top = std::max(top, m[l]);
  sweep(cols, [&](int u, int64_t j, int64_t count) __attribute__((always_inline)) {
    const vec e = exp_of(load(x + j, count, -INFINITY) - top);
    sums[u] += e;
    store(y + j, count, e);
  });
  for (const vec &s : sums)
    for (int l = 0; l < LANES; l++) total += s[l];
  const float inverse = 1 / total;
  sweep(cols, [&](int, int64_t j, int64_t count) __attribute__((always_inline)) {
    store(y + j, count, load(y + j, count, 0) * inverse);
  });
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
#pragma omp parallel for schedule(static, @{chunk})
  for (int64_t i = 0; i < rows; i++) row(x + i * cols, y + i * cols, cols);
  return 0;
}
