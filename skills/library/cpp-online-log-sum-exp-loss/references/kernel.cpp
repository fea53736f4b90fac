// Cross entropy of rows of logits: a row is read once; no probabilities are written. A piece in the
// first-level cache gives its maximum, then its exponentials; the sum so far is scaled to a new one.
#include "kernlore_abi.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

namespace {

constexpr int LANES = @{lanes}, UNROLL = @{unroll};
constexpr int64_t PIECE = @{piece};
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES)));
typedef float unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// `count` elements, the rest of the vector minus infinity: no maximum, and nothing as exponential.
inline __attribute__((always_inline)) vec load(const float *p, int64_t count) {
  if (count == LANES) return *(const unaligned *)p;
  vec v = vec{} - INFINITY;
  std::memcpy(&v, p, count * sizeof(float));
  return v;
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
inline __attribute__((always_inline)) void sweep(int64_t size, Body body) {
  int64_t j = 0;
  for (; j + LANES * UNROLL <= size; j += LANES * UNROLL)
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL; u++) body(u, j + u * LANES, LANES);
  for (; j < size; j += LANES) body(0, j, std::min<int64_t>(LANES, size - j));
}

float most_of(const float *x, int64_t size) {
  vec most[UNROLL];
  for (vec &m : most) m = vec{} - INFINITY;
  sweep(size, [&](int u, int64_t j, int64_t count) __attribute__((always_inline)) {
    const vec v = load(x + j, count);
    most[u] = v > most[u] ? v : most[u];
  });
  float top = -INFINITY;
  for (const vec &m : most)
    for (int l = 0; l < LANES; l++) top = std::max(top, m[l]);
  return top;
}

float exponentials(const float *x, int64_t size, float top) {
  vec sums[UNROLL] = {};
  sweep(size, [&](int u, int64_t j, int64_t count) __attribute__((always_inline)) {
    sums[u] += exp_of(load(x + j, count) - top);
  });
  float total = 0;
  for (const vec &s : sums)
    for (int l = 0; l < LANES; l++) total += s[l];
  return total;
}

float loss_of(const float *x, int64_t classes, int64_t wanted) {
  float top = -INFINITY, total = 0;
  for (int64_t j = 0; j < classes; j += PIECE) {
    const int64_t size = std::min(PIECE, classes - j);
    const float most = most_of(x + j, size);
    if (most > top) {
      total *= std::exp(top - most);
      top = most;
    }
    if (top > -INFINITY) total += exponentials(x + j, size, top);
  }
  return std::log(total) + (top - x[wanted]);
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  std::atomic<int> wrong{0};
#pragma omp parallel for schedule(static, @{chunk})
  for (int64_t i = 0; i < rows; i++) {
    const bool known = target[i] >= 0 && target[i] < classes;
    if (known && target[i] != @{ignore_index})
      loss[i] = loss_of(logits + i * classes, classes, target[i]);
    else
      loss[i] = 0;
    if (!known && target[i] != @{ignore_index}) wrong = 1;
  }
  return wrong;
}
