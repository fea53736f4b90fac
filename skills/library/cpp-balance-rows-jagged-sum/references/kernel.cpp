// Sum of each stretch of a ragged list of rows: threads get equal numbers of rows, not of
// stretches, and a stretch's sum stays in registers.
#include "kernlore_abi.h"

#include <algorithm>
#include <omp.h>

namespace {

constexpr int LANES = @{lanes}, HELD = @{held}, ROWS = @{rows_at_once};
constexpr float INITIAL = @{initial};
typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// N vectors of the sum of `rows` rows; ROWS independent sums hide the latency of an addition.
template <int N>
inline void columns_of(const float *values, int64_t width, int64_t rows, float *out) {
  Vec sum[ROWS][N] = {};
  int64_t row = 0;
  for (; row + ROWS <= rows; row += ROWS, values += ROWS * width) {
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
      for (int n = 0; n < N; n++) sum[r][n] += *(const Vec *)(values + r * width + n * LANES);
  }
  for (; row < rows; row++, values += width)
    for (int n = 0; n < N; n++) sum[0][n] += *(const Vec *)(values + n * LANES);
  for (int n = 0; n < N; n++) {
    for (int r = 1; r < ROWS; r++) sum[0][n] += sum[r][n];
    *(Vec *)(out + n * LANES) = sum[0][n] + INITIAL;
  }
}

// As many blocks of N vectors as fit, then smaller ones; returns the first column left.
template <int N>
inline int64_t blocks_of(const float *values, int64_t width, int64_t rows, float *out, int64_t at) {
  for (; width - at >= N * LANES; at += N * LANES)
    columns_of<N>(values + at, width, rows, out + at);
  if constexpr (N > 1) at = blocks_of<N / 2>(values, width, rows, out, at);
  return at;
}

inline void stretch(const float *values, int64_t width, int64_t rows, float *out) {
  for (int64_t at = blocks_of<HELD>(values, width, rows, out, 0); at < width; at++) {
    float sum = INITIAL;
    for (int64_t row = 0; row < rows; row++) sum += values[row * width + at];
    out[at] = sum;
  }
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  const int64_t shares = (int64_t)omp_get_max_threads() * @{shares};
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t share = 0; share < shares; share++) {
    // The stretches that begin in this share of the rows; the last share has the empty ends too.
    const auto from = std::lower_bound(offsets, offsets + segments, rows * share / shares);
    const auto to = share + 1 == shares
                        ? offsets + segments
                        : std::lower_bound(from, offsets + segments, rows * (share + 1) / shares);
    for (const int64_t *at = from; at < to; at++)
      stretch(values + *at * width, width, at[1] - at[0], sums + (at - offsets) * width);
  }
  return 0;
}
