// x (x^T y) for every example at once: both products of one example run before the next one is
// read, so that x is read from memory once and x^T y never leaves the cache.
#include "kernlore_abi.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace {

constexpr int LANES = @{lanes}, TILE_M = @{tile_m}, TILE_N = @{tile_n}, COLUMNS = LANES * TILE_N;
typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

struct Free {
  void operator()(float *held) const { std::free(held); }
};
using Buffer = std::unique_ptr<float, Free>;

Buffer buffer(int64_t count) {
  return Buffer(static_cast<float *>(std::aligned_alloc(64, (count * 4 + 63) / 64 * 64)));
}

// What a tile multiplies: a(m, k) = a[m * row + k * step], b(k, n) = b[k * COLUMNS + n].
struct Factors {
  const float *a;
  int64_t row, step;
  const float *b;
  int64_t depth;
};

// M rows of a product, COLUMNS wide, all sums in registers.
template <int M>
inline void tile(const Factors &of, float *c, int64_t c_row) {
  Vec sum[M][TILE_N] = {};
  const float *a = of.a, *b = of.b;
  for (int64_t k = 0; k < of.depth; k++, a += of.step, b += COLUMNS) {
    Vec right[TILE_N];
#pragma GCC unroll 8
    for (int n = 0; n < TILE_N; n++) right[n] = *(const Vec *)(b + n * LANES);
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
      for (int n = 0; n < TILE_N; n++) sum[m][n] += a[m * of.row] * right[n];
  }
#pragma GCC unroll 16
  for (int m = 0; m < M; m++)
#pragma GCC unroll 8
    for (int n = 0; n < TILE_N; n++) *(Vec *)(c + m * c_row + n * LANES) = sum[m][n];
}

// The rows that are fewer than a tile.
template <int M>
inline void rest(const Factors &of, float *c, int64_t c_row, int64_t rows) {
  if constexpr (M > 0) {
    if (rows == M) tile<M>(of, c, c_row);
    else rest<M - 1>(of, c, c_row, rows);
  }
}

inline void product(Factors of, float *c, int64_t c_row, int64_t rows) {
  for (; rows >= TILE_M; rows -= TILE_M, of.a += TILE_M * of.row, c += TILE_M * c_row)
    tile<TILE_M>(of, c, c_row);
  rest<TILE_M - 1>(of, c, c_row, rows);
}

// y cut into panels of COLUMNS columns, filled up with zeros.
void pack(const float *y, int64_t features, int64_t projected, float *panels) {
  for (int64_t from = 0; from < projected; from += COLUMNS)
    for (int64_t f = 0; f < features; f++, panels += COLUMNS)
      for (int64_t n = 0; n < COLUMNS; n++)
        panels[n] = from + n < projected ? y[f * projected + from + n] : 0;
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  const int64_t padded = (projected + COLUMNS - 1) / COLUMNS * COLUMNS;
  const Buffer panels = buffer(features * padded);
  pack(y, features, projected, panels.get());
#pragma omp parallel
  {
    const Buffer inner = buffer(width * COLUMNS), edge = buffer(features * COLUMNS);
#pragma omp for schedule(static, @{chunk})
    for (int64_t example = 0; example < batch; example++) {
      const float *one = x + example * features * width;
      for (int64_t from = 0; from < projected; from += COLUMNS) {
        float *out = scores + example * features * projected + from;
        const float *panel = panels.get() + from * features;
        product({one, 1, width, panel, features}, inner.get(), COLUMNS, width);
        const bool whole = from + COLUMNS <= projected;
        product({one, width, 1, inner.get(), width}, whole ? out : edge.get(),
                whole ? projected : COLUMNS, features);
        for (int64_t f = 0; !whole && f < features; f++)
          std::copy_n(edge.get() + f * COLUMNS, projected - from, out + f * projected);
      }
    }
  }
  return 0;
}
