// Bucket of every value among its feature's borders by comparing with all of them, a vector of
// values at a time: no search, no branch. The squashed value is written in the same pass.
#include "kernlore_abi.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

constexpr int LANES = @{lanes}, HELD = @{held};
constexpr int64_t BLOCK = @{block};
constexpr bool FUSED = @{fused};
typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Mask __attribute__((vector_size(4 * LANES)));
typedef int64_t Ids __attribute__((vector_size(8 * LANES), aligned(8), may_alias));

// log1p(a) for a >= 0: logarithm of the rounded 1 + a (Cephes logf), and what the rounding lost.
inline float log1p_of(float a) {
  const float u = 1 + a;
  int32_t bits;
  std::memcpy(&bits, &u, sizeof bits);
  const int32_t power = (bits - 0x3f3504f3) >> 23;  // u = m 2^power, m in [sqrt(1/2), sqrt(2))
  bits -= power << 23;
  float m;
  std::memcpy(&m, &bits, sizeof m);
  const float f = m - 1, z = f * f, e = static_cast<float>(power);
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  const float low = p * f * z - e * 2.12194440e-4f - 0.5f * z;
  return f + (low + (a - (u - 1)) / u) + e * 0.693359375f;
}

// Infinity is put right behind: a select inside the first loop becomes a branch, which is not
// vectorised.
inline void squash(const float *__restrict__ x, float *__restrict__ y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) y[i] = std::copysign(log1p_of(std::fabs(x[i])), x[i]);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    const float finite = y[i];
    y[i] = std::fabs(x[i]) < INFINITY ? finite : x[i];
  }
}

// `none`: id of a value below all borders. Not-above, so that NaN is behind the last border.
template <int N>
inline void ids_of(const float *x, const float *border, int64_t borders, int64_t none,
                   int64_t *ids) {
  Vec value[N];
  Mask above[N] = {};
  for (int n = 0; n < N; n++) value[n] = *(const Vec *)(x + n * LANES);
  for (int64_t k = 0; k < borders; k++)
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) above[n] += border[k] > value[n];
  for (int n = 0; n < N; n++)
    *(Ids *)(ids + n * LANES) = __builtin_convertvector(above[n], Ids) + (none + borders);
}

inline void block_of(const float *x, const float *border, int64_t borders, int64_t none,
                     int64_t *ids, float *y, int64_t count) {
  int64_t i = 0;
  for (; i + HELD * LANES <= count; i += HELD * LANES) {
    ids_of<HELD>(x + i, border, borders, none, ids + i);
    if constexpr (FUSED) squash(x + i, y + i, HELD * LANES);
  }
  if constexpr (FUSED) squash(x + i, y + i, count - i);
  for (; i + LANES <= count; i += LANES) ids_of<1>(x + i, border, borders, none, ids + i);
  for (; i < count; i++) {
    int64_t above = 0;
    for (int64_t k = 0; k < borders; k++) above += border[k] > x[i];
    ids[i] = none + borders - above;
  }
  if constexpr (!FUSED) squash(x, y, count);
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t feature = 0; feature < features; feature++)
    for (int64_t from = 0; from < batch; from += BLOCK) {
      const int64_t at = feature * batch + from;
      block_of(dense + at, borders + feature * borders_each, borders_each, first_id[feature],
               ids + at, squashed + at, std::min(BLOCK, batch - from));
    }
  return 0;
}
