// Running sum of every row: the prefix of a vector by log2(LANES) shifted additions, so that only
// one addition for each vector waits for the one before.
#include "kernlore_abi.h"

#include <algorithm>
#include <cstring>

namespace {

constexpr int LANES = @{lanes}, TOGETHER = @{together};
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t places __attribute__((vector_size(4 * LANES)));
typedef float unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// Lane l takes lane l - SHIFT; the lowest lanes take 0.
template <int SHIFT> inline __attribute__((always_inline)) vec raised(vec v) {
  places from;
  for (int l = 0; l < LANES; l++) from[l] = l < SHIFT ? LANES + l : l - SHIFT;
  return __builtin_shuffle(v, vec{}, from);
}

inline __attribute__((always_inline)) vec prefix(vec v) {
  v += raised<1>(v);
  v += raised<2>(v);
  if constexpr (LANES > 4) v += raised<4>(v);
  if constexpr (LANES > 8) v += raised<8>(v);
  return v;
}

// `count` rows side by side, so that one row's wait is filled with another's work.
template <int COUNT> void scan(const float *x, float *y, int64_t cols) {
  @{carry} carry[COUNT] = {};
  int64_t j = 0;
  for (; j + LANES <= cols; j += LANES)
#pragma GCC unroll 8
    for (int r = 0; r < COUNT; r++) {
      const vec v = prefix(*(const unaligned *)(x + r * cols + j));
      *(unaligned *)(y + r * cols + j) = v + static_cast<float>(carry[r]);
      carry[r] += v[LANES - 1];
    }
  for (; j < cols; j++)
    for (int r = 0; r < COUNT; r++) {
      carry[r] += x[r * cols + j];
      y[r * cols + j] = static_cast<float>(carry[r]);
    }
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  const int64_t groups = rows / TOGETHER;
#pragma omp parallel for schedule(static, @{chunk})
  for (int64_t g = 0; g < groups; g++)
    scan<TOGETHER>(x + g * TOGETHER * cols, y + g * TOGETHER * cols, cols);
  for (int64_t i = groups * TOGETHER; i < rows; i++) scan<1>(x + i * cols, y + i * cols, cols);
  return 0;
}
