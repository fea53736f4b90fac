// rmsnorm(x + gelu(x rise) fall), every position with its own weights: a block of rows goes through
// all of it while its hidden activations lie in a cache. The weights are packed once a position.
#include "kernlore_abi.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>

namespace {

constexpr int LANES = @{lanes}, TILE_M = @{tile_m}, TILE_N = @{tile_n}, COLUMNS = LANES * TILE_N;
constexpr int64_t BLOCK = @{block};
constexpr float EPS = @{eps};
typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

struct Free {
  void operator()(float *held) const { std::free(held); }
};
using Buffer = std::unique_ptr<float, Free>;

Buffer buffer(int64_t count) {
  return Buffer(static_cast<float *>(std::aligned_alloc(64, (count * 4 + 63) / 64 * 64)));
}

// erf by a rational function of x on [-4, 4], beyond which it is 1 in float32; the coefficients are
// a minimax fit of erf(x) / x in x^2, within 4e-7 when evaluated in float32.
inline float erf_of(float x) {
  x = std::min(std::max(x, -4.0f), 4.0f);
  const float z = x * x;
  float p = 1.974829430e-6f, q = 3.748091549e-5f;
  p = p * z + 2.880425256e-4f, q = q * z + 1.216368247e-3f;
  p = p * z + 4.003676641e-3f, q = q * z + 1.544448138e-2f;
  p = p * z + 5.346756984e-2f, q = q * z + 1.164767049e-1f;
  p = p * z + 1.962496407e-1f, q = q * z + 5.072528741e-1f;
  p = p * z + 1.128378976f, q = q * z + 1;
  return x * p / q;
}

// a: rows of the left factor. panel: `depth` rows of COLUMNS columns of the right one.
struct Factors {
  const float *a;
  int64_t a_row;
  const float *panel;
  int64_t depth;
};

// M rows of a product, COLUMNS wide, all sums in registers.
template <int M>
inline void tile(const Factors &of, float *c, int64_t c_row) {
  Vec sum[M][TILE_N] = {};
  const float *b = of.panel;
  for (int64_t k = 0; k < of.depth; k++, b += COLUMNS) {
    Vec right[TILE_N];
#pragma GCC unroll 8
    for (int n = 0; n < TILE_N; n++) right[n] = *(const Vec *)(b + n * LANES);
#pragma GCC unroll 16
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
      for (int n = 0; n < TILE_N; n++) sum[m][n] += of.a[m * of.a_row + k] * right[n];
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

// All columns of a product; c is `padded` wide.
void product(const Factors &all, float *c, int64_t padded, int64_t rows) {
  for (int64_t from = 0; from < padded; from += COLUMNS) {
    Factors of = all;
    of.panel += from * all.depth;
    float *out = c + from;
    int64_t left = rows;
    for (; left >= TILE_M; left -= TILE_M, of.a += TILE_M * of.a_row, out += TILE_M * padded)
      tile<TILE_M>(of, out, padded);
    rest<TILE_M - 1>(of, out, padded, left);
  }
}

// Panels of COLUMNS columns, filled up with zeros.
void pack(const float *from, int64_t depth, int64_t columns, float *panels) {
  for (int64_t first = 0; first < columns; first += COLUMNS)
    for (int64_t k = 0; k < depth; k++, panels += COLUMNS) {
      const float *row = from + k * columns + first;
      const int64_t some = std::min<int64_t>(COLUMNS, columns - first);
      if (some == COLUMNS) std::copy_n(row, COLUMNS, panels);
      else std::fill_n(std::copy_n(row, some, panels), COLUMNS - some, 0.0f);
    }
}

void gelu(float *h, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) h[i] = 0.5f * h[i] * (1 + erf_of(h[i] * 0.70710678f));
}

void finish(const float *x, const float *fallen, const float *scale, float *y, int64_t width) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; i++) {
    const float sum = x[i] + fallen[i];
    y[i] = sum;
    squares += sum * sum;
  }
  const float factor = 1 / std::sqrt(squares / width + EPS);
#pragma omp simd
  for (int64_t i = 0; i < width; i++) y[i] *= factor * scale[i];
}

inline int64_t padded(int64_t columns) { return (columns + COLUMNS - 1) / COLUMNS * COLUMNS; }

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  const int64_t wide = padded(width), high = padded(hidden), blocks = (batch + BLOCK - 1) / BLOCK;
#pragma omp parallel
  {
    const Buffer up = buffer(width * high), down = buffer(hidden * wide);
    const Buffer h = buffer(BLOCK * high), fallen = buffer(BLOCK * wide);
    int64_t packed = -1;
#pragma omp for schedule(static)
    for (int64_t task = 0; task < positions * blocks; task++) {
      const int64_t position = task / blocks, from = task % blocks * BLOCK;
      const int64_t rows = std::min(BLOCK, batch - from);
      const int64_t at = (position * batch + from) * width;
      if (packed != position) {
        pack(rise + position * width * hidden, width, hidden, up.get());
        pack(fall + position * width * hidden, hidden, width, down.get());
        packed = position;
      }
      product({x + at, width, up.get(), width}, h.get(), high, rows);
      gelu(h.get(), rows * high);
      product({h.get(), high, down.get(), hidden}, fallen.get(), wide, rows);
      for (int64_t row = 0; row < rows; row++)
        finish(x + at + row * width, fallen.get() + row * wide, scale, y + at + row * width, width);
    }
  }
  return 0;
}
