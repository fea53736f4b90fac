// A few rows times a large weight: every weight is read once, in order, and meets all rows while it is
// in a register.
#include "kernlore_abi.h"

#include <algorithm>

namespace {

constexpr int COLS = @{columns};
constexpr int LANES = @{lanes};
constexpr int AHEAD = @{ahead};
constexpr int MAX_ROWS = 8;
typedef float Vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

struct Product {
  const float *x, *weight;
  float *y;
  int64_t inner, cols;
};

inline float sum_of(Vec v) {
  float total = 0;
  for (int l = 0; l < LANES; l++) total += v[l];
  return total;
}

// R rows by C columns of the result.
template <int R, int C>
void dots(const Product &p, int64_t col) {
  const float *w = p.weight + col * p.inner;
  Vec sum[C][R];
#pragma GCC unroll 8
  for (int c = 0; c < C; c++)
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) sum[c][r] = Vec{};
  const int64_t whole = p.inner / LANES * LANES;
  for (int64_t k = 0; k < whole; k += LANES) {
    Vec weight[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; c++) {
      weight[c] = *(const Vec *)(w + c * p.inner + k);
      if (AHEAD) __builtin_prefetch(w + c * p.inner + k + AHEAD);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const Vec x = *(const Vec *)(p.x + r * p.inner + k);
#pragma GCC unroll 8
      for (int c = 0; c < C; c++) sum[c][r] += weight[c] * x;
    }
  }
  for (int c = 0; c < C; c++)
    for (int r = 0; r < R; r++) {
      float total = sum_of(sum[c][r]);
      for (int64_t k = whole; k < p.inner; k++) total += w[c * p.inner + k] * p.x[r * p.inner + k];
      p.y[r * p.cols + col + c] = total;
    }
}

template <int R>
void columns(const Product &p) {
#pragma omp parallel for schedule(static)
  for (int64_t col = 0; col < p.cols / COLS * COLS; col += COLS) dots<R, COLS>(p, col);
  for (int64_t col = p.cols / COLS * COLS; col < p.cols; col++) dots<R, 1>(p, col);
}

template <int R = MAX_ROWS>
void rows_of(int64_t rows, const Product &p) {
  if constexpr (R > 1)
    if (rows < R) return rows_of<R - 1>(rows, p);
  columns<R>(p);
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  for (int64_t i = 0; i < rows; i += MAX_ROWS)
    rows_of(std::min<int64_t>(MAX_ROWS, rows - i), {x + i * inner, weight, y + i * cols, inner, cols});
  return 0;
}
