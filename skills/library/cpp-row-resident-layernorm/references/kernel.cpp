// Layer norm over the last dimension: a row is read once from memory; the deviations and the result
// come from the cache.
#include "kernlore_abi.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

constexpr int LANES = @{lanes}, UNROLL = @{unroll}, AHEAD = @{ahead};
typedef float vec __attribute__((vector_size(4 * LANES)));
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

template <typename Body>
inline __attribute__((always_inline)) void sweep(int64_t width, Body body) {
  int64_t j = 0;
  for (; j + LANES * UNROLL <= width; j += LANES * UNROLL)
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL; u++) body(u, j + u * LANES, LANES);
  for (; j < width; j += LANES) body(0, j, std::min<int64_t>(LANES, width - j));
}

inline float added(const vec (&parts)[UNROLL]) {
  float total = 0;
  for (const vec &part : parts)
    for (int l = 0; l < LANES; l++) total += part[l];
  return total;
}

// The processor is asked for the row AHEAD places on while this one is summed.
void row(const float *x, const float *weight, const float *bias, float *y, int64_t width) {
  vec sums[UNROLL] = {}, squares[UNROLL] = {};
  sweep(width, [&](int u, int64_t j, int64_t count) __attribute__((always_inline)) {
    if (AHEAD) __builtin_prefetch(x + AHEAD * width + j);
    sums[u] += load(x + j, count, 0);
  });
  const float mean = added(sums) / width;
  sweep(width, [&](int u, int64_t j, int64_t count) __attribute__((always_inline)) {
    const vec deviation = load(x + j, count, mean) - mean;
    squares[u] += deviation * deviation;
  });
  const float inverse = 1 / std::sqrt(added(squares) / width + @{eps}f);
  sweep(width, [&](int, int64_t j, int64_t count) __attribute__((always_inline)) {
    const vec normed = (load(x + j, count, 0) - mean) * inverse;
    store(y + j, count, normed * load(weight + j, count, 0) + load(bias + j, count, 0));
  });
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
#pragma omp parallel for schedule(static, @{chunk})
  for (int64_t i = 0; i < rows; i++) row(x + i * width, weight, bias, y + i * width, width);
  return 0;
}
